"""FedRep: a shared body under a personal head of every client, trained one after the other.

Collins, Hassani, Mokhtari, Shakkottai 2021, "Exploiting shared representations for personalized
federated learning", ICML, Algorithm 1. Client i first makes tau steps on its head h_i under the
received representation phi, then updates phi under that head, and the server averages: ``phi <- (1
/ rn) sum_i phi_i``.

Messages: down ``body`` (phi); up ``body`` (phi_i, weight n_i). The head is client state and never
sent. Buffers of batch normalization belong to the body. A personal model is the new body with the
client's own head, even if that head was trained long ago.

Deviations: bodies are weighted by n_i, as in FedAvg, not by 1. A phase of the head has
``head_epochs``, and the body trains *as well* for the epochs (or steps) of ``training``, 1 or 5 in
the paper; some libraries subtract the epochs of the head from those of the body, which halves the
work. Each phase has its own optimizer, so no momentum passes from one to the other. The head's
phase uses features in evaluation mode (without dropout), computed once unless images are augmented.
A client that never took part runs the head's phase alone, from the common initial head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedtailor import toolkit as ft
from fedtailor.algorithms._personal_head import PersonalHead, ServerState


@dataclass(frozen=True, kw_only=True)
class FedRep(PersonalHead):
    """The body is averaged, heads are personal and trained first."""

    bounds_examples = True

    head_epochs: Annotated[ft.NonNegativeInt, ft.AtZero("this is an untuned FedBABU.")] = 10
    """Epochs of the head on the received body, before those of the body (tau)."""

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """The phase of the head."""
        return [ft.FineTuning("head", epochs=self.head_epochs)]

    def bounded_steps(self, num_train: int) -> int:
        """Return the steps of head and body: gradients of the body depend on the head."""
        epochs_of_head = self.head_epochs * len(self.training.batch_sizes(num_train))
        return epochs_of_head + self.training.num_steps(num_train)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the client's head on the received body, then the body under that head."""
        received = download.shared.body

        # tau steps on h_i under the received phi, then phi under that head
        head = self._train_head(task, received, state, data, key)
        body = ft.train(
            task,
            ft.classification_loss,
            received,
            context=head.params,
            data=data.train,
            key=key.fold("body"),
        )

        steps = head.steps + body.steps
        personal = ft.FineTuned({**body.params, **head.params}, steps)
        upload = {"body": ft.Mean(body.params, data.info.num_train)}
        metrics = {"steps": steps, "loss": body.loss, "head_loss": head.loss}
        return ft.ClientUpdate(head.params, upload, personal=personal, metrics=metrics)

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train the common head on the received body."""
        start = self.init_client(task, info, key)
        head = self._train_head(task, download.shared.body, start, data, key)
        return ft.Onboarded(head.params, head.steps)

    def _train_head(
        self, task: ft.Task, body: ft.Params, head: ft.Params, data: ft.ClientData, key: ft.Key
    ) -> ft.Trained:
        """Run the phase of the head."""
        return ft.train_head(
            task, body, head, data.train, key=key.fold("head"), epochs=self.head_epochs
        )
