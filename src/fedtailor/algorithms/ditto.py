"""Ditto: a global model by federated averaging, and personal models that are held near it.

Li, Hu, Beirami and Smith 2021, "Ditto: Fair and robust federated learning through personalization",
ICML, Algorithm 1. A client solves two tasks from the same received model w^t. Neither task sees the
result of the other:

    global task:     steps down CE(w_i) from w^t;   w <- sum_i (n_i / n) w_i over the cohort
    personal task:   steps down CE(v_i) + (lambda / 2) |v_i - w^t|^2,   ``penalty`` is lambda

Messages: down ``model`` (w^t); up ``model`` (w_i, weight n_i). The client keeps v_i and never sends
it.

Deviations:
* The center of the penalty is the received model, as in the paper. Some implementations take the
  model that the client has just trained for the server, which lies nearer to its own data.
* ``penalty`` and ``personal_epochs`` are those of McLaughlin and Su 2024 (pFedFDA), who chose 1
  from 0.05 to 2. Zhang et al. 2023 (FedCR) chose 0.001 to 0.1. The released code has no useful
  default (0, which is Local).
* Both tasks use ``[training]``, its momentum and weight decay included, as in the experiments of
  McLaughlin and Su 2024 (pFedFDA); the paper takes plain steps of SGD. The decay of v_i pulls
  towards 0, not towards w^t.
* v_i starts at the common initialization when the client first takes part, as in the paper. Until
  then the client predicts with the global model: the initial model would lower the mean over
  clients.
* The paper has no new clients. Here a new client takes ``personal_epochs`` epochs of its personal
  task from the received model.
* Buffers of batch normalization are not penalized. Those of w_i are averaged; v_i has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import losses, tree


class ClientState(NamedTuple):
    """The client's personal model v_i, and 1 once that was trained."""

    model: ft.Params
    trained: Tensor  # ()


def personal_model(state: ClientState, received: ft.Params) -> ft.Params:
    """Return the model of a state, or the received one if it was never trained."""
    model: ft.Params = tree.where(state.trained > 0, state.model, received)
    return model


@dataclass(frozen=True, kw_only=True)
class Ditto(ft.Algorithm[ft.ModelState, ClientState, ft.Params]):
    """Federated averaging, and personal models regularized towards the global one."""

    bounds_examples = True

    penalty: Annotated[
        ft.NonNegativeFloat, ft.AtZero("personal models are those of Local, beside a FedAvg.")
    ] = 1.0
    """Weight of the squared distance of a personal model from the received one (lambda), halved."""
    personal_epochs: Annotated[
        ft.NonNegativeInt, ft.AtZero("the global model predicts: this is FedAvg.")
    ] = 5
    """Epochs of a personal model per round."""

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """The personal task."""
        return [ft.FineTuning(epochs=self.personal_epochs)]

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start from the common initialization, untrained."""
        return ClientState(task.initial(key), torch.zeros(()))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train a copy of the received model for the server, and the personal model."""
        received = download.shared.model

        # Both tasks start from what was received: neither sees the result of the other.
        shared = ft.train(
            task, ft.classification_loss, received, data=data.train, key=key.fold("global")
        )
        personal = self._personal_task(task, state.model, received, data, key)
        was_trained = torch.where(personal.steps > 0, 1.0, state.trained)
        new_state = ClientState(personal.params, was_trained)

        upload = {"model": ft.Mean(shared.params, data.info.num_train)}
        metrics = {
            "steps": shared.steps + personal.steps,
            "loss": shared.loss,
            "personal_loss": personal.loss,
        }
        model = personal_model(new_state, received)
        return ft.ClientUpdate(new_state, upload, personal=model, metrics=metrics)

    def global_model(self, task: ft.Task, server: ft.ModelState) -> ft.Params:
        """Return the global model."""
        return server.model

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train a personal model from the received one."""
        received = download.shared.model
        personal = self._personal_task(task, received, received, data, key)
        return ft.Onboarded(ClientState(personal.params, torch.ones(())), personal.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Return the personal model, or the global one if that was never trained."""
        return personal_model(state, download.shared.model)

    def _personal_task(
        self, task: ft.Task, model: ft.Params, received: ft.Params, data: ft.ClientData, key: ft.Key
    ) -> ft.Trained:
        """Train a personal model, held near the received one."""
        return ft.train(
            task.at_home(),
            partial(losses.proximal_loss, penalty=self.penalty),
            model,
            context=task.pick(received, *ft.TRAINED),
            data=data.train,
            key=key.fold("personal"),
            epochs=self.personal_epochs,
        )
