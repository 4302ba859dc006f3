"""FedBABU: the body alone is trained and averaged, under a random head that stays until the end.

Oh, Kim, Yun 2022, "FedBABU: Toward enhanced representation for federated image classification",
ICLR, Algorithm 1. The head stays at its initialization during federated training. The server
averages bodies with weights n_i. In the end every client fine-tunes the resulting model: that model
is the method's. The model before fine-tuning is recorded as the global one.

Messages: down ``body``; up ``body`` (weight n_i). The head is that of the common initialization.
Every client makes it from the seed and keeps it, so it costs no bytes. Buffers of batch
normalization belong to the body.

Deviations: the head is not among the trained parameters; if only its gradient were set to zero,
momentum and decay would still move it. The paper compares fine-tuning of the body, of the head and
of both. The default here, 5 epochs of the head, is that of McLaughlin and Su 2024 (pFedFDA). The
released code of Zhang et al. 2023 (FedCR) trains and keeps heads under this name, which is FedPer.
A client that never took part is treated as the others are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fedtailor import toolkit as ft


class ServerState(NamedTuple):
    """The body, and the fixed head, which completes the global model."""

    body: ft.Params
    head: ft.Params


class Broadcast(NamedTuple):
    """What clients receive: the body alone."""

    body: ft.Params


@dataclass(frozen=True, kw_only=True)
class FedBABU(ft.Algorithm[ServerState, ft.Params, ft.FineTuned]):
    """A body trained under a fixed random head, tuned at the end."""

    bounds_examples = True

    finetune: ft.Layers = "head"
    """Layers that are tuned."""
    finetune_epochs: Annotated[
        ft.NonNegativeInt, ft.AtZero("clients predict with one model of a random head.")
    ] = 5
    """Epochs of fine-tuning."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Fine-tuning on the client's training data."""
        return [ft.FineTuning(self.finetune, epochs=self.finetune_epochs)]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the body."""
        return {"body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY))}

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common initialization."""
        model = task.initial(key)
        return ServerState(body=task.pick(model, *ft.BODY), head=task.pick(model, "head"))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Make the head that all clients share."""
        return task.initial(key, "head")

    def broadcast(self, server: ServerState, cohort: ft.Cohort) -> Broadcast:
        """Send the body alone."""
        return Broadcast(server.body)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received body under the fixed head."""
        # the head is context: it stays as it is
        body = ft.train(
            task,
            ft.classification_loss,
            download.shared.body,
            context=state,
            data=data.train,
            key=key,
        )
        upload = {"body": ft.Mean(body.params, data.info.num_train)}
        personal = ft.FineTuned({**body.params, **state}, body.steps)
        return ft.ClientUpdate(state, upload, personal=personal, metrics=body.metrics)

    def global_model(self, task: ft.Task, server: ServerState) -> ft.FineTuned:
        """Return the body with the fixed head, not tuned."""
        return ft.untuned({**server.body, **server.head})

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Fine-tune a copy of the body with the fixed head."""
        model = {**download.shared.body, **state}
        return ft.fine_tune(
            task, model, data.train, key=key, epochs=self.finetune_epochs, layers=self.finetune
        )
