"""The summary of metrics over the clients of a federation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedtailor.core.metrics import CLIENT_METRICS, mean, per_client, recall
from fedtailor.core.scores import Scores, across, auroc_error, total


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
        errors = [error for error in auroc_error(together) if error is not None]
        summary["auroc"]["clients"] = float(sum("auroc" in client for client, _ in scored))
        summary["auroc"]["pooled_error"] = mean(errors)

    return {**summary, "recall": recall(together), "clients": clients}


def _summarize_metric(
    name: str, scored: Sequence[tuple[Mapping[str, float], int]], pooled: float
) -> dict[str, float]:
    """Summarize one metric over the clients that have it, each with its amount of training data."""
    having = [(client[name], amount) for client, amount in scored if name in client]
    if not having:
        return {"pooled": pooled}

    values = [value for value, _ in having]
    least_data_first = sorted(having, key=lambda pair: pair[1])
    smallest = [value for value, _ in least_data_first[: _tenth(len(having))]]
    return {
        "pooled": pooled,
        "smallest10": mean(smallest),
        **_over_clients(values, CLIENT_METRICS[name].higher_is_better),
    }


def _over_clients(values: Sequence[float], higher_is_better: bool) -> Mapping[str, float]:
    """Summarize one metric over clients."""
    worst_first = sorted(values, reverse=not higher_is_better)
    return {
        "mean": mean(values),
        "std": _std(values),
        "worst10": mean(worst_first[: _tenth(len(values))]),
        "min" if higher_is_better else "max": worst_first[0],
    }


def _tenth(count: int) -> int:
    return max(1, count // 10)


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
