"""Conversion of divided data to a federation of tensors; the other modules of ``data`` do without torch."""

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


def to_federation(divided: DividedData, task: Task, normalize: Normalization | None = None) -> Federation:
    """Return the federation; images are normalized when they are used, tables at once.

    Args:
        divided: the data.
        task: a task for ``dataset.input_shape`` and ``dataset.num_classes``.
        normalize: mean and standard deviation; None: :func:`normalization` finds them.

    Raises:
        ConfigError: the task is for examples of another shape, or for another number of classes.
    """
    dataset = divided.dataset
    wanted = f"examples of shape {dataset.input_shape} in {dataset.num_classes} classes, as data set '{dataset.name}'"
    if (tuple(task.input_shape), task.num_classes) != (dataset.input_shape, dataset.num_classes):
        got = f"{tuple(task.input_shape)} in {task.num_classes}"
        raise ConfigError(f"the task must be for {wanted}, got {got}.", key="model", allowed=wanted, got=got)
    x, scale = tables(dataset, normalize or normalization(divided))
    published = divided.division.dataset
    official_test = torch.arange(published.num_official_train, len(published.y))
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
        complete=official_test if divided.division.shared_test else official_test[:0],
    )


def normalization(divided: DividedData) -> Normalization:
    """Return the mean and standard deviation by which values are normalized.

    With ``normalize = "training"``, and for tables unless the options say otherwise, they are those of the training
    examples of all clients that are not new, per channel or feature; a constant feature gets the deviation 1.
    """
    dataset = divided.dataset
    by_training = divided.division.options.standardizes(is_table=dataset.x.ndim == 2)
    known = divided.rows[: len(divided.rows) - divided.num_new]
    rows = np.sort(np.concatenate([each.train for each in known]))
    if not by_training or len(rows) == 0:
        return dataset.normalize
    axes = tuple(range(dataset.x.ndim - 1))
    offset = dataset.x[rows[:1]].astype(np.float64).mean(axes)  # close to the mean, so that squares keep their digits
    total = np.zeros_like(offset)
    squares = np.zeros_like(offset)
    count = 0
    for start in range(0, len(rows), _CHUNK):
        values = dataset.x[rows[start : start + _CHUNK]].astype(np.float64) - offset
        total += values.sum(axes)
        squares += (values**2).sum(axes)
        count += values.size // values.shape[-1]
    center = total / count
    deviation = np.sqrt(np.maximum(squares / count - center**2, 0)) / dataset.white
    deviation = np.where(deviation > 1e-12, deviation, 1.0)
    mean = (offset + center) / dataset.white
    return Normalization(tuple(map(float, mean)), tuple(map(float, deviation)))


def tables(dataset: Dataset, normalize: Normalization) -> tuple[Tensor, Tensor]:
    """Return the examples as a tensor, images (rows, channels, height, width), and the scale to apply later."""
    mean = torch.tensor(normalize.mean)
    std = torch.tensor(normalize.std)
    if dataset.x.ndim == 4:
        scale = torch.stack([torch.full_like(mean, dataset.white), mean, std])
        return torch.from_numpy(dataset.x).permute(0, 3, 1, 2), scale
    values = torch.tensor(dataset.x, dtype=torch.get_default_dtype()).div_(dataset.white).sub_(mean).div_(std)
    return values, UNSCALED
