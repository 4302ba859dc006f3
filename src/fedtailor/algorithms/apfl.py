"""APFL: every client predicts with a mixture of a model of its own and the global one.

Deng, Kamani and Mahdavi 2020, "Adaptive personalized federated learning", arXiv:2003.13461, Algorithm 1. A client's
mixture is alpha v_i + (1 - alpha) w_i, parameter by parameter. On every batch, in this order:

    w_i <- w_i - eta grad CE(w_i);
    v_i <- v_i - eta alpha grad CE(mixture),   w_i constant;
    with ``adaptive``, on the first batch of a round:   alpha <- clip(alpha - eta <grad CE(mixture), v_i - w_i>, 0, 1).

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i): a FedAvg. The client keeps v_i and alpha, never sent.

Deviations:
* The paper takes both gradients of a batch before it moves either model; here, as in the released code, the second
  sees the new w_i. alpha moves by the derivative at that mixture, without the released term 0.02 alpha.
* Uploads weigh n_i (paper: the same). w_i and v_i follow ``[training]``, each on its own (paper: plain steps).
* v_i starts at the common initialization when a client first takes part; until then the client predicts with w. A
  new client (paper: none) trains v_i from w with w constant; alpha stays, as v_i - w is 0 on the first batch.
* Buffers of batch normalization are mixed too; those of v_i follow the mixture's passes. Some implementations mix
  predictions instead of parameters, replace v_i by the mixture, adapt alpha on every batch, or move w_i twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from fedtailor.core.task import TRAINED, Batch, LossOutput, Params, Task, Training
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss, inner_product, model_gradient
from fedtailor.training.optimizer import sgd_step
from fedtailor.training.phase import StepOutput


class State(NamedTuple):
    """Client state: its own model v_i, its alpha, and 1 once the model has been trained."""

    model: Params
    alpha: Tensor  # ()
    trained: Tensor  # ()


class Progress(NamedTuple):
    """What steps change: w_i and v_i, the momentum of both, alpha, and the sum of the mixture's losses."""

    shared: Params
    own: Params
    momenta: tuple[Params, Params]
    alpha: Tensor  # ()
    loss_sum: Tensor  # ()


def mixture(own: Params, shared: Params, alpha: Tensor) -> Params:
    """Return ``alpha own + (1 - alpha) shared``."""
    return {name: alpha * value + (1 - alpha) * shared[name] for name, value in own.items()}


def joint_step(
    task: Task, at: Progress, context: tuple[()], batch: Batch, key: Key, *, training: Training, adaptive: bool
) -> StepOutput:
    """Move the copy of the global model, then the client's own by the gradient at the mixture of both."""
    slope, _, shared = model_gradient(task, at.shared, batch, key)
    shared, first = sgd_step(shared, at.momenta[0], slope, training)
    slope, loss, mixed = model_gradient(task, mixture(at.own, shared, at.alpha), batch, key.fold("mixture"))
    alpha = at.alpha
    if adaptive:
        derivative = inner_product({name: at.own[name] - shared[name] for name in slope}, slope)
        alpha = torch.where(key.step == 0, (alpha - training.lr * derivative).clamp(0, 1), alpha)
    own, slope = {**at.own, **task.pick(mixed, "buffer")}, {name: at.alpha * value for name, value in slope.items()}
    own, second = sgd_step(own, at.momenta[1], slope, training)
    return StepOutput(Progress(shared, own, (first, second), alpha, at.loss_sum + loss))


def mixture_loss(task: Task, own: Params, context: tuple[Params, Tensor], batch: Batch, key: Key) -> LossOutput:
    """Cross-entropy of the mixture of a client's own model with a shared one that stays as it is."""
    return classification_loss(task, mixture(own, *context), (), batch, key)


def _personal(state: State, shared: Params) -> Params:
    """Return the mixture with a shared model, or that model alone if the client's own was never trained."""
    return mixture(state.model, shared, torch.where(state.trained > 0, state.alpha, 0.0))


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm[dict[str, Params], State, Params]):
    """Mixtures of clients' own models and the global one."""

    onboarding = "a round's training of all layers"

    alpha: Annotated[float, Range(ge=0, le=1)] = 0.25
    """Share of the client's own model in its mixture, at first if it adapts; 0.25 as in pFedFDA's experiments."""
    adaptive: bool = False
    """Whether every client adapts its share, once per round."""

    def warnings(self, task: Task) -> list[str]:
        """At both ends of alpha there is no mixture."""
        ends = {0.0: "with alpha 0, this is FedAvg.", 1.0: "with alpha 1, this is Local that trains with the cohort."}
        found = [ends[self.alpha]] if self.alpha in ends and not self.adaptive else []
        return [*found, "Adam is not used: steps are those of SGD."] if self.training.optimizer == "adam" else found

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start from the common initialization, untrained."""
        return State(task.model.init(key.common("model")), torch.full((), self.alpha), torch.zeros(()))

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Train a copy of the received model for the server, and the client's own model, batch by batch."""
        received: Params = download.shared["model"]
        rest = tree.map(torch.zeros_like, task.pick(received, *TRAINED))
        start = Progress(received, state.model, (rest, rest), state.alpha, torch.zeros(()))
        step = partial(joint_step, training=self.training, adaptive=self.adaptive)
        trained = train(task, None, start, data=data.train, key=key, training=self.training, step=step)
        shared, own, _, alpha, loss_sum = trained.params
        state = State(own, alpha, torch.where(trained.steps > 0, 1.0, state.trained))
        metrics = {"steps": 2 * trained.steps, "loss": loss_sum / trained.steps.clamp(min=1), "alpha": alpha}
        return ClientUpdate(state, {"model": Mean(shared, data.info.num_train)}, _personal(state, shared), metrics)

    def global_model(self, task: Task, server: dict[str, Params]) -> Params:
        """Return the global model."""
        return server["model"]

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train a model of the client's own from the received one, which stays as it is."""
        received: Params = download.shared["model"]
        plain, alpha = replace(self.training, optimizer="sgd"), torch.full((), self.alpha)
        own = train(task, mixture_loss, received, context=(received, alpha), data=data.train, key=key, training=plain)
        return Onboarded(State(own.params, alpha, torch.ones(())), own.steps)

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Params:
        """Mix the client's own model with the global one."""
        return _personal(state, download.shared["model"])
