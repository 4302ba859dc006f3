"""Local: every client trains a model of its own, from a common initialization.

Messages: none, in either direction, while clients train; a new one is told only how many rounds the others trained.

Deviations: trains in every round; the experiments of pFedFDA train it only in the rounds in which the client is drawn
(``federation.train`` = "cohort"). The number of gradient steps differs accordingly and is recorded. A client that never
took part trains as much as the others on average, in one phase (momentum does not start anew each round).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Messages, Reduced
from fedtailor.core.rng import Key
from fedtailor.core.task import Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss
from fedtailor.training.tuning import train_rounds


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm[tuple[()], Params, Params]):
    """Training without collaboration: the baseline that personalization must beat."""

    trains: ClassVar[Literal["cohort", "all"]] = "all"
    onboarding = "as many rounds of all layers as the others trained"

    def messages(self, task: Task) -> Messages:
        """Declare no field."""
        return {}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Start from the common initialization."""
        return task.model.init(key.common("model"))

    def init_server(self, task: Task, key: Key) -> tuple[()]:
        """Know nothing."""
        return ()

    def broadcast(self, server: tuple[()], cohort: Cohort) -> Tensor | tuple[()]:
        """Tell new clients, and nobody else, how many rounds the others trained."""
        return torch.tensor(cohort.rounds_trained) if cohort.new else ()

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train from the common initialization for the same budget as the others."""
        start = self.init_client(task, info, key)
        trained = train_rounds(
            task,
            classification_loss,
            start,
            data=data.train,
            key=key,
            training=self.training,
            rounds=download.shared,
        )
        return Onboarded(trained.params, trained.steps)

    def local_update(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> ClientUpdate:
        """Train the client's own model."""
        trained = train(task, classification_loss, state, data=data.train, key=key, training=self.training)
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(trained.params, {}, personal=trained.params, metrics=metrics)

    def aggregate(
        self, server: tuple[()], received: Mapping[str, Reduced], cohort: Cohort
    ) -> tuple[tuple[()], tuple[()]]:
        """Receive nothing."""
        return (), ()

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> Params:
        """Return the client's own model."""
        return state
