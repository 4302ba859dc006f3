"""pFedMe: a global model for the Moreau envelopes of the clients' losses, and personal models at their minimum.

Dinh, Tran and Nguyen 2020, "Personalized federated learning with Moreau envelopes", NeurIPS, Algorithm 1. From the
received w, a client takes on every batch, first K ``inner_steps``, theta going on from batch to batch (at first w),

    theta <- theta - eta_p (grad CE(theta) + lambda (theta - w_i))     (towards the minimum of eq. 7),

then one outer step  w_i <- w_i - eta lambda (w_i - theta). The server mixes,  w <- (1 - beta) w + beta mean_i w_i.

Messages: down and up ``model`` (w; w_i, every client weighs the same) and ``buffers``. The client keeps nothing.

What predicts: at ``personalized``, for known and new clients, the theta that inner steps on ``solve_batches`` batches
reach from the current w, which stays; at ``local``, the theta of a round's last batch; at ``global``, w. In some
implementations w_i or the next broadcast overwrites theta, or theta is never written.

Deviations:
* A round of the paper has 20 batches, here those of ``[training]``: 5 epochs unless it says ``steps = 20``. Its rate,
  momentum, decay, clipping and Adam are not used, as in the paper; the released code decays theta by 0.001.
* The cohort alone trains (released code: everybody, for the same w). The solve for ``personalized`` is ours.
* Buffers of batch normalization follow the passes of theta, neither held near w nor mixed: the server takes their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, Cohort
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import TRAINED, Batch, Params, Task
from fedtailor.training.blocks import Trained, train
from fedtailor.training.losses import model_gradient
from fedtailor.training.phase import StepOutput
from fedtailor.training.tuning import FineTuned, untuned

Server = dict[str, Params]


class Progress(NamedTuple):
    """What steps change: the client's copy of the global model, theta, and the sum of the losses of theta."""

    model: Params
    theta: Params
    loss_sum: Tensor  # ()


def proximal_step(
    task: Task, at: Progress, context: tuple[()], batch: Batch, key: Key, *, method: PFedMe, outer_lr: float
) -> StepOutput:
    """Take the inner steps on a batch, then the outer one; the recorded loss is that of the last inner step."""
    theta, loss = at.theta, at.loss_sum
    for number in range(method.inner_steps):
        slope, loss, seen = model_gradient(task, theta, batch, key.fold(number))
        pulled = {name: value + method.penalty * (theta[name] - at.model[name]) for name, value in slope.items()}
        theta = {**seen, **{name: theta[name] - method.inner_lr * value for name, value in pulled.items()}}
    rate = outer_lr * method.penalty
    moved = {name: at.model[name] - rate * (at.model[name] - theta[name]) for name in task.names(*TRAINED)}
    return StepOutput(Progress({**theta, **moved}, theta, at.loss_sum + loss))


def _joined(server: Server) -> Params:
    """Return the whole global model."""
    return {**server["model"], **server["buffers"]}


@dataclass(frozen=True, kw_only=True)
class PFedMe(Algorithm[Server, tuple[()], FineTuned]):
    """Personal models at the minimum of loss plus squared distance from a global model made for that."""

    penalty: Annotated[float, Range(ge=0)] = 15.0
    """Weight of the squared distance of theta from the client's w_i (lambda), halved."""
    inner_steps: Annotated[int, Range(ge=1)] = 5
    """Steps of theta per batch (K)."""
    inner_lr: Annotated[float, Range(gt=0)] = 0.05
    """Learning rate of theta (eta_p)."""
    outer_lr: Annotated[float, Range(gt=0)] = 0.005
    """Learning rate of w_i (eta)."""
    mixing: Annotated[float, Range(ge=0)] = 1.0
    """Share of the mean of the clients' models in the new global one (beta); the paper allows more than 1."""
    solve_batches: Annotated[int, Range(ge=0)] = 20
    """Batches, of ``inner_steps`` each, that lead from the global model to a client's personal one."""

    @property
    def adaptation(self) -> str:
        """The proximal solve on the client's training data."""
        return f"proximal solve, {self.solve_batches} batches of {self.inner_steps} steps of all layers"

    def warnings(self, task: Task) -> list[str]:
        """Steps that are too long leave the minimum behind; without a solve there is no personal model."""
        pull = self.outer_lr * self.penalty
        still = [name for name in ("penalty", "mixing") if getattr(self, name) == 0]
        found = [f"with {name} 0, the global model stays as it was at first." for name in still]
        found += [f"outer_lr * penalty is {pull:g}: from 1 on, w_i moves past theta."] if pull >= 1 else []
        pull = self.inner_lr * self.penalty
        found += [f"inner_lr * penalty is {pull:g}: from 2 on, theta diverges."] if pull >= 2 else []
        none = "without batches of the proximal solve, clients predict with the global model."
        found += [] if self.solve_batches else [none]
        return found + self.training.not_used("lr", "optimizer", "momentum", "weight_decay", "clip_norm")

    def messages(self, task: Task) -> Messages:
        """Declare what is mixed, and buffers, which are not."""
        groups = {"model": TRAINED, "buffers": ("buffer",)}
        return {name: Field(kind="model", shapes=task.shapes(*g), weight="equal") for name, g in groups.items()}

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common initialization."""
        model = task.model.init(key.common("model"))
        return {"model": task.pick(model, *TRAINED), "buffers": task.pick(model, "buffer")}

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Take outer steps, each towards theta."""
        trained = self._train(task, _joined(download.shared), data, key, outer_lr=self.outer_lr)
        model, theta, loss_sum = trained.params
        steps = trained.steps * self.inner_steps
        metrics, one = {"steps": steps, "loss": loss_sum / trained.steps.clamp(min=1)}, torch.ones(())
        upload = {"model": Mean(task.pick(model, *TRAINED), one), "buffers": Mean(task.pick(model, "buffer"), one)}
        return ClientUpdate(state, upload, FineTuned(theta, steps), metrics)

    def aggregate(self, server: Server, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Server, tuple[()]]:
        """Mix the mean of the clients' models into the global one."""
        new = {name: field.or_else(server[name]) for name, field in received.items()}
        mixed = tree.map(lambda old, mean: old + self.mixing * (mean - old), server["model"], new["model"])
        return {**new, "model": mixed}, ()

    def global_model(self, task: Task, server: Server) -> FineTuned:
        """Return the global model as it is."""
        return untuned(_joined(server))

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> FineTuned:
        """Take inner steps from the global model, which stays as it is."""
        start, key = _joined(download.shared), key.fold("solve")
        solved = self._train(task, start, data, key, outer_lr=0.0, batches=self.solve_batches)
        return FineTuned(solved.params.theta, solved.steps * self.inner_steps)

    def _train(
        self, task: Task, model: Params, data: ClientData, key: Key, *, outer_lr: float, batches: int | None = None
    ) -> Trained:
        """Take proximal steps from a model, on so many batches, or on as many as ``[training]`` says."""
        start, step = Progress(model, model, torch.zeros(())), partial(proximal_step, method=self, outer_lr=outer_lr)
        return train(task, None, start, data=data.train, key=key, training=self.training, step=step, steps=batches)
