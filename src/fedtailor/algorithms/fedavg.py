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

from fedtailor import toolkit as ft


@dataclass(frozen=True, kw_only=True)
class FedAvg(ft.OneGlobalModel, ft.Algorithm[ft.ModelState, tuple[()], ft.Params]):
    """Federated averaging: every client predicts with the global model."""

    bounds_examples = True

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
        return ft.ClientUpdate(state, upload, personal=trained.params, metrics=trained.metrics)
