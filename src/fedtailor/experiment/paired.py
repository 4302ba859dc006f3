"""Two models on the same test examples: difference, interval and test. No torch.

Sources: Agresti and Min 2005, "Simple improved confidence intervals for comparing matched
proportions", Statistics in Medicine 24 (5). McNemar 1947, "Note on the sampling error of the
difference between correlated proportions", Psychometrika 12 (2). Holm 1979, "A simple sequentially
rejective multiple test procedure", Scandinavian Journal of Statistics 6 (2). DeLong, DeLong and
Clarke-Pearson 1988, "Comparing the areas under two or more correlated receiver operating
characteristic curves", Biometrics 44 (3). Obuchowski 1997, "Nonparametric analysis of clustered ROC
curve data", Biometrics 53 (2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_OF_TRAINING = 1.15
"""How much wider the interval of a difference of areas is, because models are trained again."""
_MOST_COUNTED = 2**17
"""Totals that a sign-flip test counts one by one; beyond them the total is normal."""


def paired_interval(paired: np.ndarray, groups: np.ndarray | None) -> tuple[float, float]:
    """Return the 95 % interval of a difference of two accuracies on the same examples.

    Agresti and Min 2005: half an example is added to each of the four outcomes, so that few
    examples that agree do not give an interval without width. With groups it is half a group, and
    the variance is that over groups, as in cluster-robust standard errors. The quantile is that of
    the t distribution for the number of groups.

    Args:
        paired: (n,), 1 if only the first model is right, -1 if only the second is, else 0; a number
            between them if the example was tested several times.
        groups: (n,), the number of the group of every example, from 0; None: each is its own.

    Returns:
        -1 and 1 for one example or group, which says nothing about others.

    Example:
        >>> low, high = paired_interval(np.array([1.0, 0.0, 0.0, 0.0, -1.0, 1.0]), None)
        >>> round(low, 3), round(high, 3)
        (-0.508, 0.758)
    """
    number = len(paired) if groups is None else int(groups.max()) + 1
    if number < 2:
        return -1.0, 1.0

    size = len(paired) / number
    total = len(paired) + 2 * size
    center = paired.sum() / total
    squares = (sum_by_group(paired - center, groups) ** 2).sum()
    added = size**2 * (0.5 * (1 - center) ** 2 + 0.5 * (1 + center) ** 2 + center**2)
    error = _t_quantile(number - 1) * math.sqrt(squares + added) / total
    return max(-1.0, float(center - error)), min(1.0, float(center + error))


def influence_interval(
    difference: float, influence: np.ndarray, groups: np.ndarray | None
) -> tuple[float, float]:
    """Return the 95 % interval of a difference of two areas, from the influence of every example.

    The standard error of DeLong takes both models as given. In cross-validations, in which they
    are trained again, its interval covers the difference in 89 to 94 % of cases only, and one that
    is 1.15 times as wide in some 95 % (``benchmarks/verdicts.py``).

    Args:
        difference: the measured one.
        influence: (n,), see :func:`rank_examples`: that on the first area minus that on the second.
        groups: (n,), the number of the group of every example, from 0; None: each is its own.
    """
    sums = sum_by_group(influence, groups)
    error = _OF_TRAINING * _t_quantile(len(sums) - 1) * math.sqrt((sums**2).sum())
    return max(-1.0, difference - error), min(1.0, difference + error)


def _t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of the t distribution."""
    # SciPy takes a while to import, and most commands need none of it.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def sum_by_group(values: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the sum of each group; the values themselves without groups."""
    return values if groups is None else np.bincount(groups, weights=values)


def sign_flip_p_value(sums: np.ndarray) -> float:
    """Return the two-sided p-value of a sign-flip (randomization) test of a total.

    If neither model is better, the sum of an example (or of a group of examples) is as likely to be
    positive as negative. The p-value is the share of all ways to give signs to the sums whose total
    is at least as far from 0 as the measured one. For sums of -1, 0 and 1 this is McNemar's exact
    test. No signs are drawn: the characteristic function of the total gives its distribution.

    Args:
        sums: (n,), whole numbers: of every example or group, how often only the first model was
            right, less how often only the second one was.

    Example:
        >>> sign_flip_p_value(np.array([1, 1, 1, 1, 0, -1]))
        0.375
    """
    sizes, counts = np.unique(np.abs(sums[sums != 0]).astype(np.int64), return_counts=True)
    total = abs(int(sums.sum()))
    if total == 0:
        return 1.0

    largest = int(sizes @ counts)
    if largest > _MOST_COUNTED:
        return math.erfc(total / math.sqrt(2.0 * float(sizes**2 @ counts)))

    # Totals are whole numbers from -largest to largest, so that many angles are exact.
    length = 2 * largest + 1
    angles = 2 * np.pi * np.arange(largest + 1) / length
    transform = np.ones(largest + 1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        transform *= np.cos(size * angles) ** count

    probability = np.fft.irfft(transform, length)[: largest + 1]  # of the totals 0, 1, ...
    at_least = float(probability[total:].clip(0.0).sum())
    return min(1.0, round(2 * at_least, 12))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the same order.

    The smallest one counts times their number m, the next one times m - 1, and so on; none counts
    less than a smaller one, or more than 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for done, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[place]))
        corrected[place] = largest
    return corrected


class RankedExamples(NamedTuple):
    """The AUROC of scores, and what every example does to it."""

    auroc: float
    influence: np.ndarray  # (n,)
    """By how much the AUROC is above its mean because of the example; the sum is 0."""


def rank_examples(
    scores: np.ndarray, positive: np.ndarray, models: np.ndarray
) -> RankedExamples | None:
    """Return the AUROC of scores, with the influence of every example (DeLong et al. 1988).

    Only scores of one model can be compared, so the AUROC is the share of its pairs that each model
    ranks rightly, over all models: those of the folds of a cross-validation.

    The variance of an AUROC, or of a difference or mean of several on the same examples, is the sum
    of the squares of the examples' influences, which are added up within groups (Obuchowski 1997).

    Args:
        scores: (n,), higher for examples that look positive; ties count one half.
        positive: (n,), which examples are positive.
        models: (n,), the number of the model that gave each score.

    Returns:
        None if no model has both kinds of examples.

    Example:
        >>> scores = np.array([0.9, 0.4, 0.5, 0.2, 0.1])
        >>> positive = np.array([True, True, False, True, False])
        >>> rank_examples(scores, positive, np.array([0, 0, 0, 0, 0])).auroc
        0.6666666666666666
        >>> rank_examples(scores, positive, np.array([0, 0, 0, 1, 1])).auroc
        0.6666666666666666
    """
    pairs = np.zeros(len(scores))
    won = np.zeros(len(scores))
    for model in np.unique(models):
        for is_positive in (True, False):
            members = (models == model) & (positive == is_positive)
            others = (models == model) & (positive != is_positive)
            pairs[members] = others.sum()
            below = _number_below(scores[members], scores[others])
            won[members] = below if is_positive else others.sum() - below

    total = pairs[positive].sum()
    if total == 0:
        return None

    auroc = float(won[positive].sum() / total)
    return RankedExamples(auroc, (won - auroc * pairs) / total)


def _number_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for every score (n,) how many others (m,) are below it; equal ones count one half."""
    ordered = np.sort(others)
    lower = np.searchsorted(ordered, scores, side="left")
    not_higher = np.searchsorted(ordered, scores, side="right")
    numbers: np.ndarray = (lower + not_higher) / 2
    return numbers


def effective_number(right: np.ndarray, groups: np.ndarray | None) -> float:
    """Return how many independent examples give an equal interval (Kish 1965, design effect).

    Args:
        right: 1 where the model is right (n,), else 0.
        groups: number of the group of each example (n,), from 0; None: they are not grouped.
    """
    count = len(right)
    if groups is None:
        return count

    # All right or all wrong: the variance says nothing, and groups count as one example each.
    share = right.mean()
    if share in (0.0, 1.0):
        return float(groups.max()) + 1

    variance = (sum_by_group(right - share, groups) ** 2).sum() / count**2
    return float(min(count, share * (1 - share) / variance)) if variance > 0 else count
