"""Two models on the same test examples: difference, interval and test. No torch.

Sources: Tango 1998, "Equivalence test and confidence interval for the difference in proportions for
the paired-sample design", Statistics in Medicine 17 (8). Zou and Donner 2008, "Construction of
confidence limits about effect measures: a general approach", Statistics in Medicine 27 (10).
McNemar 1947, "Note on the sampling error of the difference between correlated proportions",
Psychometrika 12 (2). Holm 1979, "A simple sequentially rejective multiple test procedure",
Scandinavian Journal of Statistics 6 (2). DeLong, DeLong and Clarke-Pearson 1988, "Comparing the
areas under two or more correlated receiver operating characteristic curves", Biometrics 44 (3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.core.bisection import bisect

_OF_TRAINING = 1.05
"""How much larger the error of a difference is, because models are trained again."""
_OF_ONE_RANK = 0.2
"""Share of the other class by which two models rank an example differently, which is added to each
class: few examples that both models rank alike do not give an interval without width."""
_HALVINGS = 50
"""Steps of a bisection of [-1, 1], until floating-point numbers are exhausted."""
_MOST_COUNTED = 2**17
"""Totals that a sign-flip test counts one by one; beyond them the total is normal."""
_NOTHING = 1e-9
"""Share of the largest number that only rounding can make."""
_MOST_PARTS = 12
"""Steps in the smallest sum, if all are whole numbers of them."""
_STEPS = 200
"""In the largest of the sums whose signs are flipped, if they are not whole numbers."""


def paired_interval(
    paired: np.ndarray, groups: np.ndarray | None, strata: np.ndarray | None = None
) -> tuple[float, float]:
    """Return the 95 % interval of a difference of two accuracies on the same examples.

    Tango 1998: the differences from which the measured one is at most 1.96 standard errors away,
    each with the error that it implies itself. The interval has a width even where both models are
    right on the same few examples. The quantile is that of the t distribution for the number of
    groups.

    The examples count as fewer if they come in groups that are alike, and as more if they were
    tested several times (the design effect of Kish 1965), and as fewer because models are trained
    again.

    With strata it is the mean of the differences in every stratum: with the classes, the difference
    of two balanced accuracies. Its interval follows from theirs (Zou and Donner 2008).

    Args:
        paired: (n,), 1 if only the first model is right, -1 if only the second is, else 0; a number
            between them if the example was tested several times.
        groups: (n,), the number of the group of every example, from 0; None: each is its own.
        strata: (n,), the number of the stratum of every example; None: there is one.

    Returns:
        -1 and 1 if there is one example or group, which says nothing about others.

    Example:
        >>> low, high = paired_interval(np.array([1.0, 0.0, 0.0, 0.0, -1.0, 1.0]), None)
        >>> round(low, 3), round(high, 3)
        (-0.557, 0.735)
    """
    number = len(paired) if groups is None else len(np.unique(groups))
    if number < 2:
        return -1.0, 1.0

    names = [0] if strata is None else np.unique(strata)
    parts = [paired if strata is None else paired[strata == name] for name in names]
    examples_for_one = design_effect(paired, groups, strata) * _OF_TRAINING**2
    quantile = _t_quantile(number - 1)
    below = []
    above = []
    for part in parts:
        better = float(part.clip(0.0).mean())
        worse = float((-part).clip(0.0).mean())
        count = len(part) / examples_for_one
        below.append(better - worse - _lower_limit(better, worse, count, quantile))
        above.append(worse - better - _lower_limit(worse, better, count, quantile))

    center = float(np.mean([part.mean() for part in parts]))
    return center - math.hypot(*below) / len(parts), center + math.hypot(*above) / len(parts)


def _lower_limit(better: float, worse: float, number: float, quantile: float) -> float:
    """Return the smallest difference that is at most so many standard errors below a measured one.

    Args:
        better: share of examples that only the first model gets right.
        worse: share of those that only the second one does.
        number: of examples.
        quantile: the number of standard errors.
    """

    def is_too_far(truth: float) -> bool:
        # The most likely share of ``worse`` if this is the true difference: Tango's equation 10.
        linear = (2 - better + worse) * truth - better - worse
        root = math.sqrt(max(0.0, linear**2 + 8 * worse * truth * (1 - truth)))
        variance = (root - linear) / 2 + truth * (1 - truth)
        return better - worse - truth > quantile * math.sqrt(max(0.0, variance) / number)

    return bisect(is_too_far, -1.0, better - worse, steps=_HALVINGS)[1]


def design_effect(
    values: np.ndarray, groups: np.ndarray | None, strata: np.ndarray | None = None
) -> float:
    """Return how many examples tell as much as an independent one that was tested once (Kish 1965).

    Args:
        values: (n,), 1, 0 or -1 for every example; a number between them if it was tested several
            times.
        groups: (n,), the number of the group of every example, from 0; None: each is its own.
        strata: (n,), the number of the stratum of every example; None: there is one.

    Example:
        >>> design_effect(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1]))
        2.0
    """
    groups = np.arange(len(values)) if groups is None else groups
    strata = np.zeros(len(values), np.int64) if strata is None else strata
    influence = np.zeros(len(values))
    independent = 0.0
    for name in np.unique(strata):
        members = strata == name
        part = values[members]
        influence[members] = (part - part.mean()) / len(part)
        independent += float(np.abs(part).mean() - part.mean() ** 2) / len(part)

    # Where nothing differs, and in a single group, each group counts as one example.
    number = len(np.unique(groups))
    most = len(values) / number
    if number == 1 or np.abs(influence).max() * len(values) < _NOTHING:
        return most

    of_groups = float((sum_by_group(influence, groups) ** 2).sum()) * number / (number - 1)
    variance = max(of_groups, float((influence**2).sum()))

    # Where one model alone is right in all tests, only the number of tests differs.
    if independent * len(values) < _NOTHING:
        return most
    return min(most, variance / independent)


def _t_quantile(degrees: float) -> float:
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
        sums: (n,), of every example or group, what it adds to the difference of the models. Those
            that are not multiples of the smallest one are rounded to steps of the largest one,
            which keeps the level of the test: it holds for any sizes.

    Example:
        >>> sign_flip_p_value(np.array([1, 1, 1, 1, 0, -1]))
        0.375
    """
    steps = _in_steps(sums)
    sizes, counts = np.unique(np.abs(steps), return_counts=True)
    total = abs(int(steps.sum()))
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


def _in_steps(sums: np.ndarray) -> np.ndarray:
    """Return sums that are not 0 as whole numbers of equal steps, int64."""
    largest = np.abs(sums).max(initial=0.0)
    sums = sums[np.abs(sums) > _NOTHING * largest]
    if sums.size == 0:
        return sums.astype(np.int64)

    # The smallest one may be several steps, such as 2 of 3 seeds.
    smallest = np.abs(sums).min()
    for parts in range(1, _MOST_PARTS + 1):
        multiples = sums * (parts / smallest)
        steps: np.ndarray = np.rint(multiples).astype(np.int64)
        if np.abs(multiples - steps).max() < _NOTHING * len(sums):
            return steps

    steps = np.rint(sums * (_STEPS / largest)).astype(np.int64)
    return steps


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the same order.

    The smallest one counts times their number m, the next one times m - 1, and so on; none counts
    less than a smaller one, or more than 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda position: p_values[position])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for done, position in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[position]))
        corrected[position] = largest
    return corrected


class Pairs(NamedTuple):
    """Pairs of a positive and a negative example, by example."""

    won: np.ndarray  # (n,)
    """In how many the positive one has the higher score; equal scores count one half."""
    number: np.ndarray  # (n,)


def count_pairs(scores: np.ndarray, positive: np.ndarray, models: np.ndarray) -> Pairs:
    """Return the pairs of every example. Their share in order is the AUROC of the scores.

    Only scores of one model can be compared, so pairs are those of every model: with the folds of a
    cross-validation, within each of them.

    Args:
        scores: (n,), higher for examples that look positive.
        positive: (n,), which examples are positive.
        models: (n,), the number of the model that gave each score.

    Example:
        >>> scores = np.array([0.9, 0.8, 0.2, 0.1])
        >>> positive = np.array([True, False, True, False])
        >>> count_pairs(scores, positive, np.array([0, 0, 0, 0])).won
        array([2., 1., 1., 2.])
        >>> count_pairs(scores, positive, np.array([0, 0, 1, 1])).number
        array([1., 1., 1., 1.])
    """
    won = np.zeros(len(scores))
    number = np.zeros(len(scores))
    for model in np.unique(models):
        positives = np.flatnonzero(positive & (models == model))
        negatives = np.flatnonzero(~positive & (models == model))
        won[positives] = _number_below(scores[positives], scores[negatives])
        won[negatives] = _number_below(-scores[negatives], -scores[positives])
        number[positives] = len(negatives)
        number[negatives] = len(positives)

    return Pairs(won, number)


def _number_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for every score (n,) how many others (m,) are below it; equal ones count one half."""
    ordered = np.sort(others)
    lower = np.searchsorted(ordered, scores, side="left")
    not_higher = np.searchsorted(ordered, scores, side="right")
    numbers: np.ndarray = (lower + not_higher) / 2
    return numbers


def compare_pairs(ours: Pairs, others: Pairs) -> tuple[float, np.ndarray]:
    """Return the difference of two AUROCs, and what every example adds to it (n,).

    What an average example of its class adds is subtracted (DeLong et al. 1988).
    """
    total = ours.number.sum()
    more_won = ours.won - others.won
    difference = float(more_won.sum() / total)
    return difference, 2 * (more_won - difference * ours.number) / total


class AreaTest(NamedTuple):
    """Whether a difference of two AUROCs is more than chance."""

    difference: float
    low: float
    high: float
    """The 95 % interval."""
    p_value: float


def compare_areas(
    difference: float, influence: np.ndarray, labels: np.ndarray, groups: np.ndarray | None
) -> AreaTest:
    """Return interval and p-value of a difference of two areas on the same examples.

    The variance is that of DeLong et al. (1988): the sum over the classes of the variances of what
    their examples add to the difference. With groups it is that over groups, as in cluster-robust
    standard errors. The quantile is that of the t distribution, with the degrees of freedom of
    Satterthwaite (1946), because a rare class has few examples.

    Args:
        difference: of the areas.
        influence: (n,), see :func:`compare_pairs`.
        labels: (n,), the class of every example.
        groups: (n,), the number of the group of every example, from 0; None: each is its own.
    """
    # SciPy takes a while to import, and most commands need none of it.
    from scipy.special import stdtr

    groups = np.arange(len(labels)) if groups is None else groups
    names = np.unique(labels)
    scaled = np.zeros(len(labels))
    variances = []
    degrees = []
    added = []
    for name in names:
        members = labels == name

        # A single example says nothing about others. Of many classes it decides little: what is
        # added is left, with one degree of freedom.
        number = len(np.unique(groups[members]))
        if number < 2 and len(names) == 2:
            return AreaTest(difference, -1.0, 1.0, 1.0)

        number = max(2, number)
        scaled[members] = influence[members] * math.sqrt(number / (number - 1))
        of_class = float((sum_by_group(scaled * members, groups) ** 2).sum())
        added.append((2 * _OF_ONE_RANK / len(names) / number) ** 2)
        variances.append(of_class + added[-1])
        degrees.append(number - 1)

    # A group may have examples of several classes, so sums are over all of them.
    variance = float((sum_by_group(scaled, groups) ** 2).sum()) + sum(added)
    shares = np.array(variances) / sum(variances)
    freedom = 1 / float((shares**2 / degrees).sum())
    error = _OF_TRAINING * math.sqrt(variance)
    margin = error * _t_quantile(freedom)
    p_value = 2 * float(stdtr(freedom, -abs(difference) / error))
    low = max(-1.0, difference - margin)
    high = min(1.0, difference + margin)
    return AreaTest(difference, low, high, p_value)
