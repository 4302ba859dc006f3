"""Augmentation of images: moved by some pixels, mirrored; drawn by key for every example and epoch.

What is gathered from the table is already moved, so that 8-bit images are never copied as floats in between, and
what comes in from outside is black whatever the normalization.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.rng import Key
from fedtailor.core.task import Training


class Moving(NamedTuple):
    """How the images of one client are moved."""

    key: tuple[int, int, int, int, int]
    padding: int
    flip: bool

    def draw(self, epoch: int, count: int) -> Tensor:
        """Return moves (count, 3) of an epoch: pixels down, pixels to the right, and 1 where mirrored."""
        words = rng.words((*self.key[:3], epoch, self.key[4]), count)
        span = np.uint64(2 * self.padding + 1)
        columns = [((words >> np.uint64(shift)) % np.uint64(2**21)) * span // np.uint64(2**21) for shift in (0, 21)]
        mirrored = (words >> np.uint64(63)) * np.uint64(self.flip)
        moves = np.stack([*columns, mirrored], 1).astype(np.int64)
        moves[:, :2] -= self.padding
        return torch.from_numpy(moves)


def moving(training: Training, table: Tensor, key: Key) -> Moving | None:
    """Return how a client's images are moved; None if they are not, or if the table does not hold images."""
    if not (training.crop_padding or training.flip) or table.dim() < 4:
        return None
    return Moving(rng.plain(key.fold("augment")), training.crop_padding, training.flip)


def take_moved(table: Tensor, rows: Tensor, moves: Tensor) -> Tensor:
    """Gather moved images (..., channels, height, width) from a table (rows, channels, height, width).

    Args:
        table: images whose memory is laid out channels last.
        rows: which, (...).
        moves: their moves, (..., 3).
    """
    height, width = table.shape[2:]
    down, right, mirrored = (moves[..., axis, None] for axis in range(3))
    across = torch.arange(width).expand(*rows.shape, width)
    lines = torch.arange(height) - down  # (..., height), where each line of the result comes from
    columns = torch.where(mirrored > 0, width - 1 - across, across) - right
    picked = table.permute(0, 2, 3, 1)[
        rows[..., None, None], lines.clamp(0, height - 1)[..., None], columns.clamp(0, width - 1)[..., None, :]
    ]
    inside = _inside(lines, height)[..., None] & _inside(columns, width)[..., None, :]
    return (picked * inside[..., None]).movedim(-1, -3)


def _inside(positions: Tensor, length: int) -> Tensor:
    return (positions >= 0) & (positions < length)
