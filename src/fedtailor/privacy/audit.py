"""The statistics of audits: what can be told from models about who was in their training.

Arrays only: who trains, and what is measured, is decided elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_LEAST_VARIANCE = 1e-6
"""Of signals: two trainings that differ by less say the same."""


class Detection(NamedTuple):
    """How well a score tells examples that were in a training from those that were not."""

    auc: float
    """Area under the ROC curve: 0.5 if the score tells nothing."""
    auc_standard_error: float
    """Over trainings; NaN with fewer than two."""
    tpr_at_1_percent: float
    """Share of examples in a training that are found while at most 1 % of the others are accused.
    """
    tpr_at_01_percent: float
    """The same with at most 0.1 % of the others."""


def likelihood_ratios(inside: np.ndarray, signals: np.ndarray) -> np.ndarray:
    """Return how much likelier every signal is if its example was in the training: log ratios.

    The likelihood-ratio attack of Carlini et al. (2022), "Membership inference attacks from first
    principles", offline and online in one: for the training that is attacked, the others give the
    mean signal of every example with and without it. Signals are taken as normal around these
    means. There are few trainings, so all examples share one deviation with, and one without.

    Args:
        inside: (K, n), whether example j was in training k.
        signals: (K, n), such as log-odds of the true class; NaN where there is none.

    Returns:
        (K, n); NaN for an example that all other trainings had, or none.
    """
    ratios = np.full(signals.shape, np.nan)
    for attacked in range(len(signals)):
        others = np.arange(len(signals)) != attacked
        log_likelihood_in = _log_likelihood(signals[attacked], signals[others], inside[others])
        log_likelihood_out = _log_likelihood(signals[attacked], signals[others], ~inside[others])
        ratios[attacked] = log_likelihood_in - log_likelihood_out

    return ratios


def _log_likelihood(signal: np.ndarray, others: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the log density of signals (n,) under the chosen ones (K, n) of other trainings."""
    chosen = chosen & np.isfinite(others)
    counts = chosen.sum(axis=0)
    is_known = counts > 0
    totals = np.where(chosen, others, 0.0).sum(axis=0)
    means = np.full(len(signal), np.nan)
    means[is_known] = totals[is_known] / counts[is_known]

    # One deviation for all examples, without bias: each mean takes a degree of freedom.
    squares = np.where(chosen, (others - means) ** 2, 0.0).sum()
    degrees = max(1, int((counts[is_known] - 1).sum()))
    variance = max(float(squares) / degrees, _LEAST_VARIANCE)
    log_density: np.ndarray = -((signal - means) ** 2) / (2 * variance) - 0.5 * np.log(variance)
    return log_density


def detect(inside: np.ndarray, scores: np.ndarray) -> Detection:
    """Return how well scores tell who was in.

    Args:
        inside: (K, n), whether example j was in training k.
        scores: (K, n), higher for examples that look as if they were in; NaN: left out.

    Example:
        >>> inside = np.array([[True, True, False, False], [False, True, True, False]])
        >>> detect(inside, np.array([[3.0, 1.0, 2.0, 0.0], [0.0, 3.0, 4.0, 1.0]])).auc
        0.90625
    """
    usable = np.isfinite(scores)
    by_training = []
    for truth, score, known in zip(inside, scores, usable, strict=True):
        by_training.append(area(truth[known], score[known]))

    spread = np.array(by_training)
    spread = spread[np.isfinite(spread)]
    standard_error = np.nan
    if len(spread) > 1:
        standard_error = float(spread.std(ddof=1) / np.sqrt(len(spread)))

    truth = inside[usable]
    score = scores[usable]
    return Detection(
        auc=area(truth, score),
        auc_standard_error=standard_error,
        tpr_at_1_percent=true_positive_rate(truth, score, 0.01),
        tpr_at_01_percent=true_positive_rate(truth, score, 0.001),
    )


def area(inside: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve; NaN if all examples were in, or none.

    It is the share of pairs, of one that was in (m of n) and one that was not, in which the first
    has the higher score. Equal scores count one half.

    Args:
        inside: (n,), whether each example was in.
        scores: (n,)

    Example:
        >>> area(np.array([True, True, False]), np.array([2.0, 1.0, 1.0]))
        0.75
    """
    members = scores[inside]
    others = np.sort(scores[~inside])
    if len(members) == 0 or len(others) == 0:
        return float("nan")

    below = np.searchsorted(others, members, side="left")
    not_above = np.searchsorted(others, members, side="right")
    return float((below + not_above).sum() / (2 * len(members) * len(others)))


def true_positive_rate(inside: np.ndarray, scores: np.ndarray, most_false: float) -> float:
    """Return the share found of those that were in, with a threshold that accuses few others.

    Nothing is interpolated: it is a threshold that exists.

    Args:
        inside: (n,), whether each example was in.
        scores: (n,)
        most_false: the largest share of the others above the threshold, such as 0.01.

    Example:
        >>> inside = np.array([True, True, True, False, False])
        >>> true_positive_rate(inside, np.array([3.0, 2.0, 0.0, 1.0, 0.0]), 0.0)
        0.6666666666666666
    """
    members = scores[inside]
    others = np.sort(scores[~inside])[::-1]
    if len(members) == 0 or len(others) == 0:
        return float("nan")

    # The first of the others that must not be accused: only what lies above it is.
    allowed = int(np.floor(most_false * len(others) + 1e-9))
    if allowed >= len(others):
        return 1.0
    return float((members > others[allowed]).mean())
