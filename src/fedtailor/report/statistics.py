"""Statistics of comparisons: means over seeds, and paired differences in a seed. No torch.

Sources: Wilcoxon 1945, "Individual comparisons by ranking methods", Biometrics Bulletin 1 (6).
Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3 (percentile interval).
Nemenyi 1963, "Distribution-free multiple comparisons", thesis, Princeton.
Westfall and Young 1993, "Resampling-Based Multiple Testing", section 2.4 (the largest statistic).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.95
"""Of intervals."""
RESAMPLES = 10_000
"""Resamples of a bootstrap interval."""
MOST_EXACT = 50
"""Clients that differ, up to which the Wilcoxon test counts all signs of the ranks."""
DECIMALS = 12
"""Differences that agree to this many decimal places are ties: shares of equal examples need not be
equal floats."""
_BLOCK = 2**20
"""Values that are resampled at a time."""
_ROUNDING = 1e-9
"""Two statistics that are nearer than this are equal."""


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class Wilcoxon(NamedTuple):
    """A two-sided Wilcoxon signed-rank test."""

    statistic: float
    """The smaller one of the sums of the ranks of positive and of negative differences."""
    p_value: float
    method: Literal["exact", "normal"]
    num_different: int
    """Clients whose difference is not 0. The others do not count."""


class Outcomes(NamedTuple):
    """Clients that are better, equal and worse."""

    wins: int
    ties: int
    losses: int


def mean(values: Iterable[float]) -> float:
    """Return the mean of values.

    >>> mean([0.25, 0.75])
    0.5
    """
    return statistics.fmean(values)


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean.

    Returns:
        The unbiased standard deviation over the root of the number of values; None for one value.

    Example:
        >>> standard_error([1.0, 3.0]), standard_error([1.0])
        (1.0, None)
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the first value of every pair minus the second, rounded so that ties are ties.

    >>> 0.3 - 0.2 == 0.2 - 0.1, differences([0.3, 0.2], [0.2, 0.1])
    (False, [0.1, 0.1])
    """
    return [round(one - other, DECIMALS) for one, other in zip(first, second, strict=True)]


def outcomes(gaps: Sequence[float]) -> Outcomes:
    """Count the positive differences (wins), zeros (ties) and negative ones (losses).

    >>> outcomes([0.1, 0.0, 0.2])
    Outcomes(wins=2, ties=1, losses=0)
    """
    wins = sum(gap > 0 for gap in gaps)
    losses = sum(gap < 0 for gap in gaps)
    return Outcomes(wins, len(gaps) - wins - losses, losses)


def bootstrap_interval(
    gaps: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Return the paired bootstrap interval of the mean difference.

    Its ends are the 2.5 % and 97.5 % percentiles of resampled means. Clients are drawn with
    replacement, each with both of its scores, so what is resampled are their differences. The
    draws depend on ``seed`` and on the number of clients only.

    Args:
        gaps: the differences of the clients.
        resamples: how many samples are drawn.
        seed: of the draws.

    Returns:
        None for fewer than two clients.

    Example:
        >>> bootstrap_interval([0.1, 0.1, 0.1])
        Interval(low=0.1, high=0.1)
    """
    if len(gaps) < 2:
        return None

    import numpy as np
    from scipy import stats

    center = mean(gaps)  # where all differences are equal, rounding leaves no width
    interval = stats.bootstrap(
        [np.asarray(gaps, np.float64) - center],
        np.mean,
        n_resamples=resamples,
        batch=max(1, _BLOCK // len(gaps)),
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(interval.low) + center, float(interval.high) + center)


def wilcoxon(gaps: Sequence[float]) -> Wilcoxon:
    """Test whether differences are symmetric around 0: the two-sided Wilcoxon signed-rank test.

    Differences of 0 are left out. Equal ones share the mean of their ranks. If at most
    ``MOST_EXACT`` differ from 0, the p-value is exact, with equal ones too: it counts every way to
    give signs to the ranks. Otherwise it is that of the normal approximation with the correction
    for ties, without the correction for continuity.

    Args:
        gaps: the differences, from :func:`differences`. If all are 0, the p-value is 1.

    Example:
        >>> wilcoxon([0.1, 0.2, 0.3, 0.4, 0.0])
        Wilcoxon(statistic=0.0, p_value=0.125, method='exact', num_different=4)
    """
    import numpy as np

    different = np.array([gap for gap in gaps if gap != 0], np.float64)
    count = len(different)
    if count == 0:
        return Wilcoxon(0.0, 1.0, "exact", 0)

    from scipy import stats

    if count > MOST_EXACT:
        # The stubs lack this method.
        test = stats.wilcoxon(different, method="asymptotic")  # type: ignore[call-overload]
        return Wilcoxon(float(test.statistic), float(test.pvalue), "normal", count)

    # Twice the ranks are whole numbers, also where equal differences share a rank.
    doubled = np.rint(2 * stats.rankdata(np.abs(different))).astype(np.int64)
    positive = int(doubled[different > 0].sum())
    smaller = min(positive, int(doubled.sum()) - positive)
    at_most = float(_signed_rank_distribution(doubled)[: smaller + 1].sum())

    return Wilcoxon(smaller / 2, min(1.0, 2 * at_most), "exact", count)


def _signed_rank_distribution(doubled: np.ndarray) -> np.ndarray:
    """Return the probability of every sum of positive doubled ranks, if signs are fair coins."""
    import numpy as np

    probability = np.zeros(int(doubled.sum()) + 1)
    probability[0] = 1.0
    for rank in doubled.tolist():
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[: len(probability) - rank]
        probability = (probability + shifted) / 2

    return probability


def joint_p_values(gaps: np.ndarray, *, draws: int = RESAMPLES) -> np.ndarray:
    """Test many differences together: are those of every pair of models symmetric around 0?

    The statistic of a pair is the size of the sum of its differences, over the root of the sum of
    their squares. The p-value of a pair is the share of random signs of the clients for which the
    largest statistic of all pairs is at least that of the pair. So the chance of any false finding
    among all pairs is at most the level, and pairs that are alike cost little, unlike with Holm's
    method. That assumes that clients are independent, and that where models are equally good, the
    differences of a client are as likely with all signs turned.

    Args:
        gaps: (pairs, clients), the differences of at least one pair; NaN where a client has none.
        draws: how many signs are drawn, always the same ones.

    Returns:
        (pairs,), at least 1 / (draws + 1).
    """
    import numpy as np

    known = np.nan_to_num(np.round(gaps, DECIMALS))
    lengths = np.sqrt(np.square(known).sum(axis=1, keepdims=True))
    scaled = known / np.where(lengths == 0, 1.0, lengths)
    observed = np.abs(scaled.sum(axis=1))

    generator = np.random.default_rng(0)
    at_a_time = max(1, _BLOCK // len(gaps))
    largest = np.empty(draws)
    for start in range(0, draws, at_a_time):
        block = largest[start : start + at_a_time]
        signs = generator.choice([-1.0, 1.0], size=(len(block), gaps.shape[1]))
        block[:] = np.abs(signs @ scaled.T).max(axis=1)

    below = np.searchsorted(np.sort(largest), observed - _ROUNDING)
    p_values: np.ndarray = (1 + draws - below) / (1 + draws)
    return p_values


def mean_ranks(blocks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean rank of every name over blocks; the highest value has rank 1.

    Equal values share the mean of their ranks.

    Args:
        blocks: a value for every name, the same names in each.

    Example:
        >>> mean_ranks([{"a": 0.9, "b": 0.8, "c": 0.8}, {"a": 0.5, "b": 0.7, "c": 0.6}])
        {'a': 2.0, 'b': 1.75, 'c': 2.25}
    """
    from scipy.stats import rankdata

    names = list(blocks[0])
    ranks = [rankdata([-block[name] for name in names]).tolist() for block in blocks]
    return {name: mean(of_name) for name, of_name in zip(names, zip(*ranks, strict=True))}


def critical_difference(num_names: int, num_blocks: int) -> float:
    """Return by how much mean ranks must differ to be told apart: Nemenyi's test at 5 %.

    It is q sqrt(k (k + 1) / (6 N)) for k names and N blocks, with q the quantile of the studentized
    range over the root of two (Demšar 2006, "Statistical comparisons of classifiers over multiple
    data sets", JMLR, section 3.2.2). It holds for all pairs together.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(LEVEL, num_names, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(num_names * (num_names + 1) / (6 * num_blocks))
