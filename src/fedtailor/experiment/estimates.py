"""Estimates that records hold: metrics summarized over clients, and 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedtailor.core.bisection import bisect
from fedtailor.core.metrics import (
    CLIENT_METRICS,
    mean,
    per_client,
    recall,
    smallest_tenth,
    worst_tenth,
)
from fedtailor.core.scores import Scores, ScoreSums, across, auroc_error, total

Interval = dict[str, float]
"""``low`` and ``high``."""
NORMAL_975 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
_HALVINGS = 60
"""Steps of a bisection of [0, 1], until floating-point numbers are exhausted."""


def summarize(scores: Sequence[Scores], num_train: Sequence[int]) -> dict[str, dict[str, float]]:
    """Summarize the scores of clients, given in the order of their ids.

    Returns:
        For every metric ``mean`` (over clients, unweighted), ``pooled`` (over examples), ``std``
        (over clients, unbiased; 0 for one client), ``worst10`` (mean of the worst tenth of clients,
        at least one), ``smallest10`` (mean of the tenth with the least training data, ties by id),
        and the worst client: ``min`` of accuracies and AUROC, ``max`` of ``loss`` and ``ece``.
        ``auroc`` holds moreover how many ``clients`` have one, and the bound ``pooled_error`` of
        the error of ``pooled``; it holds the figures over clients only if a client has one, and is
        missing if there is none over all examples either. ``recall`` holds the pooled recall by
        class. Clients without test examples are left out. ``clients`` holds how many were
        ``evaluated`` and ``skipped``; it is the only entry if no client has test examples.
    """
    values = [per_client(single) for single in scores]
    pairs = zip(values, num_train, strict=True)
    scored = [(client, amount) for client, amount in pairs if client]
    clients = {"evaluated": float(len(scored)), "skipped": float(len(values) - len(scored))}
    if not scored:
        return {"clients": clients}

    together = across(total(scores))
    pooled = per_client(together)
    summary = {}
    for name in CLIENT_METRICS:
        if name in pooled:
            summary[name] = _summarize_metric(name, scored, pooled[name])

    if "auroc" in summary:
        summary["auroc"]["clients"] = float(sum("auroc" in client for client, _ in scored))
        summary["auroc"]["pooled_error"] = _pooled_error(together)

    return {**summary, "recall": recall(together), "clients": clients}


def summarize_sums(sums: ScoreSums) -> dict[str, dict[str, float]]:
    """Summarize the scores of clients of which only the sum is known.

    Returns:
        What :func:`summarize` returns, without what needs the scores of single clients:
        ``worst10``, ``smallest10``, ``min`` and ``max``.
    """
    evaluated = sums.figures["accuracy"].clients
    clients = {"evaluated": float(evaluated), "skipped": float(sums.scored - evaluated)}
    if not evaluated:
        return {"clients": clients}

    together = across(sums.total)
    summary: dict[str, dict[str, float]] = {}
    for name, pooled in per_client(together).items():
        figure = sums.figures[name]
        summary[name] = {"pooled": pooled}
        if figure.clients:
            summary[name] |= {"mean": figure.mean, "std": figure.deviation}

    if "auroc" in summary:
        summary["auroc"]["clients"] = float(sums.figures["auroc"].clients)
        summary["auroc"]["pooled_error"] = _pooled_error(together)

    return {**summary, "recall": recall(together), "clients": clients}


def _pooled_error(together: Scores) -> float:
    """Return the most by which the AUROC over all examples can be wrong."""
    return mean([error for error in auroc_error(together) if error is not None])


def _summarize_metric(
    name: str, scored: Sequence[tuple[Mapping[str, float], int]], pooled: float
) -> dict[str, float]:
    """Summarize one metric over the clients that have it, each with its amount of training data."""
    having = [(client[name], amount) for client, amount in scored if name in client]
    if not having:
        return {"pooled": pooled}

    values = [value for value, _ in having]
    higher_is_better = CLIENT_METRICS[name].higher_is_better
    return {
        "pooled": pooled,
        "smallest10": smallest_tenth(values, [amount for _, amount in having]),
        "mean": mean(values),
        "std": _std(values),
        "worst10": worst_tenth(values, higher_is_better=higher_is_better),
        "min" if higher_is_better else "max": sorted(values, reverse=not higher_is_better)[0],
    }


def _std(values: Sequence[float]) -> float:
    """Return the unbiased standard deviation.

    0 for one value, infinite if any value is infinite.
    """
    if len(values) == 1:
        return 0.0
    if not all(map(math.isfinite, values)):
        return math.inf
    center = mean(values)
    return math.sqrt(sum((value - center) ** 2 for value in values) / (len(values) - 1))


def wilson_interval(share: float, num_examples: float) -> Interval:
    """Return the 95 % interval of a share, such as an accuracy.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22
    (158). The interval is about the examples only: it takes the model as given.

    Returns:
        ``low`` and ``high``, fractions.

    Example:
        >>> {name: round(bound, 3) for name, bound in wilson_interval(0.75, 12).items()}
        {'low': 0.468, 'high': 0.911}
    """
    ratio = NORMAL_975**2 / num_examples
    center = (share + ratio / 2) / (1 + ratio)
    variance = share * (1 - share) / num_examples + ratio / (4 * num_examples)
    half_width = NORMAL_975 * math.sqrt(variance) / (1 + ratio)
    return {"low": max(0.0, center - half_width), "high": min(1.0, center + half_width)}


def difference_interval(first: float, one: Interval, second: float, other: Interval) -> Interval:
    """Return the 95 % interval of the difference of two figures of different examples.

    Zou and Donner 2008, "Construction of confidence limits about effect measures: a general
    approach", Statistics in Medicine 27: from the intervals of both. With those of Wilson it is
    method 10 of Newcombe 1998, "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17.

    Args:
        first: the figure from which the other one is subtracted.
        one: its interval.
        second: the other figure.
        other: its interval.

    Example:
        >>> one = wilson_interval(56 / 70, 70)
        >>> other = wilson_interval(48 / 80, 80)
        >>> interval = difference_interval(56 / 70, one, 48 / 80, other)
        >>> {name: round(bound, 4) for name, bound in interval.items()}
        {'low': 0.0524, 'high': 0.3339}
    """
    difference = first - second
    return {
        "low": difference - math.hypot(first - one["low"], other["high"] - second),
        "high": difference + math.hypot(one["high"] - first, second - other["low"]),
    }


def mean_of_shares_interval(shares: Sequence[float], num_examples: Sequence[float]) -> Interval:
    """Return the 95 % interval of a mean of shares of different examples.

    Such as a balanced accuracy. Zou and Donner 2008, "Construction of confidence limits about
    effect measures: a general approach", Statistics in Medicine 27, from the Wilson intervals.

    Args:
        shares: at least one.
        num_examples: of each.

    Example:
        >>> one = mean_of_shares_interval([0.75], [12])
        >>> one == wilson_interval(0.75, 12)
        True
    """
    pairs = list(zip(shares, num_examples, strict=True))
    intervals = [wilson_interval(share, count) for share, count in pairs]
    below = [share - interval["low"] for (share, _), interval in zip(pairs, intervals, strict=True)]
    above = [
        interval["high"] - share for (share, _), interval in zip(pairs, intervals, strict=True)
    ]
    center = mean(shares)
    return {
        "low": center - math.hypot(*below) / len(shares),
        "high": center + math.hypot(*above) / len(shares),
    }


def mean_of_bounds(intervals: Sequence[Interval | None]) -> Interval | None:
    """Return the interval of a mean whose parts may all be wrong in the same direction.

    None stands for a part that has no value, and for a mean without any.
    """
    having = [interval for interval in intervals if interval is not None]
    if not having:
        return None
    return {end: mean([interval[end] for interval in having]) for end in ("low", "high")}


def auroc_interval(
    auroc: float, positives: float, negatives: float, *, error: float = 0.0
) -> Interval:
    """Return the 95 % interval of an AUROC.

    The interval holds the values from which the measured one is at most 1.96 standard errors away.
    The standard error is that of Hanley and McNeil 1982, "The meaning and use of the area under a
    ROC curve", Radiology 143 (1), at the value itself: method 5 of Newcombe 2006, "Confidence
    intervals for an effect size measure based on the Mann-Whitney statistic. Part 2", Statistics in
    Medicine 25. It has a width where few examples are separated without an error, unlike intervals
    around the measured value. It is about the examples only: it takes the model as given.

    Args:
        auroc: the measured value.
        positives: examples of the class, at least 1.
        negatives: other examples, at least 1.
        error: the most by which the measured value can be wrong; the interval is wider by it at
            both ends.

    Example:
        >>> {name: round(bound, 3) for name, bound in auroc_interval(1.0, 5, 20).items()}
        {'low': 0.761, 'high': 1.0}
    """
    return {
        "low": _lower_bound(max(0.0, auroc - error), positives, negatives),
        "high": 1.0 - _lower_bound(max(0.0, 1.0 - auroc - error), positives, negatives),
    }


def _lower_bound(auroc: float, positives: float, negatives: float) -> float:
    """Return the smallest value that is at most 1.96 standard errors below a measured one."""

    def is_too_far(truth: float) -> bool:
        return auroc - truth > NORMAL_975 * _hanley_mcneil_error(truth, positives, negatives)

    return bisect(is_too_far, 0.0, auroc, steps=_HALVINGS)[0]


def _hanley_mcneil_error(auroc: float, positives: float, negatives: float) -> float:
    """Return the standard error of a measured AUROC if this is the true one.

    Newcombe's form, in which positive and negative examples change places without an effect.
    """
    others = (positives + negatives) / 2 - 1
    both_higher = others * (1 - auroc) / (2 - auroc) + others * auroc / (1 + auroc)
    return math.sqrt(auroc * (1 - auroc) * (1 + both_higher) / (positives * negatives))


def mean_interval(
    mean: float, deviation: float, count: int, *, is_share: bool = True
) -> Interval | None:
    """Return the 95 % t interval of a mean over ``count`` clients; None for one client.

    The clients are taken as drawn from many like them. A share's interval ends at 0 and 1.

    Args:
        mean: over the clients.
        deviation: their unbiased standard deviation.
        count: how many clients.
        is_share: whether the values are between 0 and 1.

    Example:
        >>> {name: round(bound, 3) for name, bound in mean_interval(0.8, 0.1, 4).items()}
        {'low': 0.641, 'high': 0.959}
    """
    if count < 2:
        return None

    # SciPy takes a while to import, and runs of one client need none of it.
    from scipy.special import stdtrit

    half_width = float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    low = mean - half_width
    high = mean + half_width
    if is_share:
        low = max(0.0, low)
        high = min(1.0, high)

    return {"low": low, "high": high}
