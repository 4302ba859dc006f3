"""The input of a corruption (images, their random numbers, pictures of frost), and the conversion
back to bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

WHITE = 255.0
"""The largest value of a pixel; parameters of corruptions are for values in [0, 1]."""

_ROUNDING = 1e-6  # of a gray level: far above the rounding errors of float64, and invisible


class Draws:
    """The random numbers of some images: one stream per image, which depends only on seed, purpose
    and row.

    The generator is Philox (Salmon et al. 2011, SC), keyed by seed and purpose; the row is part of
    its counter.

    Args:
        seed: any whole number.
        purpose: the use of the numbers, such as ``frost-3``.
        rows: (n,), positions in the data set, not negative.
    """

    def __init__(self, seed: int, purpose: str, rows: np.ndarray) -> None:
        digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
        self._key = int.from_bytes(digest, "little")
        self._rows = rows

    def __iter__(self) -> Iterator[np.random.Generator]:
        """Yield the generator of each image in turn; it is valid until the next one is yielded."""
        philox = np.random.Philox(key=self._key)
        generator = np.random.Generator(philox)
        state = philox.state
        for row in self._rows:
            state["state"]["counter"][:] = (0, 0, row, 0)
            philox.state = state  # about ten times as fast as a new generator
            yield generator

    def uniform(self, count: int) -> np.ndarray:
        """Return ``count`` numbers in [0, 1) for each image, (n, count), float64."""
        return np.stack([generator.random(count) for generator in self])


class Batch(NamedTuple):
    """Images that are corrupted together and do not influence each other."""

    images: np.ndarray  # (n, height, width, 1 or 3), uint8
    draws: Draws
    frost: Sequence[np.ndarray] = ()
    """Pictures of frost: (height, width, 3) of their own sizes, uint8."""


def to_bytes(values: np.ndarray) -> np.ndarray:
    """Clip gray levels (any shape, float64, overwritten) to 0..255 and truncate them to uint8, as
    CIFAR-S does.

    A level less than 1e-6 below a whole number counts as whole, so that the result does not depend
    on a machine's rounding or order of summation.
    """
    np.clip(values, 0.0, WHITE, out=values)
    values += _ROUNDING
    return values.astype(np.uint8)
