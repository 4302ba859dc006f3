"""Terms that methods add to the loss: distances from other models or features, and products with a direction."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch, LossOutput, Params, Task
from fedtailor.training.blocks import classification_loss, cross_entropy, weighted_mean


def squared_distance(params: Mapping[str, Tensor], center: Mapping[str, Tensor]) -> Tensor:
    """Return ``sum_j (params_j - center_j)^2`` over the numbers of the parameters that ``center`` names.

    Leave buffers out of ``center``: they are not trained.
    """
    return torch.stack([(params[name] - value).square().sum() for name, value in center.items()]).sum()


def proximal_loss(task: Task, params: Params, center: Params, batch: Batch, key: Key, *, penalty: float) -> LossOutput:
    """Cross-entropy of a whole model, plus half the penalty times the squared distance from ``center``."""
    output = classification_loss(task, params, (), batch, key)
    return output._replace(loss=output.loss + 0.5 * penalty * squared_distance(params, center))


def aligned_loss(task: Task, body: Params, context: tree.Tree, batch: Batch, key: Key) -> LossOutput:
    """Cross-entropy under a frozen head, plus the mean squared distance of features from targets of their classes.

    ``context``: the head, the targets (classes, d), and the weight of the distance.
    """
    head, targets, penalty = context
    z, buffers = task.model.features(body, batch.x, weight=batch.weight, key=key, training=True)
    distance = weighted_mean((z - targets[batch.y]).square().mean(1), batch.weight)
    return LossOutput(cross_entropy(task.model.head(head, z), batch.y, batch.weight) + penalty * distance, buffers)


def inner_product(params: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Tensor:
    """Return ``sum_j params_j direction_j`` over the parameters that ``direction`` names: a term with that gradient."""
    return torch.stack([(params[name] * value).sum() for name, value in direction.items()]).sum()
