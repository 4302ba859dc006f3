"""APFL: every client predicts with a mixture of its own model and the global one.

Deng, Kamani and Mahdavi 2020, "Adaptive personalized federated learning", arXiv:2003.13461,
Algorithm 1. Client i trains its own model v_i and a copy w_i of the global model. Its mixture is
alpha v_i + (1 - alpha) w_i, parameter by parameter. On every batch, in this order:

    w_i   <- w_i - eta grad CE(w_i)                                        ``shared``
    g     <- grad CE(mixture)                                              ``slope``
    v_i   <- v_i - eta alpha g                                             ``own``
    alpha <- clip(alpha - eta <g, v_i - w_i>, 0, 1)                        ``alpha``

The last two steps are taken at once: each uses v_i and alpha of before. That of alpha is taken
with ``adaptive`` alone, on the first batch of a round.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i), averaged as in FedAvg. The client
keeps v_i and alpha and never sends them.

Deviations:
* The paper computes both gradients of a batch before it moves either model. Here, as in the
  released code, the second gradient sees the new w_i. alpha moves by the derivative at that
  mixture, without the term 0.02 alpha of the code.
* alpha is 0.25 as in McLaughlin and Su 2024 (pFedFDA), who chose it from 0.25 to 1. The released
  code has 0.5, or adapts it.
* Uploads have the weight n_i; the paper weights them equally. w_i and v_i follow ``[training]``,
  each with its own momentum; the paper takes plain steps.
* v_i starts at the common initialization when a client first takes part. Until then the client
  predicts with w. The paper has no new clients. Here a new client trains v_i from w with w
  constant; its alpha stays, as v_i - w is 0 on the first batch.
* Buffers of batch normalization are mixed too. Those of v_i follow the passes of the mixture.
* Some implementations mix predictions instead of parameters, replace v_i by the mixture, adapt
  alpha on every batch, or move w_i twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import losses, optimizer, tree


class ClientState(NamedTuple):
    """The client's own model v_i, its alpha, and 1 once the model was trained."""

    model: ft.Params
    alpha: Tensor  # ()
    trained: Tensor  # ()


class Progress(NamedTuple):
    """What steps change: w_i, v_i, their momentum, alpha, and the sum of the mixture's losses."""

    shared: ft.Params
    own: ft.Params
    shared_momentum: ft.Params
    own_momentum: ft.Params
    alpha: Tensor  # ()
    loss_sum: Tensor  # ()


class Frozen(NamedTuple):
    """What stays constant while a new client trains v_i: the received model, and alpha."""

    shared: ft.Params
    alpha: Tensor  # ()


def mixture(own: ft.Params, shared: ft.Params, alpha: Tensor) -> ft.Params:
    """Return ``alpha v_i + (1 - alpha) w_i``, parameter by parameter."""
    return {name: alpha * value + (1 - alpha) * shared[name] for name, value in own.items()}


def joint_step(
    task: ft.Task, at: Progress, context: tree.Tree, batch: ft.Batch, key: ft.Key, *, adaptive: bool
) -> ft.StepOutput:
    """Move w_i, then v_i by the gradient at the mixture of both."""
    training = task.training

    # w_i, as in FedAvg.
    slope, _, shared = losses.model_gradient(task, at.shared, batch, key)
    shared, shared_momentum = optimizer.sgd_step(shared, at.shared_momentum, slope, training)

    # The gradient that moves both v_i and alpha.
    mixed = mixture(at.own, shared, at.alpha)
    slope, loss, passed = losses.model_gradient(task, mixed, batch, key.fold("mixture"))

    alpha = at.alpha
    if adaptive:
        difference = {name: at.own[name] - shared[name] for name in slope}
        derivative = losses.inner_product(difference, slope)
        alpha = torch.where(key.step == 0, (alpha - training.lr * derivative).clamp(0, 1), alpha)

    # v_i: the mixture holds alpha of it, and so does the gradient.
    own_slope = {name: at.alpha * value for name, value in slope.items()}
    own = {**at.own, **task.pick(passed, "buffer")}
    own, own_momentum = optimizer.sgd_step(own, at.own_momentum, own_slope, training)
    return ft.StepOutput(
        Progress(shared, own, shared_momentum, own_momentum, alpha, at.loss_sum + loss)
    )


def mixture_loss(
    task: ft.Task, own: ft.Params, frozen: Frozen, batch: ft.Batch, key: ft.Key
) -> ft.LossOutput:
    """Cross-entropy of the mixture of v_i with a shared model that stays as it is."""
    return ft.classification_loss(task, mixture(own, frozen.shared, frozen.alpha), {}, batch, key)


def personal_model(state: ClientState, shared: ft.Params) -> ft.Params:
    """Return the mixture with a shared model, or that model alone while v_i is untrained."""
    alpha = torch.where(state.trained > 0, state.alpha, 0.0)
    return mixture(state.model, shared, alpha)


@dataclass(frozen=True, kw_only=True)
class APFL(ft.Algorithm[ft.ModelState, ClientState, ft.Params]):
    """Mixtures of clients' own models and the global one."""

    onboarding = (ft.RoundOfTraining(),)

    alpha: ft.Share = 0.25
    """Share of the client's own model in its mixture, at first if it adapts."""
    adaptive: bool = False
    """Whether every client adapts its share, once per round."""

    def warnings(self, task: ft.Task) -> list[str]:
        """Warn where there is no mixture, and of an optimizer that has no effect."""
        sentences = []
        if self.alpha == 0 and not self.adaptive:
            sentences.append("with alpha 0, this is FedAvg.")
        if self.alpha == 1 and not self.adaptive:
            sentences.append("with alpha 1, this is Local, but only the cohort trains.")
        if self.training.optimizer == "adam":
            sentences.append("Adam is not used: steps are those of SGD.")
        return sentences

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start from the common initialization, untrained."""
        return ClientState(task.initial(key), torch.full((), self.alpha), torch.zeros(()))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train a copy of the received model for the server, and the client's own model."""
        received = download.shared.model
        # both momenta are 0 at the start of a round
        rest = tree.map(torch.zeros_like, task.pick(received, *ft.TRAINED))
        start = Progress(received, state.model, rest, rest, state.alpha, torch.zeros(()))
        step = partial(joint_step, adaptive=self.adaptive)
        trained = ft.train(task, None, start, data=data.train, key=key, step=step)
        end: Progress = trained.params

        # without a step, v_i is still the initial model
        was_trained = torch.where(trained.steps > 0, 1.0, state.trained)
        new_state = ClientState(end.own, end.alpha, was_trained)
        personal = personal_model(new_state, end.shared)

        upload = {"model": ft.Mean(end.shared, data.info.num_train)}
        loss = end.loss_sum / trained.steps.clamp(min=1)
        metrics = {"steps": 2 * trained.steps, "loss": loss, "alpha": end.alpha}
        return ft.ClientUpdate(new_state, upload, personal=personal, metrics=metrics)

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
        """Train the client's own model from the received one, which stays as it is."""
        received = download.shared.model
        alpha = torch.full((), self.alpha)
        plain = replace(task.training, optimizer="sgd")
        own = ft.train(
            task,
            mixture_loss,
            received,
            context=Frozen(received, alpha),
            data=data.train,
            key=key,
            training=plain,
        )

        return ft.Onboarded(ClientState(own.params, alpha, torch.ones(())), own.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Mix the client's own model with the global one."""
        return personal_model(state, download.shared.model)
