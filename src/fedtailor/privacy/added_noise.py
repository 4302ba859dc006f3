"""The noise that was really added to sums, part by part: a part is one tensor of one field.

Canaries spread over all numbers of an upload, so they do not show that a small part has no noise,
or that noise repeats from round to round (whoever subtracts two sums is rid of it then). An audit
that runs the code itself can look at the noise: over its claimed deviation, the square of every
number has mean 1, and so has the square of a sum over T rounds, divided by T.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import chdtr, chdtrc
from torch import Tensor

from fedtailor.core.message import Messages, num_scalars

_SIGNIFICANCE = 1e-4
"""With which right noise is called wrong, over all parts."""


class PartNoise(NamedTuple):
    """The noise of one part."""

    part: str
    """Field and path, such as ``model/layers.0.bias``."""
    share: float
    """Its deviation over the claimed one, in single rounds."""
    share_of_rounds: float
    """The same of its sum over all rounds: above 1 if it repeats, below 1 if rounds cancel."""
    is_too_small: bool
    """Whether the share cannot be chance."""
    repeats: bool
    """Whether the share of rounds cannot be chance."""


class AddedNoise:
    """The noise of all rounds so far."""

    def __init__(self, messages: Messages) -> None:
        """Begin without noise.

        Args:
            messages: the declaration of the method.
        """
        self.rounds = 0
        """How many were entered."""
        self._sums: dict[str, Tensor] = {}
        self._squares: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        """Independent numbers: of a covariance, those of the upper half."""
        for name, field in messages.items():
            for path, shape in field.leaf_shapes().items():
                self._sizes[f"{name}/{path}".rstrip("/")] = num_scalars(field.kind, shape)

    def see(self, noise: Mapping[str, Mapping[str, Tensor]], deviation: float) -> None:
        """Enter the noise of a round.

        Args:
            noise: by field and path.
            deviation: the claimed one.
        """
        self.rounds += 1
        for name, by_path in noise.items():
            for path, leaf in by_path.items():
                part = f"{name}/{path}".rstrip("/")
                standard = leaf / deviation
                self._squares[part] = self._squares.get(part, 0.0) + _square(standard)
                earlier = self._sums.get(part)
                self._sums[part] = standard if earlier is None else earlier + standard

    @property
    def share(self) -> float:
        """The deviation of all parts together over the claimed one, in single rounds."""
        size = sum(self._sizes[part] for part in self._squares)
        return float(np.sqrt(sum(self._squares.values()) / (size * self.rounds)))

    def parts(self) -> list[PartNoise]:
        """Return what was seen of every part, in the order of the declaration."""
        limit = _SIGNIFICANCE / (3 * max(1, len(self._squares)))
        parts = []
        for part, squares in self._squares.items():
            size = self._sizes[part]
            over_rounds = _square(self._sums[part]) / self.rounds
            chance = min(chdtr(size, over_rounds), chdtrc(size, over_rounds))
            parts.append(
                PartNoise(
                    part=part,
                    share=float(np.sqrt(squares / (size * self.rounds))),
                    share_of_rounds=float(np.sqrt(over_rounds / size)),
                    is_too_small=bool(chdtr(size * self.rounds, squares) < limit),
                    repeats=self.rounds > 1 and bool(chance < limit),
                )
            )

        return parts


def _square(leaf: Tensor) -> float:
    return float(leaf.square().sum())
