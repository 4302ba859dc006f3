"""FedAvg: one global model, averaged with the numbers of examples as weights.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017, "Communication-efficient learning of deep networks from
decentralized data", AISTATS, Algorithm 1: ``w <- sum_i (n_i / n) w_i`` over the cohort.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). Buffers of batch normalization are averaged too.

Deviations: none; a client with fewer examples than a batch trains with one batch of what it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData
from fedtailor.core.message import Mean
from fedtailor.core.rng import Key
from fedtailor.core.task import Params, Task
from fedtailor.training.blocks import classification_loss, train

Server = dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm[Server, tuple[()], Params]):
    """Federated averaging: every client predicts with the global model."""

    primary_evaluation: ClassVar[Literal["global", "local", "personalized"]] = "global"

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Train the received model on all layers."""
        trained = train(
            task, classification_loss, download.shared["model"], data=data.train, key=key, training=self.training
        )
        upload = {"model": Mean(trained.params, data.info.num_train)}
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(state, upload, personal=trained.params, metrics=metrics)

    def global_model(self, task: Task, server: Server) -> Params:
        """Return the global model."""
        return server["model"]

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> Params:
        """Return the global model."""
        params: Params = download.shared["model"]
        return params
