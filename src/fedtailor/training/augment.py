"""Augmentation of images: moved by some pixels, mirrored; drawn by key for every example and epoch.

What is gathered from the table is already moved, so that 8-bit images are never copied as floats in between, and
what comes in from outside is black whatever the normalization.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
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


def is_moved(training: Training, table: Tensor) -> bool:
    """Return whether what is gathered from a table is moved: not unless it holds images."""
    return training.augments and table.dim() == 4


def moving(training: Training, table: Tensor, key: Key) -> Moving | None:
    """Return how a client's images are moved; None if they are not."""
    if not is_moved(training, table):
        return None
    return Moving(rng.plain(key.fold("augment")), training.crop_padding, training.flip)


def move(images: Tensor, moves: Tensor) -> Tensor:
    """Move and mirror images (n, height, width, channels); what comes in is 0.

    Args:
        images: as stored.
        moves: (n, 3), as drawn.
    """
    count, height, width, channels = images.shape
    border = int(moves[:, :2].abs().max()) if count else 0
    padded = F.pad(images, (0, 0, border, border, border, border))
    down, right, mirrored = moves[:, :, None].unbind(1)  # (n, 1) each
    across = torch.arange(width)
    lines = torch.arange(height) - down + border  # (n, height): where each line of the result comes from
    columns = torch.where(mirrored > 0, width - 1 - across, across) - right + border
    first = torch.arange(count)[:, None, None] * (padded.shape[1] * padded.shape[2])
    places = first + lines[:, :, None] * padded.shape[2] + columns[:, None, :]
    return padded.view(-1, channels).index_select(0, places.flatten()).view(images.shape)
