"""MR-MTL: every client has its own model, held near the mean of all of them.

Liu, Hu, Wu and Smith 2022, "On privacy and personalization in cross-silo federated learning",
NeurIPS, section 3: mean-regularized multi-task learning, after Evgeniou and Pontil 2004. With
wbar the mean of what the clients of the cohort sent in the round before:

    client:   from its w_i, steps down CE(w_i) + (lambda / 2) |w_i - wbar|^2; lambda is ``penalty``
    server:   wbar <- mean of w_i over the cohort, every client weighs the same

With lambda = 0 it is Local. The larger lambda, the nearer to FedAvg.

Messages: down ``model`` (wbar); up ``model`` (w_i, of equal weight). The client keeps w_i.

Deviations:
* The paper trains with the gradients of differential privacy. Here clients train as ``[training]``
  says; its momentum and weight decay are used too.
* w_i starts at the common initialization when the client first takes part. Until then, the client
  predicts with wbar.
* The paper has no new clients. Here a new client trains its model from wbar, for one round.
* Buffers of batch normalization are not penalized. Each client has its own, and those of wbar are
  means.
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
    """The client's model w_i, and 1 once that was trained."""

    model: ft.Params
    trained: Tensor  # ()


@dataclass(frozen=True, kw_only=True)
class MRMTL(ft.Algorithm[ft.ModelState, ClientState, ft.Params]):
    """Mean-regularized multi-task learning."""

    onboarding = (ft.RoundOfTraining(),)

    penalty: Annotated[ft.NonNegativeFloat, ft.AtZero("this is Local.")] = 0.1
    """Weight of the squared distance of a client's model from the mean (lambda), halved."""

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the model."""
        return {"model": ft.Field(kind="model", shapes=task.shapes(*ft.ALL), weight="equal")}

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
        """Train the client's model, held near the mean."""
        trained = self._train(task, state.model, download.shared.model, data, key)
        was_trained = torch.where(trained.steps > 0, 1.0, state.trained)
        new_state = ClientState(trained.params, was_trained)

        upload = {"model": ft.Mean(trained.params, torch.ones(()))}
        return ft.ClientUpdate(new_state, upload, personal=trained.params, metrics=trained.metrics)

    def global_model(self, task: ft.Task, server: ft.ModelState) -> ft.Params:
        """Return the mean."""
        return server.model

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train a model from the mean."""
        mean = download.shared.model
        trained = self._train(task, mean, mean, data, key)
        return ft.Onboarded(ClientState(trained.params, torch.ones(())), trained.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Return the client's model, or the mean if that was never trained."""
        model: ft.Params = tree.where(state.trained > 0, state.model, download.shared.model)
        return model

    def _train(
        self, task: ft.Task, model: ft.Params, mean: ft.Params, data: ft.ClientData, key: ft.Key
    ) -> ft.Trained:
        """Take steps down the penalized loss."""
        return ft.train(
            task,
            partial(losses.proximal_loss, penalty=self.penalty),
            model,
            context=task.pick(mean, *ft.TRAINED),
            data=data.train,
            key=key,
        )
