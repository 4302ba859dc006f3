"""From divided data to a federation: the only part of ``data`` that knows tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import UNSCALED, Federation, Split, Splits
from fedtailor.core.task import Task
from fedtailor.data.build import DividedData
from fedtailor.data.dataset import Dataset, Normalization

_CHUNK = 4096  # rows at once in passes over all training examples


def to_federation(divided: DividedData, task: Task) -> Federation:
    """Make tensors; images stay as stored and are normalized when they are used, other values at once.

    Args:
        divided: the data.
        task: made by the caller for ``dataset.input_shape`` and ``dataset.num_classes``.

    Raises:
        ConfigError: the task is for examples of another shape, or for another number of classes.
    """
    dataset = divided.dataset
    wanted = f"examples of shape {dataset.input_shape} in {dataset.num_classes} classes, as data set '{dataset.name}'"
    if (tuple(task.input_shape), task.num_classes) != (dataset.input_shape, dataset.num_classes):
        got = f"{tuple(task.input_shape)} in {task.num_classes}"
        raise ConfigError(f"the task must be for {wanted}, got {got}.", key="model", allowed=wanted, got=got)
    x, scale = tables(dataset, normalization(divided))
    first, last = divided.division.dataset.num_official_train, len(divided.division.dataset.y)
    return Federation(
        x=x,
        y=torch.from_numpy(dataset.y),
        splits=Splits(Split(*map(torch.from_numpy, each)) for each in divided.rows),
        common_task=task,
        num_new=divided.num_new,
        class_names=dataset.class_names,
        client_names=divided.client_names,
        conditions=divided.conditions,
        scale=scale,
        complete=torch.arange(first, last if divided.division.shared_test else first),
    )


def normalization(divided: DividedData) -> Normalization:
    """Return the mean and deviation by which values are normalized.

    With ``normalize = "training"``, and for tables unless the options say otherwise, those of the training examples
    of all clients that take part, per channel or feature; a feature that does not vary gets the deviation 1.
    """
    dataset, options = divided.dataset, divided.division.options
    by_training = options.normalize == "training" or (options.normalize == "auto" and dataset.x.ndim == 2)
    known = divided.rows[: len(divided.rows) - divided.num_new]
    rows = np.sort(np.concatenate([each.train for each in known]))
    if not by_training or len(rows) == 0 or options.mean or options.std:
        return dataset.normalize
    total, squares, count = 0.0, 0.0, 0
    axes = tuple(range(dataset.x.ndim - 1))
    offset = dataset.x[rows[:1]].astype(np.float64).mean(axes)  # near the mean, so that squares keep their digits
    for start in range(0, len(rows), _CHUNK):
        values = dataset.x[rows[start : start + _CHUNK]].astype(np.float64) - offset
        total, squares = total + values.sum(axes), squares + (values**2).sum(axes)
        count += values.size // values.shape[-1]
    center = total / count
    deviation = np.sqrt(np.maximum(squares / count - center**2, 0)) / dataset.white
    deviation = np.where(deviation > 1e-12, deviation, 1.0)
    mean = (offset + center) / dataset.white
    return Normalization(tuple(map(float, mean)), tuple(map(float, deviation)))


def tables(dataset: Dataset, normalize: Normalization) -> tuple[Tensor, Tensor]:
    """Return the examples as a tensor, images (rows, channels, height, width), and the scale that is left to do."""
    mean, std = (torch.tensor(values) for values in normalize)
    if dataset.x.ndim == 4:
        scale = torch.stack([torch.full_like(mean, dataset.white), mean, std])
        return torch.from_numpy(dataset.x).permute(0, 3, 1, 2), scale
    values = torch.tensor(dataset.x, dtype=torch.get_default_dtype()).div_(dataset.white).sub_(mean).div_(std)
    return values, UNSCALED
