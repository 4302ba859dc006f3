"""The operating point of a model of two classes: from which probability on an input is positive.

The positive class is ``evaluation.positive``, or the last one. The most probable class is one
operating point; where a missed case costs more than a false alarm, the threshold for a wanted
sensitivity is another.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_FEWEST_POSITIVES = 10
"""Validation examples of the positive class without which no threshold is chosen."""


class OperatingPoint(NamedTuple):
    """A threshold for a wanted sensitivity, and what it rests on."""

    sensitivity: float
    """That was wanted."""
    positive: int
    """Number of the positive class."""
    positives: int
    """Validation examples of the positive class, which the threshold rests on."""
    log_odds: float | None
    """An input is positive if its logit for the positive class, less the other one, is at least
    this; None: no threshold was chosen."""
    probability: float | None
    """The same as a probability of the positive class, with the model's temperature."""
    problem: str
    """Why no threshold was chosen; empty: one was."""
    test: dict[str, int] | None = None
    """On the test examples: ``positives``, of which ``found``, and ``negatives``, of which
    ``rejected``; None: there are none, or no threshold."""


def choose_threshold(
    logits: Tensor,
    labels: Tensor,
    sensitivity: float,
    temperature: float,
    positive: int = 1,
) -> OperatingPoint:
    """Choose the threshold that finds a wanted share of the positive examples.

    It is the k-th smallest log-odds of the n positive validation examples, k = floor((1 -
    sensitivity) (n + 1)): a further positive example lies below it with a probability of at most k
    / (n + 1), for any distribution (the conformal quantile; Vovk, Gammerman and Shafer 2005,
    Algorithmic Learning in a Random World). So the sensitivity is reached on average over such
    choices; on few examples, that of one choice may be lower. There is no such k for too few
    examples, and none is chosen for fewer than 10.

    Args:
        logits: of validation examples (n, 2).
        labels: (n,), 0 or 1.
        sensitivity: the wanted share, above 0 and below 1.
        temperature: of the model's probabilities.
        positive: number of the positive class.

    Example:
        >>> logits = torch.stack([torch.zeros(19), torch.arange(19.0)], 1)
        >>> point = choose_threshold(logits, torch.ones(19), 0.9, 1.0)
        >>> point.log_odds, point.positives
        (1.0, 19)
    """
    odds = log_odds(logits, positive)[labels == positive].sort().values
    count = len(odds)

    # A whole number may come out a little too small, such as (1 - 0.9) * 10.
    rank = math.floor((1.0 - sensitivity) * (count + 1) + 1e-9)
    needed = max(_FEWEST_POSITIVES, math.ceil(1.0 / (1.0 - sensitivity) - 1e-9) - 1)
    problem = ""
    if count < needed:
        problem = f"a sensitivity of {sensitivity:g} needs {needed} positive validation examples"
        problem += f", there are {count}"
    elif not torch.isfinite(odds).all():
        problem = "the model gives some positive validation examples log-odds that are not finite"

    if problem:
        return OperatingPoint(sensitivity, positive, count, None, None, problem)

    threshold = float(odds[rank - 1])
    probability = 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, threshold / temperature))))
    return OperatingPoint(sensitivity, positive, count, threshold, probability, "")


def log_odds(logits: Tensor, positive: int = 1) -> Tensor:
    """Return the logits of the positive class, less those of the other one (n,), float64."""
    return logits[:, positive].double() - logits[:, 1 - positive].double()


def classify(logits: Tensor, threshold: float | None, positive: int = 1) -> Tensor:
    """Return the numbers of the predicted classes (n,).

    Args:
        logits: (n, classes).
        threshold: ``log_odds`` of an operating point; None: the most probable class.
        positive: number of the positive class.
    """
    if threshold is None:
        return logits.argmax(1)
    is_positive = log_odds(logits, positive) >= threshold
    return torch.where(is_positive, positive, 1 - positive)


def count_right(
    logits: Tensor, labels: Tensor, threshold: float, positive: int = 1
) -> dict[str, int]:
    """Return how many test examples a threshold gets right, see :attr:`OperatingPoint.test`."""
    right = classify(logits, threshold, positive) == labels
    is_positive = labels == positive
    return {
        "positives": int(is_positive.sum()),
        "found": int((right & is_positive).sum()),
        "negatives": int((~is_positive).sum()),
        "rejected": int((right & ~is_positive).sum()),
    }
