"""FedAvg: one global model, averaged with the numbers of examples as weights.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017, "Communication-efficient learning of deep networks from
decentralized data", AISTATS, Algorithm 1: ``w <- sum_i (n_i / n) w_i`` over the cohort.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). Buffers of batch normalization are averaged too.

Deviations: none; a client with fewer examples than a batch trains with one batch of what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, Cohort
from fedtailor.core.local import classification_loss, predict_logits, train
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, Params, Task


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm[Params, tuple[()], Params]):
    """Federated averaging: every client predicts with the global model."""

    @property
    def adaptation(self) -> str:
        """The global model is used as it is."""
        return "none"

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
        upload = {"model": Mean(trained.params, data.info.num_train)}
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(state, upload, personal=trained.params, metrics=metrics)

    def aggregate(self, server: Params, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Params, tuple[()]]:
        """Take the mean."""
        return received["model"].or_else(server), ()

    def global_model(self, task: Task, server: Params) -> Params:
        """Return the global model."""
        return server

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> Params:
        """Return the global model."""
        params: Params = download.shared
        return params

    def predict(self, task: Task, personal: Params, x: Tensor) -> Tensor:
        """Return logits."""
        return predict_logits(task, personal, x)
