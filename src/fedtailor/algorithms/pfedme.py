"""pFedMe: a global model for the Moreau envelopes of clients' losses; personal models at them.

Dinh, Tran and Nguyen 2020, "Personalized federated learning with Moreau envelopes", NeurIPS,
Algorithm 1. A client starts from the received w. On every batch it first takes K ``inner_steps``;
theta continues from batch to batch, and starts at w:

    theta <- theta - eta_p (grad CE(theta) + lambda (theta - w_i))   towards the minimum of eq. 7
    w_i   <- w_i - eta lambda (w_i - theta)                          one outer step, after those

The server mixes, w <- (1 - beta) w + beta mean_i w_i.

Messages: down and up ``model`` (w; w_i, every client weighs the same) and ``buffers``. The client
keeps nothing.

The predicting model: at ``personalized``, for known and new clients, the theta that inner steps on
``solve_batches`` batches reach from the current w, which stays fixed; at ``local``, the theta of a
round's last batch; at ``global``, w. In some implementations w_i or the next broadcast overwrites
theta, or theta is never written.

Deviations:
* A round of the paper has 20 batches. Here ``[training]`` sets them: 5 epochs unless it says
  ``steps = 20``. Its rate, momentum, decay, clipping and Adam are not used, as in the paper; the
  released code decays theta by 0.001.
* The cohort alone trains (released code: all clients, for the same w). The solve for
  ``personalized`` is ours.
* Buffers of batch normalization follow the passes of theta and are neither held near w nor mixed:
  the server takes their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import losses, tree


class ServerState(NamedTuple):
    """The trained parameters of the global model w, and its buffers."""

    model: ft.Params
    buffers: ft.Params

    def whole(self) -> ft.Params:
        """Return the whole global model."""
        return {**self.model, **self.buffers}


class Progress(NamedTuple):
    """What steps change: the client's w_i, theta, and the sum of theta's losses."""

    model: ft.Params
    theta: ft.Params
    loss_sum: Tensor  # ()


def proximal_step(
    task: ft.Task,
    at: Progress,
    context: ft.Params,
    batch: ft.Batch,
    key: ft.Key,
    *,
    method: PFedMe,
    outer_lr: float,
) -> ft.StepOutput:
    """Take the inner steps on a batch, then the outer one; the last inner loss is recorded."""
    # theta, towards the minimum of eq. 7
    theta = at.theta
    loss = at.loss_sum
    for number in range(method.inner_steps):
        slope, loss, seen = losses.model_gradient(task, theta, batch, key.fold(number))
        pulled = {
            name: value + method.penalty * (theta[name] - at.model[name])
            for name, value in slope.items()
        }
        moved = {name: theta[name] - method.inner_lr * value for name, value in pulled.items()}
        theta = {**seen, **moved}

    # w_i, towards theta; buffers are those of theta
    rate = outer_lr * method.penalty
    moved = {
        name: at.model[name] - rate * (at.model[name] - theta[name])
        for name in task.names(*ft.TRAINED)
    }
    return ft.StepOutput(Progress({**theta, **moved}, theta, at.loss_sum + loss))


@dataclass(frozen=True, kw_only=True)
class PFedMe(ft.Algorithm[ServerState, tuple[()], ft.FineTuned]):
    """Personal models at the minimum of the loss plus a distance from a global model."""

    unused_training = ("lr", "optimizer", "momentum", "weight_decay", "clip_norm")

    penalty: Annotated[ft.NonNegativeFloat, ft.AtZero("the global model never changes.")] = 15.0
    """Weight of the squared distance of theta from the client's w_i (lambda), halved."""
    inner_steps: ft.PositiveInt = 5
    """Steps of theta per batch (K)."""
    inner_lr: ft.PositiveFloat = 0.05
    """Learning rate of theta (eta_p)."""
    outer_lr: ft.PositiveFloat = 0.005
    """Learning rate of w_i (eta)."""
    mixing: Annotated[ft.NonNegativeFloat, ft.AtZero("the global model never changes.")] = 1.0
    """Share of the mean of the clients' models in the new global one (beta); the paper allows more
    than 1."""
    solve_batches: Annotated[ft.NonNegativeInt, ft.AtZero("the global model predicts.")] = 20
    """Batches, of ``inner_steps`` each, that lead from the global model to a client's personal
    one."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Solve the proximal problem on the client's training data."""
        batches = f"{self.solve_batches} batches of {self.inner_steps} steps"
        return [ft.OtherAdaptation(f"proximal solve, {batches} of all layers")]

    def warnings(self, task: ft.Task) -> list[str]:
        """Name steps that are too long, too."""
        sentences = super().warnings(task)
        outer = self.outer_lr * self.penalty
        if outer >= 1:
            sentences.append(f"outer_lr * penalty is {outer:g}: from 1 on, w_i moves past theta.")

        inner = self.inner_lr * self.penalty
        if inner >= 2:
            sentences.append(f"inner_lr * penalty is {inner:g}: from 2 on, theta diverges.")

        return sentences

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare what is mixed, and buffers, which are not."""
        return {
            "model": ft.Field(kind="model", shapes=task.shapes(*ft.TRAINED), weight="equal"),
            "buffers": ft.Field(kind="model", shapes=task.shapes("buffer"), weight="equal"),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common initialization."""
        model = task.initial(key)
        return ServerState(task.pick(model, *ft.TRAINED), task.pick(model, "buffer"))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Take outer steps, each towards theta."""
        trained = self._train(task, download.shared.whole(), data, key, outer_lr=self.outer_lr)
        end: Progress = trained.params
        steps = trained.steps * self.inner_steps

        one = torch.ones(())
        upload = {
            "model": ft.Mean(task.pick(end.model, *ft.TRAINED), one),
            "buffers": ft.Mean(task.pick(end.model, "buffer"), one),
        }
        metrics = {"steps": steps, "loss": end.loss_sum / trained.steps.clamp(min=1)}
        return ft.ClientUpdate(
            state, upload, personal=ft.FineTuned(end.theta, steps), metrics=metrics
        )

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Mix the mean of the clients' models into the global one."""
        mean_model = received["model"].or_else(server.model)
        buffers = received["buffers"].or_else(server.buffers)

        def mix(old: Tensor, mean: Tensor) -> Tensor:
            return old + self.mixing * (mean - old)

        return ServerState(tree.map(mix, server.model, mean_model), buffers), ()

    def global_model(self, task: ft.Task, server: ServerState) -> ft.FineTuned:
        """Return the global model as it is."""
        return ft.untuned(server.whole())

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Take inner steps from the global model, which stays as it is."""
        # with an outer rate of 0, w stays
        start = download.shared.whole()
        solved = self._train(
            task, start, data, key.fold("solve"), outer_lr=0.0, batches=self.solve_batches
        )
        return ft.FineTuned(solved.params.theta, solved.steps * self.inner_steps)

    def _train(
        self,
        task: ft.Task,
        model: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
        *,
        outer_lr: float,
        batches: int | None = None,
    ) -> ft.Trained:
        """Take proximal steps, by default on as many batches as ``[training]`` says."""
        start = Progress(model, model, torch.zeros(()))
        step = partial(proximal_step, method=self, outer_lr=outer_lr)
        return ft.train(task, None, start, data=data.train, key=key, step=step, steps=batches)
