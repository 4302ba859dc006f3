"""Losses: cross-entropy, and the terms that methods add to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.rng import Key
from fedtailor.core.task import TRAINED, Batch, LossOutput, Params, Task

_TINY = 1e-30
"""Less than any sum of weights but 0, so that a mean over nothing is 0."""
_BETA = 0.999
"""Of the effective number of examples."""


def classification_loss(
    task: Task, params: Params, context: tree.Tree, batch: Batch, key: Key
) -> LossOutput:
    """Cross-entropy of a whole model, in training mode; parameters in ``context`` stay frozen."""
    model = {**context, **params}
    z, buffers = task.features(model, batch, key)
    return LossOutput(cross_entropy_of(batch, task.model.head(model, z)), buffers)


def model_gradient(
    task: Task, model: Params, batch: Batch, key: Key
) -> tuple[Params, Tensor, Params]:
    """Return the gradient of the cross-entropy, its value, and the model with updated buffers.

    For custom steps. The gradient is in the parameters of a whole model that are trained: buffers
    have none.
    """
    buffers = task.pick(model, "buffer")

    def loss(trained: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
        output = classification_loss(task, trained, buffers, batch, key)
        return output.loss, (output.loss, output.buffers)

    gradient, (value, updated) = torch.func.grad(loss, has_aux=True)(task.pick(model, *TRAINED))
    return gradient, value, {**model, **updated}


def head_loss(task: Task, params: Params, context: tree.Tree, batch: Batch, key: Key) -> LossOutput:
    """Cross-entropy of a head alone, on a table of cached features."""
    return LossOutput(cross_entropy_of(batch, task.model.head(params, batch.x)))


def cross_entropy(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the mean cross-entropy over examples, in which all classes count the same."""
    return weighted_mean(F.cross_entropy(logits, labels, reduction="none"), weight)


def cross_entropy_of(batch: Batch, logits: Tensor) -> Tensor:
    """Return the mean cross-entropy over the examples of a batch, with the run's class weights.

    It is ``sum_j w(y_j) l_j / n`` over its n examples. Divided by n, and not by the sum of the
    weights, so that the batches of an epoch add up to the weighted loss of the client.

    Args:
        batch: the examples.
        logits: (b, classes).
    """
    losses = F.cross_entropy(logits, batch.y, reduction="none")
    return weighted_mean(batch.weigh(losses), batch.weight)


def class_weights(counts: Tensor, rule: Literal["balanced", "effective"]) -> Tensor:
    """Return the weight of every class (classes,), from a client's counts of training examples.

    ``balanced``: 1 / n_c. ``effective``: (1 - beta) / (1 - beta^n_c) with beta = 0.999, one over
    the effective number of examples (Cui et al. 2019, "Class-balanced loss based on effective
    number of samples", CVPR, eq. 2). Both times a factor that makes the mean over the client's
    examples 1, so that the learning rate keeps its meaning. Absent classes have the weight 0.

    Example:
        >>> class_weights(torch.tensor([30.0, 10.0, 0.0]), "balanced")
        tensor([0.6667, 2.0000, 0.0000])
    """
    present = counts > 0
    numbers = torch.where(present, counts, 1.0).double()
    if rule == "effective":
        numbers = (1.0 - _BETA**numbers) / (1.0 - _BETA)

    weights = torch.where(present, 1.0 / numbers, 0.0)
    mean = (weights * counts).sum() / counts.sum().clamp(min=1.0)
    return (weights / mean.clamp(min=_TINY)).to(counts.dtype)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of ``values`` (n,) under ``weight`` (n,); 0 if the weights are all 0."""
    return torch.dot(values.to(weight.dtype), weight) / weight.sum().clamp(min=_TINY)


def squared_distance(params: Mapping[str, Tensor], center: Mapping[str, Tensor]) -> Tensor:
    """Return ``sum_j (params_j - center_j)^2`` over the parameters that ``center`` names.

    Leave buffers out of ``center``: they are not trained.
    """
    squares = [(params[name] - value).square().sum() for name, value in center.items()]
    return torch.stack(squares).sum()


def proximal_loss(
    task: Task, params: Params, center: Params, batch: Batch, key: Key, *, penalty: float
) -> LossOutput:
    """Cross-entropy of a model, plus half the penalty times the squared distance from a center."""
    output = classification_loss(task, params, {}, batch, key)
    return output._replace(loss=output.loss + 0.5 * penalty * squared_distance(params, center))


def aligned_loss(
    task: Task, body: Params, context: tree.Tree, batch: Batch, key: Key
) -> LossOutput:
    """Cross-entropy under a frozen head, plus the distance of features from class targets.

    The distance is the mean square. ``context``: the head, the targets (classes, d), and the
    weight of the distance.
    """
    head, targets, penalty = context
    z, buffers = task.features(body, batch, key)
    distance = weighted_mean((z - targets[batch.y]).square().mean(1), batch.weight)
    entropy = cross_entropy_of(batch, task.model.head(head, z))
    return LossOutput(entropy + penalty * distance, buffers)


def inner_product(params: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Tensor:
    """Return ``sum_j params_j direction_j`` over the parameters of ``direction``, its gradient."""
    products = [(params[name] * value).sum() for name, value in direction.items()]
    return torch.stack(products).sum()
