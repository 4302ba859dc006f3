"""Columns of numbers in another unit, found from their quantiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fedtailor.core.text import quoted
from fedtailor.data.columns import Column, Columns
from fedtailor.data.own.findings import Finding

FEWEST = 10
"""Fewest values of a site, and fewest different ones of a column, from which something is told."""

_LEVELS = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
"""Of the quantiles that are compared."""
_NORMAL_SCORES = np.array([-1.2816, -0.6745, 0.0, 0.6745, 1.2816])
"""The quantiles of a standard normal distribution at these levels."""

_FACTORS = {
    10.0: "such as cm and mm",
    18.0: "such as mg/dl and mmol/l of glucose",
    38.67: "such as mg/dl and mmol/l of cholesterol",
    88.4: "such as umol/l and mg/dl of creatinine",
    1000.0: "such as g and mg",
}
"""Factors between the usual units."""

_NEAR = 1.3
"""The medians of two sites may differ by this factor beside their units."""
_SPREADS_NEAR = 1.7
"""The same of the distances of their quartiles."""
_ROUGH_SPREADS_NEAR = 3.0
"""The same for training, of which the spread is known roughly: a few values far away make a
standard deviation large."""
_LEVELS_OF_BINS = (5, 9)
"""Numbers of knots without scores that are at shares as far apart; others had equal ones."""


def find_units(name: str, filled: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Yield every site whose values are those of the others times a factor between units.

    Args:
        name: of the column.
        filled: the values of each site, none of them missing.
    """
    quantiles = {}
    for site, cells in filled.items():
        found = _quantiles(cells)
        if found is not None:
            quantiles[site] = found

    for site, here in quantiles.items():
        others = [other for name, other in quantiles.items() if name != site]
        factors = [_factor_between(here, other) for other in others]
        named = [factor for factor in factors if factor is not None]

        # The odd one is that which differs from most others.
        if 2 * len(named) <= len(others):
            continue

        median = here[2]
        elsewhere = float(np.median([other[2] for other in others]))
        message = (
            f"Column {quoted(name)} is {_ratio(median, elsewhere)} at {quoted(site)} (median "
            f"{median:.4g}) as elsewhere (median {elsewhere:.4g}): another unit, "
            f"{_FACTORS[named[0]]}? If so, convert it there."
        )
        yield Finding("unit_differs", message)
        # Of two sites, either may be the one to convert.
        if len(quantiles) == 2:
            return


def compare_with_training(name: str, cells: np.ndarray, there: np.ndarray) -> Iterator[Finding]:
    """Yield that a column has the values of training times a factor between units, if it has.

    Args:
        name: of the column.
        cells: its values (rows,), NaN for an empty cell.
        there: its quantiles in training (5,), see :func:`quantiles_in_training`.
    """
    here = _quantiles(cells[~np.isnan(cells)])
    factor = None if here is None else _factor_between(here, there, _ROUGH_SPREADS_NEAR)
    if here is not None and factor is not None:
        message = (
            f"Column {quoted(name)} is {_ratio(here[2], there[2])} here (median {here[2]:.4g}) as "
            f"in training (median {there[2]:.4g}): another unit, {_FACTORS[factor]}? If so, "
            "convert it."
        )
        yield Finding("unit_differs", message)


def quantiles_in_training(columns: Columns, std: np.ndarray) -> dict[str, np.ndarray]:
    """Return about which quantiles (5,) the columns of numbers had in training, by name.

    A model keeps no examples. Knots are quantiles; without them, the median and the standard
    deviation stand for a normal distribution.

    Args:
        columns: of the data in training.
        std: by which features are divided (features,), or one for all, which says nothing here.
    """
    usual = {}
    start = 0
    has_each = len(std) == len(columns.feature_names)
    for column in columns.columns:
        # Features that are not normalized are divided by 1.
        deviation = float(std[start]) if has_each and std[start] != 1 else 0.0
        start += column.width
        if column.kind == "number":
            usual[column.name] = _quantiles_of_column(column, deviation)

    return usual


def _quantiles_of_column(column: Column, deviation: float) -> np.ndarray:
    """Return quantiles (5,) of a column of numbers; all the same where nothing is known of them."""
    median = float(column.fill)
    if column.scores:
        quantiles: np.ndarray = np.interp(_NORMAL_SCORES, column.scores, column.knots)
    elif len(column.knots) in _LEVELS_OF_BINS:
        levels = np.linspace(0.0, 1.0, len(column.knots))
        quantiles = np.interp(_LEVELS, levels, column.knots)
    elif column.knots:
        quantiles = np.full(len(_LEVELS), median)
    else:
        quantiles = median + deviation * _NORMAL_SCORES

    quantiles[2] = median
    return quantiles


def _quantiles(cells: np.ndarray) -> np.ndarray | None:
    """Return the quantiles (5,) of the values of a column, or None if there are too few."""
    if len(cells) < FEWEST or len(np.unique(cells)) < FEWEST:
        return None

    quantiles: np.ndarray = np.quantile(cells, _LEVELS)
    return quantiles


def _ratio(median: float, other: float) -> str:
    """Return in words how much larger or smaller a median is than another."""
    ratio = max(median / other, other / median)
    more = "large" if median > other else "small"
    return f"about {ratio:.3g} times as {more}"


def _factor_between(
    here: np.ndarray, there: np.ndarray, spreads_near: float = _SPREADS_NEAR
) -> float | None:
    """Return the factor between units that explains two sites' quantiles (5,); None without one.

    Medians and quartile distances both have it, and nearly all values of one are below the other's:
    heavy tails of another kind of patient overlap.
    """
    small, large = sorted((here, there), key=lambda quantiles: float(quantiles[2]))
    spread = small[3] - small[1]
    if small[2] <= 0 or spread <= 0 or small[4] >= large[0]:
        return None

    ratio = large[2] / small[2]
    ratio_of_spreads = (large[3] - large[1]) / spread
    for factor in _FACTORS:
        is_near = 1 / _NEAR <= ratio / factor <= _NEAR
        if is_near and 1 / spreads_near <= ratio_of_spreads / factor <= spreads_near:
            return factor

    return None
