"""The knots of columns of numbers: what ``data.numbers`` makes of the quantiles of all sites."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from fedtailor.data.columns import Column, Columns
from fedtailor.data.quantiles import Ask, find_quantiles

Numbers = Literal["standard", "bins", "quantile"]

_FEW_VALUES = 2000
"""Columns with fewer get the smaller number of bins."""
_NORMAL_SCORES = np.linspace(-2.5, 2.5, 21)
"""Of the knots of ``quantile``; beyond the last ones, where 0.6 % of all values are, it is flat."""


def num_bins(count: int) -> int:
    """Return the number of bins of a column from its number of values.

    Example:
        >>> num_bins(300), num_bins(5000)
        (4, 8)
    """
    return 4 if count < _FEW_VALUES else 8


def _bin_levels(count: int) -> np.ndarray:
    return np.linspace(0.0, 1.0, num_bins(count) + 1)


def _score_levels(count: int) -> np.ndarray:
    """Return the shares of a normal distribution below the scores."""
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

    levels: Callable[[int], np.ndarray] = _bin_levels if numbers == "bins" else _score_levels
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
    knots, places = np.unique(quantiles, return_inverse=True)
    scores: tuple[float, ...] = ()
    if numbers == "quantile":
        # The score of a value that many examples have is the middle of theirs.
        sums = np.bincount(places, weights=_NORMAL_SCORES)
        scores = tuple((sums / np.bincount(places)).tolist())

    return dataclasses.replace(column, knots=tuple(knots.tolist()), scores=scores)
