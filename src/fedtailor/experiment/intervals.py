"""95 % intervals of figures. No torch."""

from __future__ import annotations

import math

Interval = dict[str, float]
"""``low`` and ``high``."""
NORMAL_975 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
_HALVINGS = 60
"""Steps of a bisection of [0, 1], until floating-point numbers are exhausted."""


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
    low = 0.0
    high = auroc
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if auroc - middle > NORMAL_975 * _hanley_mcneil_error(middle, positives, negatives):
            low = middle
        else:
            high = middle

    return low


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

    return (
        {"low": max(0.0, low), "high": min(1.0, high)} if is_share else {"low": low, "high": high}
    )
