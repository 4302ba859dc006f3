"""Small federations: uneven clients of every degenerate size, and classes told apart easily."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedtailor.core.federation import Federation, Split
from fedtailor.core.task import Task
from fedtailor.models.module import from_module
from fedtailor.models.networks import emnist_cnn, mlp

CLASSES = 3
SIZES = (1, 2, 5, 9, 14, 0, 23)
"""Training examples of the known clients: the second has a single class, one has no examples."""
NEW_SIZES = (7, 0)
"""Training examples of the new clients, which never take part in training."""


def perceptron() -> Task:
    """Return a task with the built-in perceptron."""
    return Task(mlp((4,), CLASSES, hidden=5), CLASSES, (4,))


def convolutional() -> Task:
    """Return a task with the built-in convolutional network, on its smallest images."""
    return Task(emnist_cnn((1, 12, 12), CLASSES), CLASSES, (1, 12, 12))


def module(*, bias: bool = True) -> Task:
    """Return a task with a user's module that has dropout and batch normalization.

    A ``bias`` before the normalization has a gradient of rounding errors only, of which Adam makes
    full steps.
    """
    layers = [
        nn.Linear(4, 6, bias=bias),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(6, 5),
        nn.Tanh(),
    ]
    wrapped = from_module(
        nn.Sequential(*layers, nn.Linear(5, CLASSES)), input_shape=(4,), num_classes=CLASSES
    )

    return Task(wrapped, CLASSES, (4,))


TASKS = {"mlp": perceptron, "cnn": convolutional, "module": module}


def make_federation(
    task: Task,
    sizes: Sequence[int] = SIZES,
    new_sizes: Sequence[int] = NEW_SIZES,
    *,
    test_size: int = 5,
    validation: bool = False,
    distance: float = 1.0,
    seed: int = 0,
) -> Federation:
    """Return a federation of Gaussian classes, ``distance`` standard deviations apart.

    About half of a client's examples are of its favorite class; a client with two examples has no
    other class. With ``validation``, clients have 0, 1, 2, 0, 1, 2, ... validation examples.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = []
    splits = []
    start = 0
    for client, size in enumerate((*sizes, *new_sizes)):
        val_size = client % 3 if validation else 0
        count = size + test_size + val_size
        favorite = client % task.num_classes
        drawn = torch.randint(task.num_classes, (count,), generator=generator)
        is_favorite = torch.rand(count, generator=generator) < 0.5
        # A client of one class, whose other classes have no mean.
        if size == 2:
            labels.append(torch.full_like(drawn, favorite))
        else:
            labels.append(torch.where(is_favorite, favorite, drawn))

        positions = torch.arange(start, start + count)
        train, val, test = torch.split(positions, [size, val_size, test_size])
        splits.append(Split(train, val, test))
        start += count

    y = torch.cat(labels)
    centers = torch.randn(task.num_classes, *task.input_shape, generator=generator) * distance
    x = centers[y] + torch.randn(len(y), *task.input_shape, generator=generator)
    # Images lie in memory as real ones do.
    if len(task.input_shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)

    return Federation(x, y, splits, task, num_new=len(new_sizes))
