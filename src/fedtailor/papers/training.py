"""What clients report of their training, shortened for records. No torch."""

from __future__ import annotations

import math
from typing import Any

from fedtailor.experiment.records import Run

_ROUNDS = 20
"""About the number of rounds of a curve."""


def training_metrics(finished: Run) -> dict[str, dict[str, list[Any]]]:
    """Return the training metrics of a run as lists, with six digits.

    Returns:
        ``curve``: means over clients, for the rounds of the list ``round``. ``last_round``: the
        numbers of the clients in the list ``client``, which trained in it.
    """
    last = len(finished.rounds)
    step = math.ceil(last / _ROUNDS)
    chosen = [
        record
        for record in finished.rounds
        if record["round"] % step == 0 or record["round"] in (1, last)
    ]
    lines = [
        line for line in finished.clients if line["round"] == last and line["point"] == "training"
    ]

    return {
        "curve": _columns(
            "round", [(record["round"], record["training_metrics"]) for record in chosen]
        ),
        "last_round": _columns(
            "client", [(line["client"], line["training_metrics"]) for line in lines]
        ),
    }


def _columns(key: str, entries: list[tuple[int, dict[str, float | None]]]) -> dict[str, list[Any]]:
    """Return metrics as lists by name, beside the list of their keys; None where one is missing."""
    names = sorted({name for _, metrics in entries for name in metrics})
    columns: dict[str, list[Any]] = {key: [number for number, _ in entries]}
    return columns | {name: [_short(metrics.get(name)) for _, metrics in entries] for name in names}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
