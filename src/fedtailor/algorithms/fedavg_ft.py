"""FedAvg-FT: federated averaging, then every client fine-tunes a copy of the final global model.

The usual strong baseline of personalized federated learning; as in McLaughlin and Su 2024
(pFedFDA), all layers are tuned for 5 local epochs with the training optimizer. Zhang et al. 2023
(FedCR) tune the head for 10.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). The tuned copy is never sent.

Deviations: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedtailor.toolkit import (
    Adaptation,
    Algorithm,
    ClientData,
    ClientUpdate,
    Download,
    FineTuned,
    FineTuning,
    Key,
    Layers,
    Mean,
    ModelState,
    Range,
    Task,
    classification_loss,
    fine_tune,
    train,
    untuned,
)


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Algorithm[ModelState, tuple[()], FineTuned]):
    """Federated averaging with local fine-tuning at the end."""

    trains_as: ClassVar[str] = "fedavg"
    only_for_personalization: ClassVar[frozenset[str]] = frozenset({"finetune", "finetune_epochs"})

    finetune: Layers = "all"
    """Layers that are tuned."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs of fine-tuning."""

    @property
    def adaptation(self) -> Sequence[Adaptation]:
        """Fine-tuning on the client's training data."""
        return [FineTuning(self.finetune, epochs=self.finetune_epochs)]

    def warnings(self, task: Task) -> list[str]:
        """Without epochs nothing is tuned."""
        if self.finetune_epochs:
            return []
        return ["without epochs of fine-tuning, this is FedAvg."]

    def local_update(
        self,
        task: Task,
        download: Download[ModelState],
        state: tuple[()],
        data: ClientData,
        key: Key,
    ) -> ClientUpdate:
        """Train the received model on all layers."""
        trained = train(task, classification_loss, download.shared.model, data=data.train, key=key)
        upload = {"model": Mean(trained.params, data.info.num_train)}
        personal = FineTuned(trained.params, trained.steps)
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(state, upload, personal=personal, metrics=metrics)

    def global_model(self, task: Task, server: ModelState) -> FineTuned:
        """Return the global model, not tuned."""
        return untuned(server.model)

    def personalize(
        self,
        task: Task,
        download: Download[ModelState],
        state: tuple[()],
        data: ClientData,
        key: Key,
    ) -> FineTuned:
        """Fine-tune a copy of the global model."""
        model = download.shared.model
        return fine_tune(
            task, model, data.train, key=key, epochs=self.finetune_epochs, layers=self.finetune
        )
