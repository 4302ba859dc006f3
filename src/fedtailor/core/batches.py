"""Which examples a client sees in which step: shuffled per epoch by key, the same in every engine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.federation import ExampleSet
from fedtailor.core.task import Batch


class Amount(NamedTuple):
    """How much a phase trains."""

    epochs: int
    steps: int
    """Used in place of epochs if positive."""
    batch_size: int
    """0: all examples in one batch."""
    drop_last: bool
    per_step: int
    """Batches that one step uses."""


class Plan(NamedTuple):
    """The batches of a phase: positions in the example set, and where the last epoch starts."""

    batches: list[Tensor]
    last_epoch: int
    """First batch of the last epoch: of as many last steps as an epoch has."""


def plan_batches(weight: Tensor, key: tuple[int, int, int, int, int], amount: Amount) -> Plan:
    """Plan the batches of one client.

    The order of an epoch sorts the examples by random words, of which the k-th example of positive weight gets
    the k-th, so examples of weight 0 neither appear nor change the order of the others. A batch is
    ``min(batch_size, n)`` examples; the last one of an epoch is shorter, or left out with ``drop_last`` unless it
    is the only one. If a step uses several batches, they wrap around into the next epoch.
    """
    present = np.flatnonzero(weight.numpy() > 0)
    n = len(present)
    if n == 0 or (amount.steps == 0 and amount.epochs == 0):
        return Plan([], 0)
    size = min(amount.batch_size or n, n)
    per_epoch = n // size if amount.drop_last else -(-n // size)
    steps = amount.steps or amount.epochs * -(-per_epoch // amount.per_step)
    needed = steps * amount.per_step
    batches: list[Tensor] = []
    epoch = 0
    while len(batches) < needed:
        words = rng.words((*key[:3], epoch, key[4]), n)
        order = torch.from_numpy(present[np.argsort(words, kind="stable")])
        batches.extend(order[start * size : (start + 1) * size] for start in range(per_epoch))
        epoch += 1
    last_steps = -(-per_epoch // amount.per_step)
    return Plan(batches[:needed], max(steps - last_steps, 0) * amount.per_step)


def take(table: Tensor, rows: Tensor) -> Tensor:
    """Gather rows of a table; images keep their channels-last memory."""
    if table.dim() == 4 and table.is_contiguous(memory_format=torch.channels_last):
        return table.permute(0, 2, 3, 1)[rows].movedim(-1, -3)
    return table[rows]


def gather(data: ExampleSet, positions: Tensor) -> Batch:
    """Return the batch of one client at the given positions of its example set."""
    rows = data.rows[positions]
    return Batch(take(data.x, rows), data.y[rows], data.weight[positions])
