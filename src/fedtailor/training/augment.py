"""Augmentation of images: shifts and mirroring, drawn by key for every example and epoch.

Images are moved when they are gathered from the table. So 8-bit images are never copied as floats
in between, and the pixels that come in at the border are black whatever the normalization.
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

_DIGIT = np.uint64(2**21)
"""A random word is three numbers: two of 21 bits for the shifts, and its highest bit for
mirroring."""


class Moving(NamedTuple):
    """The random moves of one client's images."""

    key: tuple[int, int, int, int, int]
    padding: int
    flip: bool

    def draw(self, epoch: int, count: int) -> Tensor:
        """Return moves (count, 3) of an epoch: pixels down, pixels right, and 1 where mirrored."""
        words = rng.words((*self.key[:3], epoch, self.key[4]), count)
        span = np.uint64(2 * self.padding + 1)
        down = (words % _DIGIT) * span // _DIGIT
        right = ((words >> np.uint64(21)) % _DIGIT) * span // _DIGIT
        mirrored = (words >> np.uint64(63)) * np.uint64(self.flip)
        moves = np.stack([down, right, mirrored], 1).astype(np.int64)
        moves[:, :2] -= self.padding
        return torch.from_numpy(moves)


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
    border = int(moves[:, :2].abs().max()) if count else 0
    padded = F.pad(images, (0, 0, border, border, border, border))
    down, right, mirrored = moves.to(images.device)[:, :, None].unbind(1)  # (n, 1) each

    # Where each line and each column of the result comes from: (n, height) and (n, width).
    across = torch.arange(width)
    lines = torch.arange(height) - down + border
    columns = torch.where(mirrored > 0, width - 1 - across, across) - right + border

    # The same as places in the list of all pixels, (n, height, width).
    first = torch.arange(count)[:, None, None] * (padded.shape[1] * padded.shape[2])
    places = first + lines[:, :, None] * padded.shape[2] + columns[:, None, :]

    return padded.view(-1, channels).index_select(0, places.flatten()).view(images.shape)
