"""Local: every client trains its own model, from a common initialization.

Messages: none in either direction while clients train. A new client receives one number: how many
rounds the others trained.

Deviations: clients train in every round; the experiments of pFedFDA train a client only in the
rounds in which it is drawn (``federation.train`` = "cohort"). The number of gradient steps differs
accordingly and is recorded. A client that never took part trains as much as the others on average,
in one phase (momentum does not start anew each round).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.toolkit import (
    Algorithm,
    ClientData,
    ClientInfo,
    ClientUpdate,
    Cohort,
    Download,
    Key,
    Messages,
    Onboarded,
    Params,
    Reduced,
    RoundOfTraining,
    Task,
    classification_loss,
    train,
    train_rounds,
)


class Broadcast(NamedTuple):
    """What new clients receive: the rounds that a client trained on average, ()."""

    rounds: Tensor


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm[tuple[()], Params, Params]):
    """Training without collaboration: the baseline that personalization must beat."""

    trains: ClassVar[Literal["cohort", "all"]] = "all"
    onboarding = (RoundOfTraining(as_many_as_others=True),)

    def messages(self, task: Task) -> Messages:
        """Declare no field."""
        return {}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Start from the common initialization."""
        return task.initial(key)

    def init_server(self, task: Task, key: Key) -> tuple[()]:
        """Return nothing: the server has no state."""
        return ()

    def broadcast(self, server: tuple[()], cohort: Cohort) -> Broadcast | tuple[()]:
        """Tell new clients, and no others, how many rounds the others trained."""
        if cohort.new:
            return Broadcast(torch.tensor(cohort.rounds_trained))
        return ()

    def onboard(
        self,
        task: Task,
        download: Download[Broadcast],
        info: ClientInfo,
        data: ClientData,
        key: Key,
    ) -> Onboarded:
        """Train from the common initialization for the same budget as the others."""
        start = self.init_client(task, info, key)
        rounds = download.shared.rounds
        trained = train_rounds(
            task, classification_loss, start, data=data.train, key=key, rounds=rounds
        )
        return Onboarded(trained.params, trained.steps)

    def local_update(
        self, task: Task, download: Download[tuple[()]], state: Params, data: ClientData, key: Key
    ) -> ClientUpdate:
        """Train the client's own model."""
        trained = train(task, classification_loss, state, data=data.train, key=key)
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(trained.params, {}, personal=trained.params, metrics=metrics)

    def aggregate(
        self, server: tuple[()], received: Mapping[str, Reduced], cohort: Cohort
    ) -> tuple[tuple[()], tuple[()]]:
        """Return nothing: no client sends anything."""
        return (), ()

    def personalize(
        self,
        task: Task,
        download: Download[Broadcast | tuple[()]],
        state: Params,
        data: ClientData,
        key: Key,
    ) -> Params:
        """Return the client's own model."""
        return state
