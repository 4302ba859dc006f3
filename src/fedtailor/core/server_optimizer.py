"""Server optimizers: how the server moves its model towards the mean of the clients' models.

Plain averaging replaces the model x by the mean. A server optimizer takes D = mean - x for the
step of an optimizer, with a learning rate eta, and keeps moments of it from round to round.

* ``sgd``, known as FedAvgM: m <- b1 m + D, x <- x + eta m. Hsu, Qi and Brown 2019, "Measuring the
  effects of non-identical data distribution for federated visual classification", section 4.
* ``adagrad``, ``adam``, ``yogi``, known as FedOpt: m <- b1 m + (1 - b1) D and
  x <- x + eta m / (sqrt(v) + tau), with v <- v + D^2 (Adagrad), v <- b2 v + (1 - b2) D^2 (Adam), or
  v <- v - (1 - b2) D^2 sign(v - D^2) (Yogi). Reddi et al. 2021, "Adaptive federated optimization",
  ICLR, Algorithm 2. Like there, v begins at tau^2, and no bias is corrected.

Only what clients train by gradients is moved like this. Buffers take their mean, and the other
fields of a method, such as its statistics, become what its ``aggregate`` makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.message import Messages, Received, Reduced, spread
from fedtailor.core.options import wrong_value
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task


class Moments(NamedTuple):
    """What the optimizer keeps of a field from round to round, by the paths of its parameters."""

    first: dict[str, Tensor]
    second: dict[str, Tensor]
    """Empty for ``sgd``."""


class ServerOptimizer:
    """The optimizer of a run, for the fields that are averaged models."""

    def __init__(self, schedule: Schedule, messages: Messages, task: Task) -> None:
        """Take the options of a schedule, and what a method sends."""
        self._schedule = schedule
        self._fields = _averaged_models(messages)
        self._buffers = frozenset(task.names("buffer"))

    def step(
        self, server: Any, received: Received, moments: Mapping[str, Moments]
    ) -> tuple[dict[str, Reduced], dict[str, Moments]]:
        """Return what was received with the new models in place of means, and the new moments.

        Args:
            server: the server state of the method, with a field for every averaged model.
            received: the means over the cohort.
            moments: those after the round before, by field; empty in the first round.
        """
        new_received = dict(received)
        new_moments = {}
        for name in self._fields:
            model = getattr(server, name)
            before = moments[name] if name in moments else self._first_moments(model)
            new_model, new_moments[name] = self._step_of(model, received[name], before)
            new_received[name] = received[name]._replace(value=new_model)

        return new_received, new_moments

    def _first_moments(self, model: tree.Tree) -> Moments:
        leaves = tree.paths(model)
        first = {
            path: torch.zeros_like(leaf)
            for path, leaf in leaves.items()
            if path not in self._buffers
        }
        if self._schedule.server_optimizer == "sgd":
            return Moments(first, {})

        start = self._schedule.server_epsilon**2
        return Moments(first, {path: torch.full_like(leaf, start) for path, leaf in first.items()})

    def _step_of(
        self, model: tree.Tree, received: Reduced, moments: Moments
    ) -> tuple[tree.Tree, Moments]:
        """Return a model and its moments after a step; rows that nobody sent stay as they are."""
        old_leaves = tree.paths(model)
        leaves = tree.paths(received.or_else(model))
        first = {}
        second = {}
        for path, old_first in moments.first.items():
            old = old_leaves[path]
            is_sent = spread(received.total_weight, old) > 0
            change = leaves[path] - old

            first[path] = torch.where(is_sent, self._new_first(old_first, change), old_first)
            direction = first[path]
            if path in moments.second:
                old_second = moments.second[path]
                new_second = self._new_second(old_second, change.square())
                second[path] = torch.where(is_sent, new_second, old_second)
                direction = direction / (second[path].sqrt() + self._schedule.server_epsilon)

            moved = old + self._schedule.server_lr * direction
            leaves[path] = torch.where(is_sent, moved, old)

        return tree.rebuild(model, iter(leaves.values())), Moments(first, second)

    def _new_first(self, first: Tensor, change: Tensor) -> Tensor:
        """Return the momentum: with SGD a sum of changes, else a moving average."""
        momentum = self._schedule.server_momentum
        share = 1.0 if self._schedule.server_optimizer == "sgd" else 1.0 - momentum
        return momentum * first + share * change

    def _new_second(self, second: Tensor, square: Tensor) -> Tensor:
        """Return the second moment of an adaptive optimizer."""
        beta2 = self._schedule.server_beta2
        if self._schedule.server_optimizer == "adagrad":
            return second + square
        if self._schedule.server_optimizer == "adam":
            return beta2 * second + (1.0 - beta2) * square
        return second - (1.0 - beta2) * square * (second - square).sign()


def make_server_optimizer(
    algorithm: AnyAlgorithm, task: Task, schedule: Schedule
) -> ServerOptimizer | None:
    """Return the server optimizer that a schedule names; None: the server takes means as they are.

    Raises:
        ConfigError: the server of the method averages no model, or has an arithmetic of its own.
    """
    if schedule.server_optimizer == "none":
        return None

    messages = algorithm.messages(task)
    reason = ""
    if not algorithm.averages_models:
        reason = "its server has a rule of its own for the next model"
    elif not _averaged_models(messages):
        reason = "its server averages no model"

    if reason:
        allowed = f"'none' for {type(algorithm).__name__}: {reason}"
        raise wrong_value("federation.server_optimizer", allowed, schedule.server_optimizer)

    return ServerOptimizer(schedule, messages, task)


def _averaged_models(messages: Messages) -> list[str]:
    """Return the fields that are means of models; a body may have no parameters at all."""
    return [
        name
        for name, declared in messages.items()
        if declared.kind == "model" and declared.reduction == "mean" and declared.leaf_shapes()
    ]
