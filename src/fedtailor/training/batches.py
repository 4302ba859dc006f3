"""Which examples a client sees in which step: shuffled per epoch by key, the same in every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.federation import ExampleSet
from fedtailor.core.task import Batch
from fedtailor.training.augment import Moving, move


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
    moves: list[Tensor] | None = None
    """How the images of each batch are moved, (b, 3); None: they are not."""

    def batch(self, number: int) -> tuple[Tensor, Tensor | None]:
        """Return the positions of a batch, and how its images are moved."""
        return self.batches[number], None if self.moves is None else self.moves[number]


def plan_batches(
    weight: Tensor, key: tuple[int, int, int, int, int], amount: Amount, moving: Moving | None = None
) -> Plan:
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
    moves: list[Tensor] = []
    for epoch in range(-(-needed // per_epoch)):
        words = rng.words((*key[:3], epoch, key[4]), n)
        order = np.argsort(words, kind="stable")
        batches.extend(torch.split(torch.from_numpy(present[order]), size)[:per_epoch])
        if moving is not None:
            drawn = moving.draw(epoch, n)[torch.from_numpy(order)]
            moves.extend(torch.split(drawn, size)[:per_epoch])
    last_steps = -(-per_epoch // amount.per_step)
    last_epoch = max(steps - last_steps, 0) * amount.per_step
    return Plan(batches[:needed], last_epoch, moves[:needed] if moving is not None else None)


_MOST_NUMBERS = 2**24
"""Numbers of a client's examples that are normalized at once, before the first step: 64 MiB."""


def take(table: Tensor, rows: Tensor, moves: Tensor | None = None) -> Tensor:
    """Gather rows (...) of a table; images keep their channels-last memory, and are moved if asked to."""
    if table.dim() < 4:
        return table[rows]
    flat = table.permute(0, 2, 3, 1).flatten(1)  # a view of channels-last memory; whole rows are copied fastest
    picked = flat.index_select(0, rows.flatten()).view(-1, *table.shape[2:], table.shape[1])
    if moves is not None:
        picked = move(picked, moves.flatten(0, -2))
    return picked.view(*rows.shape, *picked.shape[1:]).movedim(-1, -3)


def to_values(stored: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Normalize what was gathered from a table of images; other values are returned as they are.

    Args:
        stored: (..., channels, height, width), channels last in memory, or anything of fewer axes than four.
        scale: white, mean and deviation, (3, channels or 1), or ``UNSCALED``.
        dtype: of the result.
    """
    if stored.dim() < 4 or scale.shape[1] == 0:
        return stored
    images = stored.movedim(-3, -1)
    repeats = images.shape[-3] * images.shape[-2] if scale.shape[1] > 1 else 1
    white, mean, deviation = scale.repeat(1, repeats)  # a whole image long: much faster than one value per channel
    values = images.flatten(-3).to(dtype).div_(white).sub_(mean).div_(deviation)
    return values.view(images.shape).movedim(-1, -3)


class Batches:
    """The batches of one client's phase; what is the same for all of them is done once."""

    def __init__(self, data: ExampleSet, plan: Plan) -> None:
        rows, labels, self.x, self.scale = data.rows, data.labels(), data.x, data.scale
        sizes = [len(batch) for batch in plan.batches]
        numbers = len(rows) * data.x[0].numel() if len(data.x) else 0
        scaled = data.x.dim() == 4 and data.scale.shape[1] > 0
        if scaled and plan.moves is None and sum(sizes) >= len(rows) and numbers <= _MOST_NUMBERS:
            self.x = to_values(take(data.x, rows), data.scale, data.weight.dtype)
            rows = torch.arange(len(rows))
        self.whole = self.x.permute(0, 2, 3, 1).flatten(1) if self.x is not data.x else None
        positions = torch.cat(plan.batches) if plan.batches else rows[:0]
        row_parts, label_parts, parts = (
            torch.split(column, sizes or [0]) for column in (rows[positions], labels[positions], data.weight[positions])
        )
        weights = [part.clone() for part in parts]  # sums depend on how memory is aligned: the same for every batch
        self.columns = list(zip(row_parts, label_parts, weights, strict=True)) if sizes else []
        self.moves: Sequence[Tensor | None] = plan.moves or [None] * len(sizes)

    def __getitem__(self, number: int) -> Batch:
        rows, labels, weight = self.columns[number]
        if self.whole is not None:
            _, channels, height, width = self.x.shape
            images = self.whole.index_select(0, rows).view(-1, height, width, channels)
            return Batch(images.permute(0, 3, 1, 2), labels, weight)
        return Batch(to_values(take(self.x, rows, self.moves[number]), self.scale, weight.dtype), labels, weight)


def gather(data: ExampleSet, positions: Tensor, moves: Tensor | None = None) -> Batch:
    """Return the batch of one client at the given positions of its example set."""
    rows, weight = data.rows[positions], data.weight[positions]
    return Batch(to_values(take(data.x, rows, moves), data.scale, weight.dtype), data.y[rows], weight)
