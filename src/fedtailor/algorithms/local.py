"""Local: every client trains a model of its own, from a common initialization.

Messages: none, in either direction; a new client must know only how many rounds the others trained.

Deviations: trains in every round by default; the experiments of pFedFDA train it only in the rounds in which
the client is drawn (``train = "cohort"``). The number of gradient steps differs accordingly and is recorded. A client
that never took part trains for the epochs of all rounds so far, in one phase (momentum does not start anew).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.local import classification_loss, predict_logits, train
from fedtailor.core.message import Messages, Reduced
from fedtailor.core.rng import Key
from fedtailor.core.task import Params, Task


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm[tuple[()], Params, Params]):
    """Training without collaboration: the baseline that personalization must beat."""

    train: Literal["all", "cohort"] = "all"
    """Whether all clients train in every round, or those drawn for it."""

    @property
    def who_trains(self) -> str:
        """Who trains in a round."""
        return self.train

    @property
    def adaptation(self) -> str:
        """Nothing beyond the client's own training."""
        return "none"

    def messages(self, task: Task) -> Messages:
        """Declare no field."""
        return {}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Start from the common initialization."""
        return task.model.init(key.common("model"))

    def broadcast(self, server: tuple[()], cohort: Cohort) -> Tensor:
        """Return the number of rounds so far."""
        return torch.tensor(cohort.round)

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Params:
        """Train from the common initialization for the same budget as the others."""
        start = self.init_client(task, info, key)
        budget = download.shared * self.training.epochs
        trained = train(
            task, classification_loss, start, data=data.train, key=key, training=self.training, epochs=budget
        )
        params: Params = trained.params
        return params

    def local_update(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> ClientUpdate:
        """Train the client's own model."""
        trained = train(task, classification_loss, state, data=data.train, key=key, training=self.training)
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(trained.params, {}, personal=trained.params, metrics=metrics)

    def aggregate(
        self, server: tuple[()], received: Mapping[str, Reduced], cohort: Cohort
    ) -> tuple[tuple[()], tuple[()]]:
        """Do nothing."""
        return (), ()

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> Params:
        """Return the client's own model."""
        return state

    def predict(self, task: Task, personal: Params, x: Tensor) -> Tensor:
        """Return logits."""
        return predict_logits(task, personal, x)
