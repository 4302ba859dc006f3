"""The table of metrics: what summaries, records, reports, loaded runs and trackers show. No torch.

A new metric is a row of :data:`METRICS` with a function of the :class:`Scores` of one client, or of
the :class:`ClassShares` of one class.
Calibration error: Guo et al. 2017, "On Calibration of Modern Neural Networks", ICML, with 15 equal
bins. AUROC: see :mod:`fedtailor.core.scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from fedtailor.core.scores import ClassShares, Scores

Point = Literal["global", "local", "personalized"]
"""Which model of a client is evaluated."""
ClientGroup = Literal["known", "new"]
"""Clients that take part in training, or new ones, which never do."""


def _accuracy(scores: Scores) -> float:
    return float(scores.class_correct.sum()) / float(scores.class_total.sum())


def _balanced_accuracy(scores: Scores) -> float:
    return mean(list(recall(scores).values()))


def _loss(scores: Scores) -> float:
    return float(scores.loss_sum) / float(scores.class_total.sum())


def _ece(scores: Scores) -> float:
    gaps = (scores.bin_correct - scores.bin_confidence).abs()
    return float(gaps.sum()) / float(scores.class_total.sum())


def _auroc(scores: Scores) -> float | None:
    areas = [area for area in auroc(scores) if area is not None]
    return mean(areas) if areas else None


def _sensitivity(counts: ClassShares) -> tuple[float, float]:
    return counts.found, counts.positives


def _specificity(counts: ClassShares) -> tuple[float, float]:
    return counts.rejected, counts.negatives


class Metric(NamedTuple):
    """A reported metric."""

    description: str
    """What it is, of one client."""
    of_client: Callable[[Scores], float | None] | None = None
    """Its value for a client with test examples, None if it has none; without it, the metric is
    reported by class."""
    share_of_class: Callable[[ClassShares], tuple[float, float]] | None = None
    """By class, the share of some examples: how many are right, and of how many."""
    higher_is_better: bool = True
    is_share: bool = True
    """Whether it is between 0 and 1."""
    heading: str = ""
    """The heading of its column in the printed result; empty: it has no column."""
    in_percent: bool = False
    """Whether it is printed in percent."""


METRICS = {
    "accuracy": Metric(
        "share of the test examples whose most probable class is the right one",
        _accuracy,
        in_percent=True,
    ),
    "balanced_accuracy": Metric(
        "mean of the accuracies of the classes that the client has",
        _balanced_accuracy,
        heading="balanced",
        in_percent=True,
    ),
    "auroc": Metric(
        "area under the ROC curve: the probability that an example of the class gets a higher "
        "score for the class than an example of another class does, ties count one half; the mean "
        "over classes, and by class",
        _auroc,
        heading="AUROC",
    ),
    "loss": Metric("mean cross-entropy", _loss, higher_is_better=False, is_share=False),
    "ece": Metric(
        "expected calibration error: how far the model's confidence is from its accuracy, as the "
        "mean over 15 equal bins of confidence weighted by their examples (Guo et al. 2017, ICML)",
        _ece,
        higher_is_better=False,
        heading="ECE",
        in_percent=True,
    ),
    "sensitivity": Metric(
        "share of the examples of the class that are recognized as such, also called recall",
        share_of_class=_sensitivity,
    ),
    "specificity": Metric(
        "share of the examples of other classes that are not taken for the class",
        share_of_class=_specificity,
    ),
}
"""The reported metrics."""

CLIENT_METRICS = {name: metric for name, metric in METRICS.items() if metric.of_client is not None}
"""The metrics that every client has, and that are summarized over clients in every evaluation."""

CLASS_SHARES = {
    name: metric.share_of_class
    for name, metric in METRICS.items()
    if metric.share_of_class is not None
}
"""The metrics that are reported by class as shares of examples, and their functions."""

HEADINGS = {metric.heading: name for name, metric in CLIENT_METRICS.items() if metric.heading}
"""The metrics with a column beside the accuracy in printed results, by its heading."""


def per_client(scores: Scores) -> dict[str, float]:
    """Return the metrics of one client that have a value; none if it has no test examples.

    Balanced accuracy is over the classes present. AUROC is over those that have it; it is missing
    if no class has both examples and others to compare with.
    """
    if float(scores.class_total.sum()) == 0:
        return {}

    values = {}
    for name, metric in CLIENT_METRICS.items():
        value = metric.of_client(scores) if metric.of_client else None
        if value is not None:
            values[name] = value

    return values


def recall(scores: Scores) -> dict[str, float]:
    """Return the recall of every class that has examples, by class number."""
    pairs = zip(scores.class_correct.tolist(), scores.class_total.tolist(), strict=True)
    recalls = {}
    for label, (correct, count) in enumerate(pairs):
        if count > 0:
            recalls[str(label)] = correct / count
    return recalls


def auroc(scores: Scores) -> list[float | None]:
    """Return the AUROC of every class against the rest, exactly; None where there is no pair.

    Scores of several clients give the share of pairs within clients; see
    :func:`fedtailor.core.scores.across` for all pairs.

    Example:
        >>> import torch
        >>> from fedtailor.core.scores import score
        >>> logits = torch.tensor([[0.0, 2.0], [0.0, 1.0], [0.0, 0.0]])
        >>> auroc(score(logits, torch.tensor([1, 0, 1]), torch.ones(3), 2))
        [0.5, 0.5]
    """
    pairs = zip(scores.pairs_won.tolist(), scores.pairs.tolist(), strict=True)
    return [won / count if count else None for won, count in pairs]


def figures_by_class(scores: Scores) -> list[dict[str, float | None]]:
    """Return the metrics of every class; None without examples for it."""
    from fedtailor.core.scores import by_class  # imports torch

    figures: list[dict[str, float | None]] = []
    for area, counts in zip(auroc(scores), by_class(scores), strict=True):
        of_class: dict[str, float | None] = {"auroc": area}
        for name, share_of_class in CLASS_SHARES.items():
            right, examples = share_of_class(counts)
            of_class[name] = right / examples if examples else None

        figures.append(of_class)

    return figures


def mean(values: Sequence[float]) -> float:
    """Return the mean of numbers, of which there is at least one."""
    return sum(values) / len(values)


def worst_tenth(values: Sequence[float], *, higher_is_better: bool = True) -> float:
    """Return the mean of the worst tenth of clients, at least one: ``worst10`` of a result.

    >>> worst_tenth([0.9, 0.5, 0.7])
    0.5
    """
    worst_first = sorted(values, reverse=not higher_is_better)
    return mean(worst_first[: _tenth(len(values))])


def smallest_tenth(values: Sequence[float], num_train: Sequence[int]) -> float:
    """Return the mean of the tenth of clients with the least training data: ``smallest10``.

    Args:
        values: of the clients, in the order of their ids, which decides between equal amounts.
        num_train: their numbers of training examples.

    Example:
        >>> smallest_tenth([0.9, 0.5, 0.7], [20, 30, 10])
        0.7
    """
    pairs = sorted(zip(num_train, values, strict=True), key=lambda pair: pair[0])
    return mean([value for _, value in pairs[: _tenth(len(pairs))]])


def _tenth(count: int) -> int:
    return max(1, count // 10)
