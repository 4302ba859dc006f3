"""Scores of predictions.

:class:`Scores` are sums, so they add up over batches and clients. Every metric is computed from
them, see :mod:`fedtailor.core.metrics`.

AUROC (area under the receiver operating characteristic) of a class against the rest: the share of
pairs of an example of the class (positive) and another one (negative) in which the positive one has
the higher score; ties count one half (Hanley and McNeil 1982, "The meaning and use of the area
under a ROC curve", Radiology 143 (1)). The score is the log-odds of the class, rounded to a
multiple of 2^-20, so that rounding errors of equal predictions break no ties. In a client the pairs
are counted exactly. Over clients they are counted from histograms of scores, which add up: the only
pairs that are not known are those of one bin. They count one half, so the error is at most half
their share. This bound is reported beside the figure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int, Real
from torch import Tensor

BINS = 15
"""Bins of confidence, each open below and closed above."""

SCORE_BINS = 512
"""Bins of log-odds, in the histograms of scores. Bin b begins at ``2 sinh((b - 256) / 72)``.

The bins are 0.028 wide around 0, 0.04 at 2, 0.14 at 10, and reach to 35 on either side; the first
and the last one hold all beyond.
"""
_BIN_SCALE = 72.0
_STEPS = 2.0**20
"""Steps of rounded scores per unit of log-odds."""
_DIGITS = 6
"""Decimal places of sums of confidence in records."""


class Scores(NamedTuple):
    """Sums over examples, in float64 but for the histogram."""

    class_correct: Float64[Tensor, "classes"]
    """Examples of every class that were predicted correctly."""
    class_total: Float64[Tensor, "classes"]
    """Examples of every class."""
    loss_sum: Float64[Tensor, ""]
    """Sum of the cross-entropy."""
    bin_count: Float64[Tensor, "bins"]
    """Examples in every bin of confidence."""
    bin_confidence: Float64[Tensor, "bins"]
    """Sum of the confidence in every bin."""
    bin_correct: Float64[Tensor, "bins"]
    """Examples in every bin that were predicted correctly."""
    confusion: Float64[Tensor, "classes classes"]
    """Examples by class (row) and prediction (column); without those whose logits are NaN."""
    pairs: Float64[Tensor, "classes"]
    """Pairs of an example of the class and another example of the same client."""
    pairs_won: Float64[Tensor, "classes"]
    """Those in which the example of the class has the higher score for it; ties count one half."""
    histogram: Int[Tensor, "..."]
    """Examples of every class (0) and of other classes (1), by class and bin of the score for it:
    (2, classes, bins).

    :func:`packed`: (2, n), the places in this table that are not 0, counted through, and their
    values.
    """


class FigureSum(NamedTuple):
    """A figure over the clients that have it."""

    clients: int
    """How many they are."""
    total: float
    """The sum of their values."""
    squares: float
    """The sum of their squares."""

    @property
    def mean(self) -> float:
        """The mean over these clients, of whom there is at least one."""
        return self.total / self.clients

    @property
    def deviation(self) -> float:
        """The unbiased standard deviation; 0 for one client.

        Rounding alone makes up to 1e-7 of it.
        """
        if self.clients < 2:
            return 0.0
        variance = (self.squares - self.total**2 / self.clients) / (self.clients - 1)
        return math.sqrt(max(variance, 0.0))


class ScoreSums(NamedTuple):
    """The scores of some clients, of which only the sum is known."""

    total: Scores
    """Over all examples."""
    figures: Mapping[str, FigureSum]
    """By the names of :data:`fedtailor.core.metrics.CLIENT_METRICS`."""
    by_class: Sequence[Mapping[str, FigureSum]]
    """The figures of every class."""
    clients: frozenset[int]
    """Who is in the sum."""
    scored: int
    """How many of them have scores, of test examples or of none."""


class NumberSum(NamedTuple):
    """A number that a method reports, over the clients that report it."""

    clients: int
    total: float


class ReportSums(NamedTuple):
    """What is known of the answers of some clients that have sent a sum."""

    clients: frozenset[int] = frozenset()
    """Who is in it."""
    scores: Mapping[str, ScoreSums] = {}
    """By test set."""
    numbers: Mapping[str, NumberSum] = {}
    """By name."""
    problem: str = ""
    """Why there is no sum; empty: there is one."""


def score(
    logits: Float[Tensor, "n classes"],
    labels: Int[Tensor, "n"],
    weight: Real[Tensor, "n"],
    num_classes: int,
    *,
    rank: bool = True,
) -> Scores:
    """Score predictions. Weights are 1, or 0 for rows that do not count.

    Runs under ``torch.func.vmap``.

    Log-probabilities are logits too. A row whose logits are NaN counts as wrong, with infinite loss
    and confidence 0, the lowest score for its class and the highest one for the others. Without
    ``rank``, no pairs are counted, and the histogram stays empty: there is no AUROC.
    """
    classes = torch.arange(num_classes, device=labels.device)
    present = weight > 0
    row_weight = weight.double()

    # The prediction of every row, and what its label costs.
    log_probs = torch.log_softmax(logits.double(), dim=1)
    valid = ~log_probs.isnan().any(1)
    confidence, predicted = log_probs.max(1)
    confidence = torch.where(valid, confidence.exp(), 0.0)
    right = row_weight * (valid & (predicted == labels))
    target = labels.clamp(0, num_classes - 1)
    loss = torch.where(valid, -log_probs.gather(1, target[:, None])[:, 0], torch.inf)

    # Sums by class and by bin are products with indicators, (n, classes) and (n, bins).
    is_member = labels[:, None] == classes
    member = is_member.double()
    position = ((confidence * BINS).ceil() - 1.0).clamp(0, BINS - 1)
    chosen = (predicted[:, None] == classes).double()
    in_bin = (position[:, None] == torch.arange(BINS, device=labels.device)).double()
    confusion = (member * (row_weight * valid)[:, None]).T @ chosen

    if rank:
        # Two groups for each class: its examples, and all others, (2, classes, n).
        positive = is_member.T & present
        groups = torch.stack((positive, positive ^ present)).int()
        ranks = _ranks(log_probs, valid, member)
        pairs = groups.sum(2).prod(0).double()
        pairs_won = _pairs_won(ranks, groups)
        histogram = _histogram(ranks, groups)
    else:
        pairs = pairs_won = torch.zeros(num_classes, dtype=torch.float64, device=labels.device)
        histogram = torch.zeros(2, 0, dtype=torch.int64, device=labels.device)

    return Scores(
        class_correct=confusion.diagonal(),
        class_total=row_weight @ member,
        loss_sum=torch.where(present, row_weight * loss, 0.0).sum(),
        bin_count=row_weight @ in_bin,
        bin_confidence=(row_weight * confidence) @ in_bin,
        bin_correct=right @ in_bin,
        confusion=confusion,
        pairs=pairs,
        pairs_won=pairs_won,
        histogram=histogram,
    )


def _ranks(
    log_probs: Float[Tensor, "n classes"],
    valid: Bool[Tensor, "n"],
    member: Float[Tensor, "n classes"],
) -> Float[Tensor, "classes n"]:
    """Return the score of every example for every class, in steps.

    Precise also where a probability is nearly 1.
    """
    others = _all_others(log_probs.shape[1], log_probs.device)
    log_odds = log_probs - (log_probs.exp() @ others).log()
    worst = (0.5 - member) * torch.inf
    return (torch.where(valid[:, None], log_odds, worst) * _STEPS).round().T.contiguous()


@functools.cache
def _all_others(classes: int, device: torch.device) -> Tensor:
    """Return the matrix that adds up all other classes for every class, (classes, classes)."""
    return 1.0 - torch.eye(classes, dtype=torch.float64, device=device)


@functools.cache
def _inner_edges(device: torch.device) -> Tensor:
    """Return where the bins of the histogram begin, in steps, from the second one on."""
    number = torch.arange(1, SCORE_BINS, dtype=torch.float64, device=device) - SCORE_BINS // 2
    return (2.0 * (number / _BIN_SCALE).sinh() * _STEPS).ceil()


def _pairs_won(
    ranks: Float[Tensor, "classes n"], groups: Int[Tensor, "groups classes n"]
) -> Float[Tensor, "classes"]:
    """Count the pairs in which the positive example has the higher score; ties count one half.

    Args:
        ranks: the scores.
        groups: which examples are positive, and which are negative.
    """
    ascending, order = ranks.sort(1)
    # The number of each score among the different ones, then examples by group, class and score.
    value = (ascending != ascending.roll(1, 1)).cumsum(1)
    empty = groups.new_zeros(*groups.shape[:2], groups.shape[2] + 1)
    in_order = groups.gather(2, order.expand_as(groups))
    return _won_in_order(empty.scatter_add(2, value.expand_as(groups), in_order))


def _won_in_order(counts: Real[Tensor, "groups classes values"]) -> Float[Tensor, "classes"]:
    """Count the pairs that positive examples win, from the counts by ascending score."""
    positives, negatives = counts
    # Twice the count: a tie is half as much as a pair that is won.
    fewer_twice = 2 * negatives.cumsum(1) - negatives
    won_twice: Tensor = (positives * fewer_twice).sum(1)
    return won_twice.double() / 2.0


def _histogram(
    ranks: Float[Tensor, "classes n"], groups: Int[Tensor, "groups classes n"]
) -> Int[Tensor, "groups classes bins"]:
    """Count positive and negative examples by class and bin."""
    cells = torch.bucketize(ranks, _inner_edges(ranks.device), right=True)
    empty = groups.new_zeros(*groups.shape[:2], SCORE_BINS)
    return empty.scatter_add(2, cells.expand_as(groups), groups)


def packed(scores: Scores) -> Scores:
    """Return the same scores with a histogram that takes memory for what is not 0 only."""
    if scores.histogram.dim() == 2:
        return scores
    table = scores.histogram.flatten()
    filled = table.nonzero()[:, 0]
    return scores._replace(histogram=torch.stack((filled, table[filled])))


def is_ranked(scores: Scores) -> bool:
    """Return whether scores hold what AUROC needs, if there are examples at all."""
    return scores.histogram.numel() > 0


def _full_histogram(scores: Sequence[Scores]) -> Int[Tensor, "2 classes bins"]:
    """Return the sum of the histograms of some scores."""
    classes = len(scores[0].class_total)
    filled, counts = torch.cat([packed(single).histogram for single in scores], dim=1)
    empty = torch.zeros(2 * classes * SCORE_BINS, dtype=torch.int64, device=filled.device)
    return empty.scatter_add_(0, filled, counts).reshape(2, classes, SCORE_BINS)


def add(first: Scores, second: Scores) -> Scores:
    """Return the scores of both sets of examples together; pairs are those within either set."""
    return total([first, second])


def total(scores: Sequence[Scores]) -> Scores:
    """Return the scores of several sets of examples together, with an unpacked histogram."""
    histogram = _full_histogram(scores)
    plain = [single._replace(histogram=histogram[:0]) for single in scores]
    sums = [torch.stack(column).sum(0) for column in zip(*plain, strict=True)]
    return Scores(*sums)._replace(histogram=histogram)


def across(scores: Scores) -> Scores:
    """Return the scores with all pairs of examples, also of different clients.

    They are counted from the histogram.
    """
    counts = _full_histogram([scores])
    return scores._replace(pairs=counts.sum(2).prod(0).double(), pairs_won=_won_in_order(counts))


def auroc_error(scores: Scores) -> list[float | None]:
    """Return the most by which an AUROC that was counted from the histogram can be wrong."""
    positives, negatives = _full_histogram([scores])
    undecided = (positives * negatives).sum(1) / 2
    pairs = positives.sum(1) * negatives.sum(1)
    return [
        error / count if count else None
        for error, count in zip(undecided.tolist(), pairs.tolist(), strict=True)
    ]


class ClassShares(NamedTuple):
    """What the predictions say about one class against the rest, as counts of examples."""

    positives: float
    """Examples of the class."""
    found: float
    """Those that were predicted as the class; divided by ``positives``: sensitivity, or recall."""
    negatives: float
    """Examples of other classes."""
    rejected: float
    """Those that were predicted as another class; divided by ``negatives``: specificity."""


def by_class(scores: Scores) -> list[ClassShares]:
    """Return the counts behind sensitivity and specificity of every class.

    NaN is not a prediction, so it counts as wrong.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0], [0.0, 1.0], [1.0, 0.0]])
        >>> by_class(score(logits, torch.tensor([1, 0, 0]), torch.ones(3), 2))[1]
        ClassShares(positives=1.0, found=1.0, negatives=2.0, rejected=1.0)
    """
    count = float(scores.class_total.sum())
    predicted = scores.confusion.sum(1)
    shares = []
    for label, positives in enumerate(scores.class_total.tolist()):
        recognized = float(scores.confusion[label, label])
        others = float(predicted.sum() - predicted[label])
        mistaken = float(scores.confusion[:, label].sum() - scores.confusion[label, label])
        shares.append(ClassShares(positives, recognized, count - positives, others - mistaken))

    return shares


def reliability(scores: Scores) -> list[list[int | float]]:
    """Return the bins of confidence that hold examples.

    Number of the bin, examples, sum of confidence, correct ones.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
        >>> reliability(score(logits, torch.tensor([1, 0]), torch.ones(2), 2))
        [[13, 2, 1.761594, 1]]
    """
    columns = zip(
        scores.bin_count.tolist(),
        scores.bin_confidence.tolist(),
        scores.bin_correct.tolist(),
        strict=True,
    )

    return [
        [number, _plain(count), round(confidence, _DIGITS), _plain(correct)]
        for number, (count, confidence, correct) in enumerate(columns)
        if count > 0
    ]


def confusion(scores: Scores) -> list[list[int | float]]:
    """Return the pairs of class and prediction that occur: class, prediction, examples.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
        >>> confusion(score(logits, torch.tensor([1, 0]), torch.ones(2), 2))
        [[0, 1, 1], [1, 1, 1]]
    """
    pairs = scores.confusion.nonzero().tolist()
    return [
        [label, predicted, _plain(float(scores.confusion[label, predicted]))]
        for label, predicted in pairs
    ]


def _plain(count: float) -> int | float:
    """Return a whole number as one."""
    return int(count) if count.is_integer() else count
