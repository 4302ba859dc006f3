"""Predictions of a whole model, in evaluation mode."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.task import Params, Task


def predict_features(task: Task, params: Params, x: Tensor) -> Tensor:
    """Return the features (n, d) of inputs in evaluation mode."""
    ones = torch.ones(x.shape[0], dtype=x.dtype)
    return task.model.features(params, x, weight=ones, key=rng.new_key(0), training=False)[0]


def predict_logits(task: Task, params: Params, x: Tensor) -> Tensor:
    """Return the logits (n, classes) of a whole model in evaluation mode."""
    return task.model.head(params, predict_features(task, params, x))
