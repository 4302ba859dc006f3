"""FedAvg-FT: federated averaging, then every client fine-tunes a copy of the final global model.

The usual strong baseline of personalized federated learning; as in McLaughlin and Su 2024 (pFedFDA), all layers
are tuned for 5 local epochs with the training optimizer. Zhang et al. 2023 (FedCR) tune the head for 10.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). The tuned copy is never sent.

Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData
from fedtailor.core.message import Mean
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import Params, Task
from fedtailor.training.blocks import classification_loss, train
from fedtailor.training.tuning import FineTuned, Layers, in_words, tune, untuned

Server = dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Algorithm[Server, tuple[()], FineTuned]):
    """Federated averaging with local fine-tuning at the end."""

    finetune: Layers = "all"
    """Layers that are tuned."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs of fine-tuning."""

    @property
    def adaptation(self) -> str:
        """Fine-tuning on the client's training data."""
        return in_words(self.finetune_epochs, self.finetune)

    def warnings(self, task: Task) -> list[str]:
        """Without epochs nothing is tuned."""
        return [] if self.finetune_epochs else ["without epochs of fine-tuning, this is FedAvg."]

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Train the received model on all layers."""
        trained = train(
            task, classification_loss, download.shared["model"], data=data.train, key=key, training=self.training
        )
        metrics = {"steps": trained.steps, "loss": trained.loss}
        upload = {"model": Mean(trained.params, data.info.num_train)}
        return ClientUpdate(state, upload, personal=FineTuned(trained.params, trained.steps), metrics=metrics)

    def global_model(self, task: Task, server: Server) -> FineTuned:
        """Return the global model, not tuned."""
        return untuned(server["model"])

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> FineTuned:
        """Fine-tune a copy of the global model."""
        return tune(
            task,
            download.shared["model"],
            data.train,
            key=key,
            training=self.training,
            epochs=self.finetune_epochs,
            layers=self.finetune,
        )
