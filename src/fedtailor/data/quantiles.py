"""Quantiles of the values of all sites, from counts, and the knots that ``data.numbers`` makes.

No site sends a value.

All 32-bit floats in their order are divided into intervals, the same for all data. Sites count
their values in each, and the counts add up. Where an interval holds many values and a quantile, the
next exchange divides it further. Counts are whole numbers, so the quantiles have the same bits
for any number and order of sites, and a sum of encrypted counts would do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fedtailor.data.columns import (
    LARGEST_NUMBER,
    MAX_VALUES,
    Column,
    Columns,
    RawTable,
    require,
    require_object,
)

_BITS = (12, 10, 10)
"""Of the 32 bits of a number, how many each exchange resolves: 4,096 intervals, of which the later
ones divide some in 1,024 parts."""

FIRST_INTERVALS = 2 ** _BITS[0]
"""Of the first exchange."""
_ORDER_BITS = sum(_BITS)

RANK_ERROR = 0.004
"""An interval is divided further only if it holds more than this share of all values."""

Request = Mapping[str, Sequence[int]]
"""For every column, the intervals of the exchange before that are divided now."""


class Counts(NamedTuple):
    """How many values lie in the parts of intervals; parts without values are left out."""

    parts: np.ndarray  # (parts,), int64, ascending
    """Number of the part: those of the first interval of the request come first."""
    counts: np.ndarray  # (parts,), int64

    def to_record(self) -> dict[str, list[int]]:
        """Return the counts as an object for JSON."""
        return {"parts": self.parts.tolist(), "counts": self.counts.tolist()}


Ask = Callable[[int, Request], Mapping[str, Sequence[Counts]]]
"""Asks all sites, with the number of the exchange; returns by column the counts of every site."""


def ordered(values: np.ndarray) -> np.ndarray:
    """Return whole numbers from 0 to 2**32 - 1 in the order of 32-bit floats; -0 is 0.

    Example:
        >>> keys = ordered(np.array([-1.5, -0.0, 0.0, 2.0], dtype=np.float32))
        >>> [hex(key) for key in keys]
        ['0x403fffff', '0x80000000', '0x80000000', '0xc0000000']
    """
    bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)
    is_negative = bits >= 2**31
    return np.where(is_negative, ~bits, bits | np.uint32(2**31)).astype(np.int64)


def _number(key: float) -> float:
    """Return the number that :func:`ordered` puts at a position, at most the largest one."""
    bits = np.uint32(int(key))
    is_negative = bits < 2**31
    number = np.where(is_negative, ~bits, bits & np.uint32(2**31 - 1)).view(np.float32)
    return float(np.nan_to_num(number, nan=LARGEST_NUMBER, posinf=LARGEST_NUMBER))


def count_cells(
    x: np.ndarray, raw: RawTable, positions: np.ndarray, exchange: int, request: Request
) -> dict[str, Counts]:
    """Return how many cells of some examples lie in the intervals of every column.

    Args:
        x: a table as it was read (rows, columns).
        raw: its columns.
        positions: of training examples.
        exchange: its number, from 0.
        request: what the server asks for.

    Raises:
        DataError: a column is not there, or the exchange is impossible.
    """
    _check_exchange(exchange)
    index_of = {}
    for index, column in enumerate(raw.columns):
        if not column.texts:  # a column of text has codes, which are not numbers
            index_of[column.name] = index

    below = _ORDER_BITS - sum(_BITS[: exchange + 1])
    counts = {}
    for name, intervals in request.items():
        require(name in index_of, "a column of the request", "one of numbers in the table", name)
        cells = x[positions, index_of[name]]
        parts = ordered(cells[~np.isnan(cells)]) >> below

        # The interval of each value, and which of the requested ones it is.
        chosen = np.asarray(intervals, dtype=np.int64)
        parents = parts >> _BITS[exchange]
        position = np.searchsorted(chosen, parents)
        is_asked = np.isin(parents, chosen)
        local = parts & (2 ** _BITS[exchange] - 1)
        numbers = (position << _BITS[exchange]) + local
        counts[name] = Counts(*np.unique(numbers[is_asked], return_counts=True))

    return counts


def read_counts(record: Any, exchange: int, request: Request) -> dict[str, Counts]:
    """Return the counts of a site, from a record of :meth:`Counts.to_record` by column.

    Args:
        record: from anyone.
        exchange: its number.
        request: what was asked.

    Raises:
        DataError: it is not such a record, or holds impossible numbers.
    """
    what = "counts of columns"
    require_object(record, set(request), what, "an object with the columns of the request")
    counts = {}
    for name, entry in record.items():
        title = f"counts of column {name!r}"
        require_object(entry, {"parts", "counts"}, title, "an object with parts and counts")
        parts = _whole_numbers(title, entry["parts"], len(request[name]) << _BITS[exchange])
        numbers = _whole_numbers(title, entry["counts"], MAX_VALUES)
        are_different = len(parts) == len(numbers) and bool((np.diff(parts) > 0).all())
        require(are_different, title, "ascending parts, with as many counts", entry)
        counts[name] = Counts(parts, numbers)

    return counts


def read_request(exchange: Any, record: Any) -> tuple[int, Request]:
    """Return the number of an exchange and the intervals that are asked for in it.

    Args:
        exchange: from anyone.
        record: from anyone.

    Raises:
        DataError: it is not such a request.
    """
    what = "the columns of a request"
    _check_exchange(exchange)
    require(type(record) is dict, what, "an object with intervals by column", record)
    limit = 1 << sum(_BITS[:exchange])
    for intervals in record.values():
        numbers = _whole_numbers(what, intervals, limit)
        require(bool((np.diff(numbers) > 0).all()), what, "ascending intervals", intervals)

    return exchange, dict(record)


def _check_exchange(exchange: Any) -> None:
    is_one = type(exchange) is int and exchange in range(len(_BITS))
    require(is_one, "the exchange", f"0 to {len(_BITS) - 1}", exchange)


def _whole_numbers(what: str, values: Any, limit: int) -> np.ndarray:
    """Return a list of JSON as whole numbers from 0 to below a limit."""
    allowed = f"a list of whole numbers from 0 to {limit - 1}"
    require(type(values) is list, what, allowed, values)
    for value in values:
        require(type(value) is int and 0 <= value < limit, what, allowed, value)

    return np.array(values, dtype=np.int64)


def find_quantiles(
    names: Sequence[str], levels: Callable[[int], np.ndarray], ask: Ask
) -> dict[str, np.ndarray]:
    """Return quantiles of columns of numbers.

    A quantile is on the line through the counted shares at the ends of intervals. Where an interval
    holds one number alone, it is this number.

    Args:
        names: of the columns.
        levels: takes how many values a column has, and returns the quantiles that are wanted, as
            ascending shares from 0 to 1.
        ask: asks the sites.

    Returns:
        By name of the column, a quantile for each level (levels,), ascending; a column without
        values is left out.
    """
    searches = {name: _Search(levels) for name in names}
    request: dict[str, list[int]] = {name: [0] for name in names}
    for exchange in range(len(_BITS)):
        counts = ask(exchange, request)
        for name, intervals in request.items():
            searches[name].divide(intervals, counts[name], exchange)

        # Only columns with intervals that hold too much are asked for again.
        request = {name: searches[name].too_full() for name in request}
        request = {name: intervals for name, intervals in request.items() if intervals}
        if not request:
            break

    return {name: search.quantiles() for name, search in searches.items() if search.total}


class _Search:
    """The intervals of one column that hold values, ascending, each with its count."""

    def __init__(self, levels: Callable[[int], np.ndarray]) -> None:
        self._levels = levels
        self._starts = np.zeros(1, dtype=np.int64)
        self._sizes = np.full(1, 2**_ORDER_BITS, dtype=np.int64)
        self._counts = np.zeros(1, dtype=np.int64)
        self._bits = 0
        """Resolved by the exchanges so far."""

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    def divide(self, intervals: Sequence[int], sites: Sequence[Counts], exchange: int) -> None:
        """Put the counted parts in place of the intervals that were asked for."""
        bits = _BITS[exchange]
        totals = np.zeros(len(intervals) << bits, dtype=np.int64)
        for site in sites:
            totals[site.parts] += site.counts

        parts = np.flatnonzero(totals)
        parents = np.array(intervals, dtype=np.int64)[parts >> bits]
        below = _ORDER_BITS - self._bits - bits
        starts = ((parents << bits) + (parts & (2**bits - 1))) << below

        divided = np.array(intervals, dtype=np.int64) << (below + bits)
        stays = ~(np.isin(self._starts, divided) & (self._sizes == 1 << (below + bits)))
        sizes = np.full(len(parts), 1 << below, dtype=np.int64)
        starts = np.concatenate([self._starts[stays], starts])
        order = np.argsort(starts)
        self._starts = starts[order]
        self._sizes = np.concatenate([self._sizes[stays], sizes])[order]
        self._counts = np.concatenate([self._counts[stays], totals[parts]])[order]
        self._bits += bits

    def too_full(self) -> list[int]:
        """Return the intervals of the last exchange with a quantile and too many values."""
        if not self.total or self._bits == _ORDER_BITS:
            return []

        size = 1 << (_ORDER_BITS - self._bits)
        is_full = (self._counts > RANK_ERROR * self.total) & (self._sizes == size)
        holds = np.zeros(len(self._starts), dtype=bool)
        holds[self._intervals()] = True
        intervals: list[int] = (self._starts[is_full & holds] // size).tolist()
        return intervals

    def quantiles(self) -> np.ndarray:
        """Return the quantiles (levels,), as 32-bit floats."""
        ranks = self._levels(self.total) * self.total
        ends = np.cumsum(self._counts)
        values = []
        for rank, index in zip(ranks, self._intervals(), strict=True):
            low = _number(self._starts[index])
            high = low
            if self._sizes[index] > 1:
                high = _number(self._starts[index] + self._sizes[index])

            share = 1 - (ends[index] - rank) / self._counts[index]
            values.append(low + (high - low) * min(max(share, 0.0), 1.0))

        return np.maximum.accumulate(np.array(values)).astype(np.float32)

    def _intervals(self) -> np.ndarray:
        """Return the interval of each quantile."""
        ends = np.cumsum(self._counts)
        ranks = self._levels(self.total) * self.total
        return np.minimum(np.searchsorted(ends, ranks), len(ends) - 1)


Numbers = Literal["standard", "bins", "quantile"]

_FEW_VALUES = 2000
"""Columns with fewer get the smaller number of bins."""
_NORMAL_SCORES = np.linspace(-2.5, 2.5, 21)
"""Of the knots of ``quantile``; beyond the last ones, where 0.6 % of all values are, it is flat."""


def bin_levels(count: int) -> np.ndarray:
    """Return the shares at the ends of the bins of a column with so many values.

    Example:
        >>> bin_levels(300).tolist(), len(bin_levels(5000))
        ([0.0, 0.25, 0.5, 0.75, 1.0], 9)
    """
    bins = 4 if count < _FEW_VALUES else 8
    return np.linspace(0.0, 1.0, bins + 1)


def score_levels(count: int) -> np.ndarray:
    """Return the shares of a normal distribution below its scores, for any number of values."""
    return np.array([(1 + math.erf(score / math.sqrt(2))) / 2 for score in _NORMAL_SCORES])


def with_knots(columns: Columns, numbers: Numbers, ask: Ask) -> Columns:
    """Return the columns with the knots that ``data.numbers`` asks for.

    A column with few different values has fewer knots, because some of its quantiles are equal. A
    column with one value has none.

    Args:
        columns: with columns of numbers that have no knots.
        numbers: ``bins`` puts a knot at each end of a bin, with as many values in each bin;
            ``quantile`` gives each knot the normal score of its rank; ``standard`` adds no knots.
        ask: asks the sites for counts.
    """
    names = [column.name for column in columns.columns if column.kind == "number"]
    if numbers == "standard" or not names:
        return columns

    levels: Callable[[int], np.ndarray] = bin_levels if numbers == "bins" else score_levels
    quantiles = find_quantiles(names, levels, ask)
    changed = []
    for column in columns.columns:
        knots = quantiles.get(column.name)
        if knots is not None and knots[0] < knots[-1]:
            column = _with_knots(column, knots, numbers)
        changed.append(column)

    return dataclasses.replace(columns, columns=tuple(changed))


def _with_knots(column: Column, quantiles: np.ndarray, numbers: Numbers) -> Column:
    """Return a column with quantiles as knots; equal ones are one knot."""
    knots, knot_of = np.unique(quantiles, return_inverse=True)
    scores: tuple[float, ...] = ()
    if numbers == "quantile":
        # The score of a value that many examples have is the middle of theirs.
        sums = np.bincount(knot_of, weights=_NORMAL_SCORES)
        scores = tuple((sums / np.bincount(knot_of)).tolist())

    return dataclasses.replace(column, knots=tuple(knots.tolist()), scores=scores)
