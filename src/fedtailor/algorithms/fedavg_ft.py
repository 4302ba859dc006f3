"""FedAvg-FT: federated averaging, then every client fine-tunes a copy of the final global model.

The usual strong baseline of personalized federated learning; as in McLaughlin and Su 2024
(pFedFDA), all layers are tuned for 5 local epochs with the training optimizer. Zhang et al. 2023
(FedCR) tune the head for 10.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). The tuned copy is never sent.

Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedtailor import toolkit as ft


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(ft.Algorithm[ft.ModelState, tuple[()], ft.FineTuned]):
    """Federated averaging with local fine-tuning at the end."""

    bounds_examples = True

    finetune: ft.Layers = "all"
    """Layers that are tuned."""
    finetune_epochs: Annotated[ft.NonNegativeInt, ft.AtZero("this is FedAvg.")] = 5
    """Epochs of fine-tuning."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Fine-tuning on the client's training data."""
        return [ft.FineTuning(self.finetune, epochs=self.finetune_epochs)]

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model on all layers."""
        trained = ft.train(
            task, ft.classification_loss, download.shared.model, data=data.train, key=key
        )
        upload = {"model": ft.Mean(trained.params, data.info.num_train)}
        personal = ft.FineTuned(trained.params, trained.steps)
        return ft.ClientUpdate(state, upload, personal=personal, metrics=trained.metrics)

    def global_model(self, task: ft.Task, server: ft.ModelState) -> ft.FineTuned:
        """Return the global model, not tuned."""
        return ft.untuned(server.model)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Fine-tune a copy of the global model."""
        model = download.shared.model
        return ft.fine_tune(
            task, model, data.train, key=key, epochs=self.finetune_epochs, layers=self.finetune
        )
