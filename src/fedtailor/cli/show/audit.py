"""The results of audits, as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import typer

from fedtailor.cli.show.console import percent, say, table

_COLUMNS = (
    *("method", "model", "accuracy", "AUC", "±"),
    *("found at\n1 %", "found at\n0.1 %", "plain\nAUC", "worst client", "its AUC", "±"),
)


def show_members(record: Mapping[str, Any]) -> None:
    """Print what models tell about who was in their training: one row per method and model."""
    rows = []
    for method in record["methods"]:
        for point, numbers in method["points"].items():
            rows.append(_row(method["method"], point, numbers))

    trainings = record["trainings"]
    title = f"Who was in the training? {record['dataset']}, {trainings} trainings of each method"
    lines = [
        "accuracy: mean over clients and trainings, with half of the training examples, in %.",
        "AUC: how often an example that was in looks more like it than one that was not; 0.5: the "
        "models tell nothing. ±: standard error over trainings.",
        "found at 1 %: share of the examples that were in that are found while 1 % of the others "
        "are accused. plain AUC: of the log-odds alone, without other trainings.",
        "worst client: the one with the highest AUC, which is too high by chance.",
    ]
    say(f"All clients are in {record['folder']}/result.json")
    table(title, _COLUMNS, rows, left=2, below=" ".join(lines))
    typer.echo(record["limits"])


def _row(method: str, point: str, numbers: Mapping[str, Any]) -> list[str]:
    """Return the cells of one kind of model of a method."""
    worst: Mapping[str, Any] = {"name": "-", "auc": math.nan, "auc_standard_error": math.nan}
    if numbers["worst_client"] is not None:
        worst = numbers["clients"][numbers["worst_client"]]

    return [
        method,
        point,
        _percent(numbers["accuracy"]),
        _share(numbers["auc"]),
        _share(numbers["auc_standard_error"]),
        _percent(numbers["tpr_at_1_percent"]),
        _percent(numbers["tpr_at_01_percent"]),
        _share(numbers["threshold_auc"]),
        worst["name"],
        _share(worst["auc"]),
        _share(worst["auc_standard_error"]),
    ]


def _percent(value: float) -> str:
    """Return a share in percent."""
    return percent(value) if math.isfinite(value) else "-"


def _share(value: float) -> str:
    """Return a number between 0 and 1 with three digits."""
    return f"{value:.3f}" if math.isfinite(value) else "-"
