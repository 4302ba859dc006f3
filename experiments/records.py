"""Records of experiments, and their comparison with the papers' numbers.

``experiments/PAPER/records.jsonl`` has one line per run: its place, the digest of its settings, the
scores, the result, the configuration and where it comes from.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cells import Cell, Printed, cells
from experiments.paper import FOLDER, Paper
from fedtailor.core.atomic import to_json, write_whole
from fedtailor.core.errors import DataError
from fedtailor.core.folders import locked
from fedtailor.core.reading import read_lines

Record = dict[str, Any]

_NEEDED = ("column", "method", "seed", "digest", "result")
_BY_CLASS = ("recall", "by_class", "confusion")
"""Figures by class, which records do not keep."""

FEW_SEEDS = 3
"""Seeds of a run near the printed number."""
_LONGEST_GAP = 5
"""Rounds from one scored round to the next, as in pFedVEM's code, for a best round to compare."""
_FIGURES_OF_CURVES = ("mean", "pooled")
_ROUNDING = 1e-9
"""A difference of exactly the tolerance must not be outside because of floating-point numbers."""

_OPENINGS = {
    "found": "",
    "elsewhere": "Not due to our algorithms and engines; the cause is not known. ",
    "open": "Not yet explained. ",
}


@dataclass(frozen=True)
class Row:
    """A number of a table: the paper's, and those of our records."""

    cell: Cell
    printed: Printed
    records: list[Record]
    """Those that have the number, by seed."""
    values: list[float]
    """The number in each of the records."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of the records."""
        return [int(record["seed"]) for record in self.records]

    @property
    def mean(self) -> float | None:
        """Our number, the mean over seeds; None without records."""
        return _mean(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds (n - 1 in the denominator); None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the printed number; None if one of them is missing."""
        if self.mean is None or self.printed.value is None:
            return None

        return self.mean - self.printed.value

    @property
    def tolerance(self) -> float | None:
        """What the paper's file states for this number of seeds; None if it states nothing."""
        return self.cell.paper.tolerance_of(len(self.values))

    @property
    def verdict(self) -> str | None:
        """``within`` or ``outside`` the tolerance; None if there is nothing to judge."""
        return self._judge(self.mean, self.printed.value)

    @property
    def program_verdict(self) -> str | None:
        """The same of another program's number in place of the printed one."""
        return self._judge(self.mean, self.printed.program)

    @property
    def best_verdict(self) -> str | None:
        """The same of our best round.

        None if the released code does not print many rounds, or if we scored too few to compare.
        """
        rounds = self.cell.values["federation"]["rounds"]
        is_dense = _LONGEST_GAP * self.scored_rounds >= rounds
        if not self.cell.paper.source.prints_rounds or not is_dense:
            return None

        return self._judge(self.best_of_rounds, self.printed.value)

    @property
    def needs_seeds(self) -> bool:
        """Whether the difference is within twice the tolerance, and there are fewer than three."""
        if self.difference is None or self.tolerance is None or len(self.values) >= FEW_SEEDS:
            return False

        return abs(self.difference) <= 2 * self.tolerance + _ROUNDING

    @property
    def cause(self) -> str:
        """The most that is known of why a number is outside, see :class:`Explanation`."""
        causes = {explanation.cause for explanation in self._explanations()}
        return next((cause for cause in ("found", "elsewhere") if cause in causes), "open")

    @property
    def explanation(self) -> str:
        """Why a number is outside tolerance, as far as it is known."""
        texts = [explanation.text for explanation in self._explanations()]
        return (_OPENINGS[self.cause] + " ".join(texts)).strip()

    @property
    def scored_rounds(self) -> int:
        """Number of rounds in which every client was scored, in the record with the fewest."""
        return min(map(len, self._curves()), default=0)

    @property
    def best_of_rounds(self) -> float | None:
        """Mean over seeds of the highest value of the scored rounds; None if these are below two.

        It is chosen on test examples, so ``verdict`` does not use it.
        """
        if self.scored_rounds < 2:
            return None

        return _mean([max(curve) for curve in self._curves()])

    def _explanations(self) -> list[Any]:
        return self.cell.paper.explanations_of(
            self.cell.column, self.cell.method, self.printed.name
        )

    def _judge(self, ours: float | None, other: float | None) -> str | None:
        if ours is None or other is None or self.tolerance is None:
            return None

        return "within" if abs(ours - other) <= self.tolerance + _ROUNDING else "outside"

    def _curves(self) -> list[list[float]]:
        return [values_by_round(self.printed, record) for record in self.records]


@dataclass(frozen=True)
class Tally:
    """How many runs and numbers are within tolerance.

    A run is a method on a column, whatever the number of seeds.
    """

    runs: int
    runs_within: int
    """Runs all of whose numbers are within tolerance."""
    numbers: int
    numbers_within: int
    elsewhere: int
    """Runs outside tolerance whose cause is not known, but not in our algorithms and engines."""
    unexplained: int
    """Runs outside tolerance with at least one number whose cause is open."""

    def __str__(self) -> str:
        """Return the share of runs within tolerance as a sentence."""
        share = round(100 * self.runs_within / self.runs) if self.runs else 0
        return (
            f"{self.runs_within} of {self.runs} runs ({share} %) are within the tolerance that "
            "was stated before them."
        )


def make_record(cell: Cell, result: Mapping[str, Any], provenance: Mapping[str, Any]) -> Record:
    """Return the record of a cell from the result of its run, without the long parts."""
    parts = {name: value for name, value in result.items() if name not in ("run", "sites")}
    return {
        **cell.place(),
        "digest": cell.digest,
        "scores": {number.name: describe(number, result) for number in cell.printed},
        "result": _without_classes(parts),
        "config": cell.values,
        "inferred": list(cell.inferred),
        "provenance": dict(provenance),
    }


def describe(printed: Printed, result: Mapping[str, Any]) -> Record:
    """Return the paper's number, ours, and what they are numbers of."""
    score = printed.score
    value = read_score(printed, result)
    difference = None
    if value is not None and printed.value is not None:
        difference = value - printed.value

    return {
        "label": score.label,
        "point": score.point,
        "clients": score.clients,
        "condition": score.condition or None,
        "figure": score.figure,
        "value": value,
        "reference": printed.value,
        "difference": difference,
    }


def read_score(printed: Printed, result: Mapping[str, Any]) -> float | None:
    """Return a number of a result; None if the result does not have it."""
    score = printed.score
    metrics = result.get("new_clients" if score.clients == "new" else "metrics", {})
    figures = metrics.get(score.point, {})
    if score.condition:
        figures = figures.get("conditions", {}).get(score.condition, {})

    value = figures.get("accuracy", {}).get(score.figure)
    return None if value is None else float(value)


def values_by_round(printed: Printed, record: Record) -> list[float]:
    """Return a number in all rounds in which every client was scored, the last one included.

    Empty if the record has no curve, curves do not have the number, or there are new clients,
    which no round scores together with the others.
    """
    score = printed.score
    if score.condition or score.figure not in _FIGURES_OF_CURVES:
        return []

    all_clients = 1 if score.point.endswith("_complete") else record["result"]["clients"]
    complete = (score.point, score.clients, all_clients)
    return [
        point[score.figure]
        for point in record.get("curve", [])
        if (point["point"], point["clients"], point["evaluated"]) == complete
    ]


def records_path(paper: str, folder: Path = FOLDER) -> Path:
    """Return the file of a paper's records."""
    return folder / paper / "records.jsonl"


def read_records(paper: str, folder: Path = FOLDER) -> list[Record]:
    """Return the records of a paper.

    Raises:
        DataError: a line is not a record.
    """
    path = records_path(paper, folder)
    records = []
    for number, record in enumerate(read_lines(path), start=1):
        if any(name not in record for name in _NEEDED):
            raise DataError(
                f"'{path}', line {number}, is not a record: it needs {', '.join(_NEEDED)}.",
                path=str(path),
            )

        records.append(record)

    return records


def add_record(record: Record, folder: Path = FOLDER) -> Path:
    """Add a record to its paper's file, and return the path. A record of the same run is replaced.

    The file is read again, because another process may have added records.
    """
    path = records_path(record["paper"], folder)
    with locked(path.parent):
        records = {_sort_key(other): other for other in read_records(record["paper"], folder)}
        records[_sort_key(record)] = record
        write_whole(path, "".join(f"{to_json(records[key])}\n" for key in sorted(records)))

    return path


def _sort_key(record: Record) -> tuple[str, str, int, str]:
    return record["column"], record["method"], record["seed"], record["digest"]


def records_of(cell: Cell, records: Iterable[Record]) -> list[Record]:
    """Return the records of a cell's settings by seed. They may have been run for another table."""
    same = [record for record in records if record["digest"] == cell.digest]
    return sorted(same, key=lambda record: int(record["seed"]))


def unused(paper: Paper, records: Iterable[Record]) -> list[Record]:
    """Return the records whose settings are in no table any more."""
    digests = {cell.digest for table in paper.tables for cell in cells(paper, table)}
    return [record for record in records if record["digest"] not in digests]


def compare(paper: Paper, table: str, records: Sequence[Record]) -> list[Row]:
    """Return the numbers of a table, with those of our records."""
    rows = []
    for cell in cells(paper, table):
        runs = records_of(cell, records)
        for printed in cell.printed:
            scores = [(record, read_score(printed, record["result"])) for record in runs]
            scored = [(record, value) for record, value in scores if value is not None]
            rows.append(
                Row(cell, printed, [record for record, _ in scored], [value for _, value in scored])
            )

    return rows


def judged_numbers(paper: Paper, records: Sequence[Record]) -> list[Row]:
    """Return the numbers that have a verdict of any kind, over all tables of a paper.

    A number that several tables print is judged once, in the first of them.
    """
    rows: dict[tuple[str, str, str], Row] = {}
    for table in paper.tables:
        for row in compare(paper, table, records):
            if row.verdict is not None or row.program_verdict is not None:
                rows.setdefault((row.cell.column, row.cell.method, row.printed.name), row)

    return list(rows.values())


def count(rows: Iterable[Row]) -> Tally:
    """Count verdicts on printed numbers."""
    runs: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.verdict is None:
            continue

        run = (row.cell.paper.name, row.cell.column, row.cell.method)
        runs.setdefault(run, []).append(row)

    numbers = [row for run in runs.values() for row in run]
    causes = [{row.cause for row in run if row.verdict == "outside"} for run in runs.values()]
    return Tally(
        runs=len(runs),
        runs_within=sum(not known for known in causes),
        numbers=len(numbers),
        numbers_within=sum(row.verdict == "within" for row in numbers),
        elsewhere=sum("elsewhere" in known and "open" not in known for known in causes),
        unexplained=sum("open" in known for known in causes),
    )


def other_shares(rows: Sequence[Row]) -> list[str]:
    """Return what else is within tolerance, and how many runs want more seeds, as sentences."""
    by_program = [row.program_verdict for row in rows if row.program_verdict is not None]
    best = [row for row in rows if row.best_verdict is not None]
    best_within = sum(row.best_verdict == "within" for row in best)
    last_within = sum(row.verdict == "within" for row in best)
    few = {str(row.cell) for row in rows if row.needs_seeds}
    return [
        f"{by_program.count('within')} of {len(by_program)} numbers are within the same tolerance "
        "of what another program has on the same split.",
        f"Where the released code prints many rounds, {best_within} of {len(best)} numbers of our "
        f"best round are within tolerance, and {last_within} of the last round.",
        f"{len(few)} runs that differ by at most twice the tolerance have fewer than three seeds.",
    ]


def _without_classes(value: Any) -> Any:
    """Return a result without the figures by class."""
    if not isinstance(value, Mapping):
        return value

    return {name: _without_classes(part) for name, part in value.items() if name not in _BY_CLASS}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
