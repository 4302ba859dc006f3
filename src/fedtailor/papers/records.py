"""Records of experiments, one small file per run, and their comparison with the papers' numbers. No
torch.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import safe_name, to_json, unwritable, write_whole
from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_json
from fedtailor.papers.format import Explanation
from fedtailor.papers.tables import Cell, Paper, Reading, cells

Record = dict[str, Any]

DEFAULT_FOLDER = "experiments/results"
_NEEDED = ("digest", "seed", "result")
_LONG = ("recall", "by_class", "confusion")
"""Figures by class, which are not kept."""
_FIGURES_OF_CURVES = ("mean", "pooled")
_ROUNDING = 1e-9
"""A difference of exactly the tolerance must not be outside because of floating-point numbers."""
_OPENINGS = {
    "found": [],
    "elsewhere": ["Not due to our algorithms and engines; the cause is not known."],
    "open": ["Not yet explained."],
}
_FLAT_LIST = re.compile(r"\[[^][{}\"]*\]")
"""A list of numbers in indented JSON."""


def make_record(cell: Cell, result: Mapping[str, Any], provenance: Mapping[str, Any]) -> Record:
    """Return the record of a cell from the result of its run, without the long parts."""
    kept = {name: value for name, value in result.items() if name not in ("run", "sites")}
    scores = {
        reading.name: describe(reading, read_score(reading, result)) for reading in cell.readings
    }

    return {
        **cell.place(),
        "digest": cell.digest,
        "scores": scores,
        "result": _shortened(kept),
        "config": cell.values,
        "inferred": list(cell.inferred),
        "provenance": dict(provenance),
    }


def describe(reading: Reading, value: float | None) -> Record:
    """Return the paper's number, ours, and what they are numbers of."""
    score = reading.score
    difference = None
    if value is not None and reading.reference is not None:
        difference = value - reading.reference

    return {
        "label": score.label,
        "point": score.point,
        "clients": score.clients,
        "condition": score.condition or None,
        "figure": score.figure,
        "value": value,
        "reference": reading.reference,
        "difference": difference,
    }


def read_score(reading: Reading, result: Mapping[str, Any]) -> float | None:
    """Return a number of a result; None if the result does not have it."""
    metrics = _metrics(reading, result)
    value = metrics.get("accuracy", {}).get(reading.score.figure)
    return None if value is None else float(value)


def values_by_round(reading: Reading, record: Record) -> list[float]:
    """Return a number in all rounds in which every client was scored, in the order of the rounds.

    The last round is one of them. Empty if the record has no curve, curves do not have the number,
    or there are new clients, which no round scores together with the others.

    Args:
        reading: the number.
        record: of a run.
    """
    score = reading.score
    if score.condition or score.figure not in _FIGURES_OF_CURVES:
        return []

    all_clients = 1 if score.point.endswith("_complete") else record["result"]["clients"]
    return [
        each[score.figure]
        for each in record.get("curve", [])
        if (each["point"], each["clients"], each["evaluated"])
        == (score.point, score.clients, all_clients)
    ]


def write_record(folder: Path, record: Record) -> Path:
    """Write a record to ``folder``/PAPER and return its path. A record of the same run is
    replaced.
    """
    name = safe_name(
        f"{record['column']}-{record['method']}-seed{record['seed']}-{record['digest'][:8]}"
    )
    path = folder / str(record["paper"]) / f"{name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise unwritable(path.parent, reason) from reason

    write_whole(path, _FLAT_LIST.sub(_on_one_line, to_json(record, indent=1)) + "\n")
    return path


def _on_one_line(found: re.Match[str]) -> str:
    """Return a list without line breaks."""
    return " ".join(found[0].split())


def read_records(folder: Path, paper: str) -> list[Record]:
    """Return the records of a paper, in the order of their names.

    Raises:
        DataError: a file is not a record.
    """
    found = []
    for path in sorted((folder / paper).glob("*.json")):
        record = read_json(path)
        if not isinstance(record, dict) or any(name not in record for name in _NEEDED):
            raise DataError(
                f"'{path}' is not a record of an experiment: it needs {', '.join(_NEEDED)}.",
                path=str(path),
            )

        found.append(record)

    return found


def records_of(cell: Cell, records: Iterable[Record]) -> list[Record]:
    """Return the records of a cell's settings by seed. They may have been run for another table."""
    own = [record for record in records if record["digest"] == cell.digest]
    return sorted(own, key=lambda record: int(record["seed"]))


def unused(paper: Paper, records: Iterable[Record]) -> list[Record]:
    """Return the records whose settings are in no table any more."""
    digests = {cell.digest for table in paper.tables for cell in cells(paper, table)}
    return [record for record in records if record["digest"] not in digests]


def compare(paper: Paper, table: str, records: Sequence[Record]) -> list[Record]:
    """Return one row per number of a table: the paper's, the mean of our records over seeds, and
    the verdict.

    ``verdict`` is ``within`` or ``outside`` the paper's tolerance for so many seeds; None where
    there is no printed number, no record or no tolerance. ``best_of_rounds`` is the mean over seeds
    of the highest value among the ``scored_rounds``; None where there are fewer than two. It is
    chosen on test examples, so no verdict uses it. ``explanation`` says what is known of the cause
    of a number outside, and ``cause`` how much: ``found``, ``elsewhere`` or ``open`` (see
    :class:`Explanation`).
    """
    return [
        _row(cell, reading, records_of(cell, records))
        for cell in cells(paper, table)
        for reading in cell.readings
    ]


def _row(cell: Cell, reading: Reading, own: Sequence[Record]) -> Record:
    found = [(record, read_score(reading, record["result"])) for record in own]
    values = [value for _, value in found if value is not None]
    mean = _mean(values)
    described = describe(reading, mean)
    tolerance = cell.paper.tolerance_of(len(values))
    by_round = [values_by_round(reading, record) for record, value in found if value is not None]
    scored_rounds = min(map(len, by_round), default=0)
    verdict = _verdict(described["difference"], tolerance)
    explanations = cell.paper.explanations_of(cell.column, cell.method, reading.name)
    evaluated = [
        _metrics(reading, record["result"]).get("clients", {}).get("evaluated") for record in own
    ]
    splits = {
        record.get("provenance", {}).get("split_sha256")
        for record, value in found
        if value is not None
    }

    return {
        "paper": cell.paper.name,
        "table": cell.table,
        "column": cell.column,
        "method": cell.method,
        "score": reading.name,
        **described,
        "tolerance": tolerance,
        "verdict": verdict,
        "explanation": _words(explanations) if verdict == "outside" else "",
        "cause": _cause(explanations),
        "best_of_rounds": _mean([max(values) for values in by_round])
        if scored_rounds > 1
        else None,
        "scored_rounds": scored_rounds,
        "spread": reading.spread,
        "deviation": _deviation(values),
        "sem": _standard_error(values),
        "seeds": [record["seed"] for record, value in found if value is not None],
        "shared_split": len(splits) == 1,
        "scored_clients": next((number for number in evaluated if number is not None), None),
        "digest": cell.digest,
        "inferred": list(cell.inferred),
    }


def _words(explanations: Sequence[Explanation]) -> str:
    """Return why a number is outside tolerance, as far as it is known."""
    return " ".join([*_OPENINGS[_cause(explanations)], *(each.text for each in explanations)])


def _cause(explanations: Sequence[Explanation]) -> str:
    """Return the most that is known: ``found``, ``elsewhere`` or ``open`` (see
    :class:`Explanation`).
    """
    known = {each.cause for each in explanations}
    return next((cause for cause in ("found", "elsewhere") if cause in known), "open")


def _metrics(reading: Reading, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures that contain a number; empty if the result does not have them."""
    score = reading.score
    points: Mapping[str, Any] = result.get(
        "new_clients" if score.clients == "new" else "metrics", {}
    )
    metrics: Mapping[str, Any] = points.get(score.point, {})
    return metrics.get("conditions", {}).get(score.condition, {}) if score.condition else metrics


def _verdict(difference: float | None, tolerance: float | None) -> str | None:
    """Return whether a difference from a printed number is within tolerance; None if there is
    nothing to judge.
    """
    if difference is None or tolerance is None:
        return None
    return "within" if abs(difference) <= tolerance + _ROUNDING else "outside"


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def _deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation over seeds (n - 1 in the denominator); None for one seed."""
    return statistics.stdev(values) if len(values) > 1 else None


def _standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean over seeds; None for one seed."""
    deviation = _deviation(values)
    return None if deviation is None else deviation / math.sqrt(len(values))


def _shortened(value: Any) -> Any:
    """Return a result without the figures by class."""
    if isinstance(value, Mapping):
        return {name: _shortened(item) for name, item in value.items() if name not in _LONG}
    return value
