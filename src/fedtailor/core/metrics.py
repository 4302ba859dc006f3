"""Scores of predictions, and their summary over the clients of a federation.

:class:`Scores` are sums, so they add up over batches and clients. Every reported figure is computed from them.
Calibration error: Guo et al. 2017, "On Calibration of Modern Neural Networks", ICML, with 15 equal bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Real
from torch import Tensor

BINS = 15
"""Bins of confidence, each open below and closed above."""

_DIGITS = 6
"""Decimal places of sums of confidence in records."""

HIGHER_IS_BETTER = {"accuracy": True, "balanced_accuracy": True, "loss": False, "ece": False}
"""The reported metrics."""


class Scores(NamedTuple):
    """Sums over examples, in float64."""

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


def score(
    logits: Float[Tensor, "n classes"], labels: Int[Tensor, "n"], weight: Real[Tensor, "n"], num_classes: int
) -> Scores:
    """Score predictions; rows of weight 0 do not count. Runs under ``torch.func.vmap``.

    Log-probabilities are logits too. A row whose logits are NaN counts as wrong, with infinite loss and confidence 0.
    """
    row_weight = weight.double()
    log_probs = torch.log_softmax(logits.double(), dim=1)
    valid = ~log_probs.isnan().any(1)
    confidence, predicted = log_probs.max(1)
    confidence = torch.where(valid, confidence.exp(), 0.0)
    right = row_weight * (valid & (predicted == labels))
    target = labels.clamp(0, num_classes - 1)
    loss = torch.where(valid, -log_probs.gather(1, target[:, None])[:, 0], torch.inf)
    member = (labels[:, None] == torch.arange(num_classes, device=labels.device)).double()
    position = ((confidence * BINS).ceil() - 1.0).clamp(0, BINS - 1)
    chosen = (predicted[:, None] == torch.arange(num_classes, device=labels.device)).double()
    in_bin = (position[:, None] == torch.arange(BINS, device=labels.device)).double()
    return Scores(
        class_correct=right @ member,
        class_total=row_weight @ member,
        loss_sum=torch.where(row_weight > 0, row_weight * loss, 0.0).sum(),
        bin_count=row_weight @ in_bin,
        bin_confidence=(row_weight * confidence) @ in_bin,
        bin_correct=right @ in_bin,
        confusion=(member * (row_weight * valid)[:, None]).T @ chosen,
    )


def add(first: Scores, second: Scores) -> Scores:
    """Return the scores of both sets of examples together."""
    return Scores(*(a + b for a, b in zip(first, second, strict=True)))


def per_client(scores: Scores) -> dict[str, float]:
    """Return accuracy, balanced accuracy (over the classes present), loss and calibration error.

    Empty if there are no examples.
    """
    total = float(scores.class_total.sum())
    if total == 0:
        return {}
    recalls = recall(scores).values()
    gaps = (scores.bin_correct - scores.bin_confidence).abs()
    return {
        "accuracy": float(scores.class_correct.sum()) / total,
        "balanced_accuracy": sum(recalls) / len(recalls),
        "loss": float(scores.loss_sum) / total,
        "ece": float(gaps.sum()) / total,
    }


def recall(scores: Scores) -> dict[str, float]:
    """Return the recall of every class that has examples, by class number."""
    pairs = zip(scores.class_correct.tolist(), scores.class_total.tolist(), strict=True)
    return {str(label): correct / total for label, (correct, total) in enumerate(pairs) if total > 0}


def reliability(scores: Scores) -> list[list[int | float]]:
    """Return the bins of confidence that hold examples: number of the bin, examples, sum of confidence, correct ones.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
        >>> reliability(score(logits, torch.tensor([1, 0]), torch.ones(2), 2))
        [[13, 2, 1.761594, 1]]
    """
    columns = zip(scores.bin_count.tolist(), scores.bin_confidence.tolist(), scores.bin_correct.tolist(), strict=True)
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
    return [[label, predicted, _plain(float(scores.confusion[label, predicted]))] for label, predicted in pairs]


def _plain(count: float) -> int | float:
    """Return a whole number as one."""
    return int(count) if count.is_integer() else count


def summarize(scores: Sequence[Scores], num_train: Sequence[int]) -> dict[str, dict[str, float]]:
    """Summarize the scores of clients, given in the order of their ids.

    Returns:
        For every metric ``mean`` (over clients, unweighted), ``pooled`` (over examples), ``std`` (over clients,
        unbiased; 0 for one client), ``worst10`` (mean of the worst tenth of clients, at least one),
        ``smallest10`` (mean of the tenth with the least training data, ties by id), and the worst client: ``min``
        of accuracies, ``max`` of ``loss`` and ``ece``. ``recall`` holds the pooled recall by class. Clients
        without test examples are left out. ``clients`` holds how many were ``evaluated`` and ``skipped``; it is the
        only entry if no client has test examples.
    """
    figures = [(per_client(single), amount) for single, amount in zip(scores, num_train, strict=True)]
    found = [(client, amount) for client, amount in figures if client]
    clients = {"evaluated": float(len(found)), "skipped": float(len(figures) - len(found))}
    if not found:
        return {"clients": clients}
    together = Scores(*(torch.stack(column).sum(0) for column in zip(*scores, strict=True)))
    pooled = per_client(together)
    smallest = sorted(range(len(found)), key=lambda client: found[client][1])[: _tenth(len(found))]
    summary = {
        name: {
            "pooled": pooled[name],
            "smallest10": _mean([found[client][0][name] for client in smallest]),
            **_over_clients([client[name] for client, _ in found], higher_is_better),
        }
        for name, higher_is_better in HIGHER_IS_BETTER.items()
    }
    return {**summary, "recall": recall(together), "clients": clients}


def _over_clients(values: Sequence[float], higher_is_better: bool) -> Mapping[str, float]:
    """Summarize one metric over clients."""
    worst_first = sorted(values, reverse=not higher_is_better)
    return {
        "mean": _mean(values),
        "std": _std(values),
        "worst10": _mean(worst_first[: _tenth(len(values))]),
        "min" if higher_is_better else "max": worst_first[0],
    }


def _tenth(count: int) -> int:
    return max(1, count // 10)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    """Return the unbiased standard deviation: 0 for one value, infinite if any value is infinite."""
    if len(values) == 1:
        return 0.0
    if not all(map(math.isfinite, values)):
        return math.inf
    center = _mean(values)
    return math.sqrt(sum((value - center) ** 2 for value in values) / (len(values) - 1))
