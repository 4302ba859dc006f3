"""What a tracker is told, and the values that all of them log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedtailor.experiment.summary import evaluation_name

Values = dict[str, float]
"""Numbers by name, such as ``personalized/accuracy_mean``."""

_ACCURACIES = ("mean", "worst10", "pooled")
_OTHERS = ("loss", "ece")


class TrackedRun(NamedTuple):
    """The run of one seed, as trackers see it."""

    name: str
    """Different for every seed of a run."""
    title: str
    """Algorithm, data set and seed."""
    folder: Path
    """For the files of the tracker. It exists; runs of other seeds use it too."""
    configuration: Mapping[str, Any]
    """The sections of ``experiment.toml``."""

    @property
    def options(self) -> dict[str, Any]:
        """The configuration by dotted name, such as ``training.lr``: numbers, truth values and
        texts.
        """
        return dict(_dotted(self.configuration))


class Log(NamedTuple):
    """The log of a run in a tracker."""

    known_as: str
    """How the tracker finds it again."""
    last: int
    """The last round in it; those after it are still to be written."""


class Tracker(Protocol):
    """Writes what happens in the run of one seed where another program reads it.

    Methods may raise: the tracker is switched off then, and the run goes on.
    """

    def start(self, run: TrackedRun, known_as: str, last: int) -> Log:
        """Start, or continue, the log of a run.

        Args:
            run: the run.
            known_as: what this method returned when an earlier process started the log; empty: it
                is a new one.
            last: the last round that was written to it.
        """

    def write(self, rounds: Sequence[tuple[int, Values]]) -> None:
        """Log the values of some rounds, in order."""

    def finish(self, values: Values) -> None:
        """Log the final scores."""

    def close(self, *, finished: bool) -> None:
        """Close the log of a run that has finished, or was interrupted."""


def values_of(record: Mapping[str, Any]) -> Values:
    """Return what trackers log of a round; ``record`` is its line in ``rounds.jsonl``."""
    values: Values = {}
    for evaluation in record.get("evaluations", []):
        name = evaluation_name(evaluation)
        place = f"new_clients/{name}" if evaluation["group"] == "new" else name
        values |= _scores(place, evaluation["metrics"])

    for section in ("training_metrics", "seconds", "bytes"):
        for key, number in record.get(section, {}).items():
            values[f"{section.removesuffix('_metrics')}/{key}"] = number

    return _finite(values)


def final_values(result: Mapping[str, Any]) -> Values:
    """Return the final scores that trackers log, from the result of a run."""
    values: Values = {}
    for name, metrics in result["metrics"].items():
        values |= _scores(f"final/{name}", metrics)
    for name, metrics in result.get("new_clients", {}).items():
        values |= _scores(f"final/new_clients/{name}", metrics)
    return _finite(values)


def _scores(place: str, metrics: Mapping[str, Any]) -> Values:
    """Return the scores of an evaluation: of accuracies three figures, of others the mean over
    clients.
    """
    values: Values = {}
    for key in _ACCURACIES:
        if key in metrics.get("accuracy", {}):
            values[f"{place}/accuracy_{key}"] = metrics["accuracy"][key]
    for key in _OTHERS:
        if "mean" in metrics.get(key, {}):
            values[f"{place}/{key}"] = metrics[key]["mean"]
    return values


def _finite(values: Mapping[str, Any]) -> Values:
    """Return the values that are numbers; a loss that is not finite is null in records."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{key}", value
        else:
            yield f"{prefix}{key}", str(value)
