"""Small federations: uneven clients, every degenerate size, classes that can be told apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedtailor.core.federation import Federation, Split
from fedtailor.core.task import Task
from fedtailor.models.cnn import emnist_cnn
from fedtailor.models.mlp import mlp
from fedtailor.models.module import from_module

CLASSES = 3
SIZES = (1, 2, 5, 9, 14, 0, 23)
"""Training examples of the known clients: the second has a single class, one has none."""
NEW_SIZES = (7, 0)
"""Training examples of the clients that never take part in training."""


def perceptron() -> Task:
    """Return a task with the built-in perceptron."""
    return Task(mlp((4,), CLASSES, hidden=5), CLASSES, (4,))


def convolutional() -> Task:
    """Return a task with the built-in network of two convolution stages, on the smallest images it takes."""
    return Task(emnist_cnn((1, 12, 12), CLASSES), CLASSES, (1, 12, 12))


def module(*, bias: bool = True) -> Task:
    """Return a task with a user's module that has dropout and batch normalization.

    With a ``bias`` before the normalization, there are parameters whose gradient is rounding only: Adam makes full
    steps of it.
    """
    layers = [nn.Linear(4, 6, bias=bias), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 5), nn.Tanh()]
    wrapped = from_module(nn.Sequential(*layers, nn.Linear(5, CLASSES)), input_shape=(4,), num_classes=CLASSES)
    return Task(wrapped, CLASSES, (4,))


TASKS = {"mlp": perceptron, "cnn": convolutional, "module": module}


def federation(
    task: Task,
    sizes: Sequence[int] = SIZES,
    new_sizes: Sequence[int] = NEW_SIZES,
    *,
    test_size: int = 5,
    distance: float = 1.0,
    seed: int = 0,
) -> Federation:
    """Return a federation of Gaussian classes whose centers lie about ``distance`` standard deviations apart.

    Every client prefers a class of its own (half of its examples), and a client with two examples has no other.
    """
    sizes = (*sizes, *new_sizes)
    generator = torch.Generator().manual_seed(seed)
    labels, splits, start = [], [], 0
    for client, size in enumerate(sizes):
        count = size + test_size
        drawn = torch.randint(task.num_classes, (count,), generator=generator)
        own = torch.rand(count, generator=generator) < 0.5
        drawn = torch.where(own, client % task.num_classes, drawn)
        labels.append(torch.full_like(drawn, client % task.num_classes) if size == 2 else drawn)
        position = torch.arange(start, start + count)
        splits.append(Split(position[:size], position[:0], position[size:]))
        start += count
    y = torch.cat(labels)
    centers = torch.randn(task.num_classes, *task.input_shape, generator=generator) * distance
    x = centers[y] + torch.randn(len(y), *task.input_shape, generator=generator)
    if len(task.input_shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    return Federation(x, y, splits, task, num_new=len(new_sizes))
