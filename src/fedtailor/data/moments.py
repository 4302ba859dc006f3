"""Mean and deviation over many sites: each computes its own, and the server merges them.

The merged values are those of all examples at once but for rounding (Chan, Golub and LeVeque 1979,
"Updating formulae and a pairwise algorithm for computing sample variances"). A simulation computes
them the same way, client by client, so its bits are those of sites that keep their examples to
themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from fedtailor.data.columns import LARGEST_NUMBER, MAX_VALUES, require, require_object
from fedtailor.data.dataset import Normalization

LEAST_ROWS = 10
"""The fewest training examples, and the fewest cells with a value of a column, of which a real site
tells moments and medians. The mean of one example is the example, and mean and deviation of two
give both. Those of ten give no single one, unless others are known; a median can still be the cell
of an example, but does not say of which. A simulation merges all clients, however small."""
_CHUNK = 2**22
"""Numbers of which moments are computed at once."""
_SMALLEST_DEVIATION = 1e-12
"""A feature that varies less is constant."""


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Count, mean and squared deviations of every feature or channel."""

    count: int
    """Values of each feature: examples, times pixels."""
    mean: np.ndarray  # (features,), float64; 0 if there are no values
    squares: np.ndarray  # (features,), float64
    """Sums of the squared differences from the mean."""

    def to_record(self) -> dict[str, Any]:
        """Return the moments as an object for JSON, which keeps every bit."""
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @classmethod
    def from_record(cls, record: Any, width: int) -> ColumnMoments:
        """Return the moments that :meth:`to_record` wrote.

        Args:
            record: from anyone.
            width: number of features or channels.

        Raises:
            DataError: it is not such a record, or holds impossible numbers.
        """
        allowed = "an object with count, mean and squares"
        require_object(record, {"count", "mean", "squares"}, "moments", allowed)
        count = record["count"]
        is_count = type(count) is int and 0 <= count <= MAX_VALUES
        require(is_count, "count of moments", f"a whole number from 0 to {MAX_VALUES}", count)

        largest = LARGEST_NUMBER if count else 0.0
        mean = _numbers("mean", record["mean"], width, -largest, largest)
        squares = _numbers("squares", record["squares"], width, 0.0, count * (2 * largest) ** 2)
        return cls(count, mean, squares)


def moments_of(x: np.ndarray, positions: np.ndarray) -> ColumnMoments:
    """Return the moments of some examples.

    Their bits depend on these examples and on their order in ``x`` only, not on the other examples
    there.

    Args:
        x: all examples, (n, features) or (n, height, width, channels).
        positions: of those that count, in any order.
    """
    width = x.shape[-1]
    # In a fixed order and in chunks of fixed size, so that the bits are fixed.
    ordered = np.sort(positions)
    step = max(_CHUNK // max(math.prod(x.shape[1:]), 1), 1)
    parts = [
        _moments(x[ordered[start : start + step]].reshape(-1, width))
        for start in range(0, len(ordered), step)
    ]
    return merge_moments(parts) if parts else ColumnMoments(0, np.zeros(width), np.zeros(width))


def _moments(values: np.ndarray) -> ColumnMoments:
    """Return the moments of at least one row of values (rows, features)."""
    offset = values[0].astype(np.float64)  # which makes those of a constant feature exact
    shifted = values.astype(np.float64)
    shifted -= offset
    center = shifted.sum(0) / len(shifted)
    shifted -= center
    np.square(shifted, out=shifted)
    return ColumnMoments(len(shifted), offset + center, shifted.sum(0))


def merge_moments(parts: Sequence[ColumnMoments]) -> ColumnMoments:
    """Merge the moments of sites, one or more, in the order of client ids."""
    return reduce(_merged, parts)


def _merged(first: ColumnMoments, second: ColumnMoments) -> ColumnMoments:
    if second.count == 0:
        return first
    if first.count == 0:
        return second

    # The updating formula of Chan, Golub and LeVeque, see above.
    count = first.count + second.count
    step = second.mean - first.mean
    mean = first.mean + step * (second.count / count)
    between = step**2 * (first.count * (second.count / count))

    return ColumnMoments(count, mean, first.squares + second.squares + between)


def normalization_of(moments: ColumnMoments, white: float) -> Normalization:
    """Return mean and standard deviation of values that are scaled by ``white``.

    A constant feature gets the deviation 1.

    Args:
        moments: of at least one example.
        white: see :attr:`fedtailor.data.dataset.Dataset.white`.
    """
    deviation = np.sqrt(moments.squares / moments.count) / white
    deviation = np.where(deviation > _SMALLEST_DEVIATION, deviation, 1.0)
    mean = moments.mean / white
    return Normalization(tuple(map(float, mean)), tuple(map(float, deviation)))


def _numbers(what: str, values: Any, width: int, low: float, high: float) -> np.ndarray:
    """Return a list of JSON as numbers (width,), if all are within the range.

    Raises:
        DataError: they are not.
    """
    what = f"{what} of moments"
    allowed = f"{width} numbers from {low:g} to {high:g}"
    require(type(values) is list and len(values) == width, what, allowed, values)
    for value in values:
        is_allowed = type(value) in (int, float) and low <= value <= high
        require(is_allowed, what, allowed, value)

    return np.array(values, dtype=np.float64)
