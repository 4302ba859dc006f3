"""Batches: the examples of each step, shuffled by key in every epoch, the same in every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch, Training

_DIGIT = np.uint64(2**21)
"""A random word is three numbers: two of 21 bits for the shifts, and its highest bit for
mirroring."""


_PlainKey = tuple[int, int, int, int, int]
"""Seed, round, client, step and purpose."""


class Moving(NamedTuple):
    """The random moves of one client's images."""

    key: _PlainKey
    padding: int
    flip: bool

    def draw(self, epoch: int, count: int) -> Tensor:
        """Return moves (count, 3) of an epoch: pixels down, pixels right, and 1 where mirrored."""
        words = _epoch_words(self.key, epoch, count)

        # Two digits of each word choose among the shifts, and its highest bit mirrors.
        span = np.uint64(2 * self.padding + 1)
        first_digit = words % _DIGIT
        second_digit = (words >> np.uint64(21)) % _DIGIT
        down = first_digit * span // _DIGIT
        right = second_digit * span // _DIGIT
        mirrored = (words >> np.uint64(63)) * np.uint64(self.flip)

        # From 0..2 padding to -padding..padding.
        moves = np.stack([down, right, mirrored], 1).astype(np.int64)
        moves[:, :2] -= self.padding
        return torch.from_numpy(moves)


def _epoch_words(key: _PlainKey, epoch: int, count: int) -> np.ndarray:
    """Return the random words of an epoch, which takes the place of the step in the key."""
    seed, round_number, client, _, purpose = key
    return rng.words((seed, round_number, client, epoch, purpose), count)


def is_moved(training: Training, table: Tensor) -> bool:
    """Return whether training moves the examples of a table: only images can be moved."""
    return training.augments and table.dim() == 4


def moving(training: Training, table: Tensor, key: Key) -> Moving | None:
    """Return the random moves of a client's images; None if they are not moved."""
    if not is_moved(training, table):
        return None
    return Moving(rng.plain(key.fold("augment")), training.crop_padding, training.flip)


def move(images: Tensor, moves: Tensor) -> Tensor:
    """Move and mirror images (n, height, width, channels); pixels from outside are 0.

    Args:
        images: as stored.
        moves: (n, 3), as drawn, on the host.
    """
    count, height, width, channels = images.shape

    # A border of zeros, as wide as the largest move.
    border = int(moves[:, :2].abs().max()) if count else 0
    padded = F.pad(images, (0, 0, border, border, border, border))
    padded_height, padded_width = padded.shape[1:3]
    down, right, mirrored = moves.to(images.device)[:, :, None].unbind(1)  # (n, 1) each

    # Where each line and each column of the result comes from: (n, height) and (n, width).
    lines = torch.arange(height) - down + border
    across = torch.arange(width)
    across = torch.where(mirrored > 0, width - 1 - across, across)
    columns = across - right + border

    # The same as numbers in the list of all pixels, (n, height, width).
    first = torch.arange(count)[:, None, None] * (padded_height * padded_width)
    pixel_numbers = first + lines[:, :, None] * padded_width + columns[:, None, :]

    pixels = padded.view(-1, channels)
    return pixels.index_select(0, pixel_numbers.flatten()).view(images.shape)


class Amount(NamedTuple):
    """The amount of training in a phase."""

    epochs: int
    steps: int
    """Used in place of epochs if positive."""
    per_step: int
    """Batches that one step uses."""


class Plan(NamedTuple):
    """The batches of a phase: rows of the client's table, on the host."""

    batches: list[Tensor]
    last_epoch: int
    """First batch of the last epoch: of as many last steps as an epoch has."""
    moves: list[Tensor] | None = None
    """The moves of the images of each batch, (b, 3); None: images stay as they are."""

    def batch(self, number: int) -> tuple[Tensor, Tensor | None]:
        """Return the rows of a batch, and the moves of its images."""
        return self.batches[number], None if self.moves is None else self.moves[number]


def plan_batches(
    weight: Tensor,
    key: _PlainKey,
    training: Training,
    amount: Amount,
    moving: Moving | None = None,
) -> Plan:
    """Plan the batches of one client.

    An epoch sorts the examples by random words. The k-th example of positive weight gets the k-th
    word, so examples of weight 0 neither appear nor change the order of the others. The sizes of
    batches are those of :meth:`Training.batch_sizes`. If a step uses several batches, they wrap
    around into the next epoch.
    """
    present = np.flatnonzero(weight.numpy() > 0)
    n = len(present)
    if n == 0 or (amount.steps == 0 and amount.epochs == 0):
        return Plan([], 0)

    # How many batches an epoch has, and how many the phase needs.
    sizes = training.batch_sizes(n)
    used = sum(sizes)
    per_epoch = len(sizes)
    steps_per_epoch = _divide_up(per_epoch, amount.per_step)
    steps = amount.steps or amount.epochs * steps_per_epoch
    needed = steps * amount.per_step

    # Each epoch is shuffled, and split into batches of these sizes.
    batches: list[Tensor] = []
    moves: list[Tensor] = []
    for epoch in range(_divide_up(needed, per_epoch)):
        order = np.argsort(_epoch_words(key, epoch, n), kind="stable")[:used]
        rows = torch.from_numpy(present[order])
        batches.extend(rows.split_with_sizes(sizes))

        # Moves are drawn by example, and follow it into its batch.
        if moving is not None:
            drawn = moving.draw(epoch, n)[torch.from_numpy(order)]
            moves.extend(drawn.split_with_sizes(sizes))

    first_of_last_epoch = max(steps - steps_per_epoch, 0) * amount.per_step
    needed_moves = moves[:needed] if moving is not None else None
    return Plan(batches[:needed], first_of_last_epoch, needed_moves)


def draw_batches(
    weight: Tensor,
    key: _PlainKey,
    training: Training,
    amount: Amount,
    moving: Moving | None = None,
) -> Plan:
    """Plan batches of which every example is part with the same probability, independently.

    The probability is that of an example in one batch of an epoch; batches vary in size, and may be
    empty. The k-th example of positive weight gets the k-th word of every step.
    """
    present = np.flatnonzero(weight.numpy() > 0)
    n = len(present)
    if n == 0:
        return Plan([], 0)

    steps = amount.steps or amount.epochs * len(training.batch_sizes(n))
    rate = min(training.batch_size or n, n) / n
    batches = []
    moves = []
    for step in range(steps):
        chosen = np.flatnonzero(rng.to_unit(_epoch_words(key, step, n)) < rate)
        batches.append(torch.from_numpy(present[chosen]))
        if moving is not None:
            moves.append(moving.draw(step, n)[torch.from_numpy(chosen)])

    return Plan(batches, 0, moves if moving is not None else None)


def _divide_up(number: int, divisor: int) -> int:
    return -(-number // divisor)


_MOST_NUMBERS = 2**24
"""Numbers of a client's examples that are normalized at once, before the first step: 64 MiB."""


def take(x: Tensor, positions: Tensor, moves: Tensor | None = None) -> Tensor:
    """Gather examples (...); ``moves`` move images, whose memory stays channels-last."""
    if x.dim() < 4:
        # several times as fast as ``x[positions]``
        rows = x.index_select(0, positions.flatten())
        return rows.view(*positions.shape, *x.shape[1:])

    # A view of channels-last memory: whole images are copied fastest.
    _, channels, height, width = x.shape
    flat = x.permute(0, 2, 3, 1).flatten(1)  # (examples, height * width * channels)
    images = flat.index_select(0, positions.flatten()).view(-1, height, width, channels)
    if moves is not None:
        images = move(images, moves.flatten(0, -2))

    images = images.view(*positions.shape, height, width, channels)
    return images.movedim(-1, -3)


def to_values(stored: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Normalize images gathered from a table; return other values as they are.

    Args:
        stored: (..., channels, height, width), channels last in memory; or anything with fewer than
            four axes.
        scale: white, mean and deviation, (3, channels or 1), or ``UNSCALED``.
        dtype: of the result.
    """
    if stored.dim() < 4 or scale.shape[1] == 0:
        return stored

    images = stored.movedim(-3, -1)  # (..., height, width, channels), a view
    height, width = images.shape[-3:-1]

    # Scales as long as a whole image are much faster than one value per channel.
    repeats = height * width if scale.shape[1] > 1 else 1
    white, mean, deviation = scale.repeat(1, repeats)

    # In place: what was gathered is a copy, so the table does not change.
    values = images.flatten(-3).to(dtype)
    values.div_(white).sub_(mean).div_(deviation)
    return values.view(images.shape).movedim(-1, -3)


class Batches:
    """The batches of one client's phase. Work that all of them share is done once."""

    def __init__(self, data: ExampleSet, plan: Plan) -> None:
        positions = data.positions
        self.x = data.x
        self.scale = data.scale
        self.class_weight = class_weight_of(data.class_weight)
        self.normalized: Tensor | None = None
        """The client's images as rows of numbers, if they are normalized before the first step."""

        if _normalize_first(data, plan):
            self.x = to_values(take(data.x, positions), data.scale, data.weight.dtype)
            self.normalized = self.x.permute(0, 2, 3, 1).flatten(1)
            positions = torch.arange(len(positions))

        self.columns = _split_columns(data, positions, plan.batches)
        self.moves: Sequence[Tensor | None] = plan.moves or [None] * len(plan.batches)

    def __getitem__(self, number: int) -> Batch:
        positions, labels, weight = self.columns[number]
        if self.normalized is None:
            stored = take(self.x, positions, self.moves[number])
            values = to_values(stored, self.scale, weight.dtype)
            return Batch(values, labels, weight, self.class_weight)

        _, channels, height, width = self.x.shape
        images = self.normalized.index_select(0, positions).view(-1, height, width, channels)
        return Batch(images.permute(0, 3, 1, 2), labels, weight, self.class_weight)


def _split_columns(
    data: ExampleSet, positions: Tensor, batches: list[Tensor]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return positions, labels and weights of every batch.

    Args:
        data: the client's table.
        positions: (n,), where the inputs of its rows are.
        batches: rows (b,) each, planned.
    """
    if not batches:
        return []

    # One gather for all batches, which are then views.
    rows = torch.cat(batches).to(positions.device)
    sizes = [len(batch) for batch in batches]
    position_parts = torch.split(positions[rows], sizes)
    label_parts = torch.split(data.labels()[rows], sizes)

    # Copies are aligned alike; the bits of a sum depend on the alignment.
    weight_parts = torch.split(data.weight[rows], sizes)
    weights = [part.clone() for part in weight_parts]
    return list(zip(position_parts, label_parts, weights, strict=True))


def _normalize_first(data: ExampleSet, plan: Plan) -> bool:
    """Return whether to normalize all images before the first step.

    That pays if each is used about once or more, and if they fit into memory.
    """
    if data.x.dim() != 4 or data.scale.shape[1] == 0 or len(data.x) == 0:
        return False
    if plan.moves is not None:
        return False

    used = sum(len(batch) for batch in plan.batches)
    numbers = len(data.positions) * data.x[0].numel()
    return used >= len(data.positions) and numbers <= _MOST_NUMBERS


def gather(data: ExampleSet, rows: Tensor, moves: Tensor | None = None) -> Batch:
    """Return a batch of one client: the given rows of its table."""
    positions = data.positions[rows]
    weight = data.weight[rows]
    values = to_values(take(data.x, positions, moves), data.scale, weight.dtype)
    return Batch(values, data.y[positions], weight, class_weight_of(data.class_weight))


def class_weight_of(column: Tensor) -> Tensor | tuple[()]:
    """Return the class weights of examples as a batch holds them: () where there are none."""
    return column if column.shape[-1] else ()
