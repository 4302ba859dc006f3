"""FedAvg-FT: federated averaging, then every client fine-tunes a copy of the final global model.

The usual strong baseline of personalized federated learning; as in McLaughlin and Su 2024 (pFedFDA), all layers
are tuned for 5 local epochs with the training optimizer. Zhang et al. 2023 (FedCR) tune the head for 10.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). The tuned copy is never sent.

Deviations: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, Cohort
from fedtailor.core.local import cached_features, classification_loss, head_loss, predict_logits, train
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, BODY, Params, Task


class FineTuned(NamedTuple):
    """A client's tuned model, and the gradient steps that it took."""

    model: Params
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Algorithm[Params, tuple[()], FineTuned]):
    """Federated averaging with local fine-tuning at the end."""

    finetune: Literal["all", "head"] = "all"
    """Layers that are tuned."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs of fine-tuning."""

    @property
    def adaptation(self) -> str:
        """Fine-tuning on the client's training data."""
        return f"{self.finetune_epochs} epochs of {'all layers' if self.finetune == 'all' else 'the head'}"

    def messages(self, task: Task) -> Messages:
        """Declare the model."""
        return {"model": Field(kind="model", shapes=task.shapes(*ALL))}

    def init_server(self, task: Task, key: Key) -> Params:
        """Start from the common initialization."""
        return task.model.init(key.common("model"))

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Train the received model on all layers."""
        trained = train(task, classification_loss, download.shared, data=data.train, key=key, training=self.training)
        metrics = {"steps": trained.steps, "loss": trained.loss}
        upload = {"model": Mean(trained.params, data.info.num_train)}
        return ClientUpdate(state, upload, personal=FineTuned(trained.params, trained.steps), metrics=metrics)

    def aggregate(self, server: Params, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Params, tuple[()]]:
        """Take the mean."""
        return received["model"].or_else(server), ()

    def global_model(self, task: Task, server: Params) -> FineTuned:
        """Return the global model, not tuned."""
        return FineTuned(server, torch.zeros((), dtype=torch.int64))

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> FineTuned:
        """Fine-tune a copy of the global model."""
        model, head = download.shared, self.finetune == "head"
        cached = head and not self.training.augments  # else features differ from epoch to epoch
        examples = cached_features(task, model, data.train, key=key) if cached else data.train
        tuned = train(
            task,
            head_loss if cached else classification_loss,
            task.pick(model, "head") if head else model,
            context=task.pick(model, *BODY) if head and not cached else (),
            data=examples,
            key=key.fold("finetune"),
            training=self.training,
            epochs=self.finetune_epochs,
        )
        return FineTuned({**model, **tuned.params}, tuned.steps)

    def predict(self, task: Task, personal: FineTuned, x: Tensor) -> Tensor:
        """Return logits."""
        return predict_logits(task, personal.model, x)

    def diagnostics(self, task: Task, personal: FineTuned) -> dict[str, Tensor]:
        """Record the steps of fine-tuning."""
        return {"steps": personal.steps}
