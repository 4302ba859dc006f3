"""From reports of rounds to records: one per round, one per client and evaluation, and the result of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.core.federate import Evaluation, RoundReport
from fedtailor.core.federation import Federation
from fedtailor.core.metrics import per_client, recall, summarize

Record = dict[str, Any]


def round_record(report: RoundReport, federation: Federation) -> Record:
    """Return the line of ``rounds.jsonl`` for a round."""
    return {
        "round": report.round,
        "cohort": report.cohort,
        "steps": report.steps,
        "bytes": {"up": report.bytes_up, "down": report.bytes_down},
        "seconds": report.seconds,
        "metrics": {name: _mean(list(values.values())) for name, values in report.metrics.items()},
        "evaluations": [
            {**_labels(evaluation), "metrics": _summary(evaluation, federation)} for evaluation in report.evaluations
        ],
    }


def client_records(report: RoundReport, federation: Federation) -> list[Record]:
    """Return the lines of ``clients.jsonl`` for a round: scores by client, and its training metrics."""
    records: list[Record] = [
        {
            "round": report.round,
            "client": client,
            **_labels(evaluation),
            "num_train": len(federation.splits[client].train),
            "num_test": len(federation.splits[client].test),
            **per_client(scores),
            "recall": recall(scores),
            **_of_client("diagnostics", evaluation.diagnostics, client),
        }
        for evaluation in report.evaluations
        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True)
    ]
    trained = sorted({client for values in report.metrics.values() for client in values})
    return records + [
        {"round": report.round, "client": client, "point": "training", **_of_client("metrics", report.metrics, client)}
        for client in trained
    ]


def final_metrics(record: Record) -> tuple[Record, Record]:
    """Return the metrics by evaluation point of a round's record: of the known clients, and of the new ones."""
    known: Record = {}
    new: Record = {}
    for evaluation in record["evaluations"]:
        place = known if evaluation["clients"] == "known" else new
        labels = {name: evaluation[name] for name in ("adaptation", "test_set")}
        place[evaluation["point"]] = {**labels, "round": record["round"], **evaluation["metrics"]}
    return known, new


def totals(history: Sequence[Record]) -> Record:
    """Return seconds, bytes and gradient steps of a whole run from the records of its rounds."""
    seconds = {name: math.fsum(record["seconds"][name] for record in history) for name in ("train", "evaluate")}
    moved = {way: sum(record["bytes"][way] for record in history) for way in ("up", "down")}
    return {"seconds": seconds, "bytes": moved, "steps": sum(record["steps"] for record in history)}


def average(results: Sequence[Record]) -> Record:
    """Return the mean of results over seeds: every figure, with ``sem`` beside the figures of a metric.

    Counts (seconds, bytes, steps) are means too; what is no number is taken from the first result.
    """
    first = results[0]
    return {name: _average([result[name] for result in results]) for name in first}


def _average(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        names = [name for name in values[0] if all(name in value for value in values)]
        merged = {name: _average([value[name] for value in values]) for name in names}
        if "mean" in merged and "pooled" in merged:
            numbers = [name for name in names if isinstance(merged[name], float)]
            merged["sem"] = {name: _standard_error([value[name] for value in values]) for name in numbers}
        return merged
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        mean = _mean(values)
        return round(mean) if all(isinstance(value, int) for value in values) else mean
    return values[0]


def _labels(evaluation: Evaluation) -> Record:
    """Return what the scores are scores of."""
    return {
        "point": evaluation.point,
        "adaptation": evaluation.adaptation,
        "test_set": evaluation.test_set,
        "clients": evaluation.clients,
    }


def _summary(evaluation: Evaluation, federation: Federation) -> Record:
    num_train = [len(federation.splits[client].train) for client in evaluation.ids]
    return {name: dict(figures) for name, figures in summarize(evaluation.scores, num_train).items()}


def _of_client(name: str, table: Mapping[str, Mapping[int, float]], client: int) -> Record:
    """Return a client's numbers under a name of their own, or nothing."""
    numbers = {key: values[client] for key, values in table.items() if client in values}
    return {name: numbers} if numbers else {}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean over seeds."""
    center = _mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1) / len(values))
