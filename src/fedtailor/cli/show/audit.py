"""The results of audits, as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import typer

from fedtailor.cli.show.console import say, table
from fedtailor.core.text import percent

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


def show_noise(record: Mapping[str, Any]) -> None:
    """Print what noise claims, and what was found."""
    whose = ""
    if record["unit"] == "example":
        whose = f", examples of client {record['client']} hidden by {record['bounds']}"
    typer.echo(
        f"Does the noise keep its claim? {record['method']}, {record['dataset']}, "
        f"{record['clients']} clients, {record['rounds']} rounds, seed {record['seed']}{whose}; "
        f"epsilon for delta {record['delta']:g}:"
    )

    half = record["half_noise"]
    guesses = record["guesses"]
    numbers = {
        "claim": f"{record['claim']:.2f}",
        "estimate": _interval(record["estimate"]),
        "proven by guesses": f"{guesses['epsilon']:.2f} (never more than {guesses['at_most']:.2f})",
        "with half the noise": _interval(half),
        "added noise": f"{record['added_noise']['share']:.3f} of the deviation that is claimed",
    }
    for name, text in numbers.items():
        typer.echo(f"  {name:20} {text}")

    for sentence in _verdict(record):
        typer.echo(sentence)
    if not half["would_be_found"]:
        typer.echo("From scores, half the noise would not have been found: use more canaries.")
    typer.echo(
        f"{record['canaries']} canaries, {record['taking_part']} took part. {record['limits']}"
    )


def _verdict(record: Mapping[str, Any]) -> list[str]:
    """Return what contradicts the claim of noise, in sentences, or that nothing does."""
    sentences = []
    low = record["estimate"]["low"]
    if low > record["claim"]:
        sentences.append(
            f"CONTRADICTION: the lower end of the estimate, {low:.2f}, is above the claim. That is "
            "so in one of twenty audits of noise that keeps its claim: repeat it with other seeds."
        )

    parts = record["added_noise"]["parts"]
    small = [part["part"] for part in parts if part["is_too_small"]]
    if small:
        sentences.append(f"CONTRADICTION: less noise than is claimed in {', '.join(small)}.")
    repeated = [part["part"] for part in parts if part["repeats"]]
    if repeated:
        sentences.append(
            f"CONTRADICTION: the noise of a round depends on that of others in "
            f"{', '.join(repeated)}."
        )

    if not sentences:
        return [
            "No contradiction: the lower end of the estimate is not above the claim, and no part "
            "of the messages has too little noise."
        ]
    return sentences


def _interval(estimate: Mapping[str, float]) -> str:
    """Return an estimate with its ends."""
    return f"{estimate['epsilon']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"


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
