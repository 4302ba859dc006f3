"""A shared body under a personal head: what FedPer and FedRep, which train the two, have in common.

The server averages bodies. A client's head is its state and never sent. A personal model is the new
body with the client's own head, even if that head was trained long ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedtailor import toolkit as ft


class ServerState(NamedTuple):
    """The body."""

    body: ft.Params


@dataclass(frozen=True, kw_only=True)
class PersonalHead(ft.Algorithm[ServerState, ft.Params, ft.FineTuned]):
    """Base of a method: it adds how body and head are trained, and how a new client gets a head."""

    finetune_epochs: ft.NonNegativeInt = 0
    """Epochs that tune a copy of the head on the final body; 0: predict with the head as it is."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Tuning of the head."""
        return [ft.FineTuning("head", epochs=self.finetune_epochs)]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the body."""
        return {"body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY))}

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the body of the common initialization."""
        return ServerState(task.initial(key, *ft.BODY))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Start from the head of the common initialization."""
        return task.initial(key, "head")

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Join the received body and the client's head, and tune a copy of the head if asked to."""
        model = {**download.shared.body, **state}
        return ft.fine_tune(
            task, model, data.train, key=key, epochs=self.finetune_epochs, layers="head"
        )
