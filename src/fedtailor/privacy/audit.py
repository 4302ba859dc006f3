"""The statistics of audits: what models tell about who was in their training, and noisy sums too.

Arrays only: who trains, and what is measured, is decided elsewhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, bdtrc

from fedtailor.core.bisection import bisect

_LEAST_VARIANCE = 1e-6
"""Of signals: two trainings that differ by less say the same."""
_ONE_SIDED = 1.645
"""Standard errors to an end that is beyond the truth in 5 % of all cases."""
_SIGNIFICANCE = 0.05
_MOST_EPSILON = 50.0
"""That guesses are compared with."""
_HALVINGS = 26
"""Of the numbers up to it, until they differ by less than a millionth."""


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


# Who contributed to noisy sums


class EpsilonEstimate(NamedTuple):
    """How much the scores of canaries tell, as an epsilon.

    Each end is beyond the truth in 5 % of all audits.
    """

    epsilon: float
    low: float
    high: float


def estimate_epsilon(inside: np.ndarray, scores: np.ndarray, delta: float) -> EpsilonEstimate:
    """Return the epsilon of two normal distributions whose gap is that of the scores.

    In the manner of Andrew et al. (2024), "One-shot empirical privacy estimation for federated
    learning", ICLR: the gap between the mean scores of canaries that took part and of those that
    did not, over their common deviation, is that of N(mu, 1) and N(0, 1), whose epsilon is known
    exactly. It is an estimate, and no bound: scores are taken as normal.

    Args:
        inside: (n,), which canaries took part; at least two did, and two did not.
        scores: (n,), higher for canaries that look as if they took part.
        delta: of the claim.

    Example:
        >>> inside = np.array([True, True, False, False])
        >>> scores = np.array([3.0, 5.0, 1.0, -1.0])
        >>> round(estimate_epsilon(inside, scores, 1e-5).epsilon, 2)
        15.46
    """
    members = scores[inside]
    others = scores[~inside]
    variance_in = float(members.var(ddof=1))
    variance_out = float(others.var(ddof=1))
    variance = (variance_in + variance_out) / 2
    gap = float(members.mean() - others.mean())
    if variance == 0:
        told = math.inf if gap > 0 else 0.0
        return EpsilonEstimate(told, told, told)

    # The means are uncertain, and so is the deviation.
    mu = gap / math.sqrt(variance)
    of_means = (variance_in / len(members) + variance_out / len(others)) / variance
    of_deviation = mu**2 / (2 * (len(scores) - 2))
    margin = _ONE_SIDED * math.sqrt(of_means + of_deviation)
    return EpsilonEstimate(
        epsilon=_epsilon_of_normals(mu, delta),
        low=_epsilon_of_normals(mu - margin, delta),
        high=_epsilon_of_normals(mu + margin, delta),
    )


def _epsilon_of_normals(mu: float, delta: float) -> float:
    """Return epsilon of N(mu, 1) against N(0, 1)."""
    from fedtailor.privacy.accountant import Release, epsilon_of

    return epsilon_of(delta, [Release(1 / mu, 1.0, 1)]) if mu > 0 else 0.0


def guessed_epsilon(inside: np.ndarray, scores: np.ndarray, delta: float) -> float:
    """Return the epsilon that right guesses prove, with 95 % confidence.

    The bound of Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run",
    NeurIPS, which assumes nothing about the scores. The quarter of the canaries with the highest
    scores is guessed to have taken part, and that with the lowest not. Even if all guesses are
    right, it is small: see :func:`most_by_guessing`.

    Args:
        inside: (n,), which canaries took part.
        scores: (n,), higher for canaries that look as if they took part.
        delta: of the claim.
    """
    quarter = len(scores) // 4
    order = np.argsort(scores, kind="stable")
    right = int(inside[order[-quarter:]].sum() + (~inside[order[:quarter]]).sum())
    return _proven(len(scores), 2 * quarter, right, delta)


def most_by_guessing(canaries: int, delta: float) -> float:
    """Return the epsilon that guesses prove if all of them are right.

    Example:
        >>> round(most_by_guessing(200, 1e-3), 2)
        2.85
    """
    guesses = 2 * (canaries // 4)
    return _proven(canaries, guesses, guesses, delta)


def _proven(canaries: int, guesses: int, right: int, delta: float) -> float:
    """Return the largest epsilon with which so many right guesses are too unlikely."""

    def is_too_unlikely(epsilon: float) -> bool:
        return chance_of_guesses(canaries, guesses, right, epsilon, delta) < _SIGNIFICANCE

    if not is_too_unlikely(0.0):
        return 0.0
    return bisect(is_too_unlikely, 0.0, _MOST_EPSILON, steps=_HALVINGS)[0]


def chance_of_guesses(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Return with which probability guesses are right, at most (Steinke et al. 2023, theorem 5.2).

    Args:
        canaries: of which each took part with probability 1/2 (m).
        guesses: about how many of them a guess was made (r).
        right: so many guesses, or more, are right (v); at least 1.
        epsilon: of the mechanism.
        delta: of the mechanism.
    """
    rate = 1 / (1 + math.exp(-epsilon))
    chance = float(bdtrc(right - 1, guesses, rate))

    # Up to i guesses may be right by delta alone.
    fewer = np.arange(right)[::-1]
    below = np.where(fewer > 0, bdtr(np.maximum(fewer - 1, 0), guesses, rate), 0.0)
    within = float(bdtr(right - 1, guesses, rate)) - below
    by_delta = float((within / np.arange(1, right + 1)).max()) if right else 0.0
    return min(1.0, chance + 2 * canaries * delta * by_delta)
