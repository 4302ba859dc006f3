"""FedAvg: one global model, averaged with the numbers of examples as weights.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017, "Communication-efficient learning of deep
networks from decentralized data", AISTATS, Algorithm 1: ``w <- sum_i (n_i / n) w_i`` over the
cohort.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). Buffers of batch normalization are
averaged too.

Deviations: none; a client with fewer examples than a batch trains with one batch of what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.toolkit import (
    Algorithm,
    ClientData,
    ClientUpdate,
    Download,
    Key,
    Mean,
    ModelState,
    OneGlobalModel,
    Params,
    Task,
    classification_loss,
    train,
)


@dataclass(frozen=True, kw_only=True)
class FedAvg(OneGlobalModel, Algorithm[ModelState, tuple[()], Params]):
    """Federated averaging: every client predicts with the global model."""

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
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(state, upload, personal=trained.params, metrics=metrics)
