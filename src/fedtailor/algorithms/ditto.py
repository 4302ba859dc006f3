"""Ditto: a global model by federated averaging, and beside it a model for every client that is held near it.

Li, Hu, Beirami and Smith 2021, "Ditto: Fair and robust federated learning through personalization", ICML,
Algorithm 1. A client does two things from the same received model w^t, and neither sees what the other one does:

    global task:    w_i <- w^t, then steps down CE(w_i);   w <- sum_i (n_i / n) w_i over the cohort;
    its own model:  steps down CE(v_i) + (lambda / 2) |v_i - w^t|^2,   ``penalty`` is lambda.

Messages: down ``model`` (w^t); up ``model`` (w_i, weight n_i). The client keeps v_i, which is never sent.

Deviations:
* The center of the penalty is the received model, as in the paper; some implementations take the one that the client
  has just trained for the server, which lies nearer to its own data.
* Both tasks use ``[training]``, its momentum and weight decay included, as the experiments of McLaughlin and Su 2024
  (pFedFDA) do (paper: plain steps of SGD); the decay of v_i draws towards 0, not towards w^t.
* v_i starts at the common initialization when the client takes part for the first time, as in the paper. Until then
  the client predicts with the global model: the initial one would drag the mean down.
* A new client takes ``personal_epochs`` epochs of its own task from the received model (paper: not treated).
* Buffers of batch normalization are not penalized: those of w_i are averaged, v_i has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo
from fedtailor.core.message import Mean
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import TRAINED, Params, Task
from fedtailor.training.blocks import Trained, train
from fedtailor.training.losses import classification_loss, proximal_loss
from fedtailor.training.tuning import in_words

Server = dict[str, Params]


class State(NamedTuple):
    """Client state: its own model v_i, and 1 once that has been trained."""

    model: Params
    trained: Tensor  # ()


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm[Server, State, Params]):
    """Federated averaging, and personal models regularized towards the global one."""

    penalty: Annotated[float, Range(ge=0)] = 1.0
    """Weight of the squared distance of a client's own model from the received one (lambda), halved."""
    personal_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs of a client's own model per round."""

    @property
    def onboarding(self) -> str:
        """The client's own task."""
        return in_words(self.personal_epochs, "all")

    def warnings(self, task: Task) -> list[str]:
        """Without penalty or epochs nothing is left of the personal models."""
        found = [] if self.penalty else ["with penalty 0, personal models are those of Local, beside a FedAvg."]
        if not self.personal_epochs:
            found.append("without epochs of their own, clients predict with the global model: this is FedAvg.")
        return found

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start from the common initialization, untrained."""
        return State(task.model.init(key.common("model")), torch.zeros(()))

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Train a copy of the received model for the server, and the client's own model."""
        received: Params = download.shared["model"]
        shared = train(
            task, classification_loss, received, data=data.train, key=key.fold("global"), training=self.training
        )
        own = self._own_task(task, state.model, received, data, key)
        state = State(own.params, torch.where(own.steps > 0, 1.0, state.trained))
        metrics = {"steps": shared.steps + own.steps, "loss": shared.loss, "personal_loss": own.loss}
        upload = {"model": Mean(shared.params, data.info.num_train)}
        return ClientUpdate(state, upload, personal=_model(state, received), metrics=metrics)

    def global_model(self, task: Task, server: Server) -> Params:
        """Return the global model."""
        return server["model"]

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train a model of the client's own, from the received one."""
        received: Params = download.shared["model"]
        own = self._own_task(task, received, received, data, key)
        return Onboarded(State(own.params, torch.ones(())), own.steps)

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Params:
        """Return the client's own model; the global one where that was never trained."""
        return _model(state, download.shared["model"])

    def _own_task(self, task: Task, model: Params, received: Params, data: ClientData, key: Key) -> Trained:
        """Train a client's own model, held near the received one."""
        return train(
            task,
            partial(proximal_loss, penalty=self.penalty),
            model,
            context=task.pick(received, *TRAINED),
            data=data.train,
            key=key.fold("personal"),
            training=self.training,
            epochs=self.personal_epochs,
        )


def _model(state: State, received: Params) -> Params:
    """Return the model of a state, or the received one if it was never trained."""
    model: Params = tree.where(state.trained > 0, state.model, received)
    return model
