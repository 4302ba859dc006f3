"""Local: every client trains its own model, from a common initialization.

Messages: none in either direction while clients train. A new client receives one number: how many
rounds the others trained.

Deviations: clients train in every round; the experiments of pFedFDA train a client only in the
rounds in which it is drawn (``federation.train`` = "cohort"). The number of gradient steps differs
accordingly and is recorded. A client that never took part trains as much as the others on average,
in one phase (momentum is not reset in each round).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft


class Broadcast(NamedTuple):
    """What new clients receive: the rounds that a client trained on average, ()."""

    rounds: Tensor


@dataclass(frozen=True, kw_only=True)
class Local(ft.Algorithm[tuple[()], ft.Params, ft.Params]):
    """Training without collaboration: the baseline that personalization must beat."""

    trains = "all"
    onboarding = (ft.RoundOfTraining(as_many_as_others=True),)

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare no field."""
        return {}

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Start from the common initialization."""
        return task.initial(key)

    def init_server(self, task: ft.Task, key: ft.Key) -> tuple[()]:
        """Return nothing: the server has no state."""
        return ()

    def broadcast(self, server: tuple[()], cohort: ft.Cohort) -> Broadcast | tuple[()]:
        """Tell new clients, and no others, how many rounds the others trained."""
        if cohort.new:
            return Broadcast(torch.tensor(cohort.rounds_trained))
        return ()

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train from the common initialization for the same budget as the others."""
        start = self.init_client(task, info, key)
        rounds = download.shared.rounds
        trained = ft.train_rounds(
            task, ft.classification_loss, start, data=data.train, key=key, rounds=rounds
        )
        return ft.Onboarded(trained.params, trained.steps)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[tuple[()]],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the client's own model."""
        trained = ft.train(task, ft.classification_loss, state, data=data.train, key=key)
        return ft.ClientUpdate(trained.params, {}, personal=trained.params, metrics=trained.metrics)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast | tuple[()]],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Return the client's own model."""
        return state
