"""Verdicts: which printed numbers our runs confirm within the papers' tolerances. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedtailor.papers.records import Record, compare
from fedtailor.papers.tables import Paper


@dataclass(frozen=True)
class Tally:
    """How many runs and numbers are within tolerance. A run is a method on a column, whatever the
    number of seeds.
    """

    runs: int
    runs_within: int
    """Runs all of whose numbers are within tolerance."""
    numbers: int
    numbers_within: int
    elsewhere: int
    """Runs outside tolerance whose cause is not known, but not in our algorithms and engines."""
    unexplained: int
    """Runs outside tolerance with at least one number whose cause is open, with or without a text
    about it."""

    @property
    def share(self) -> float:
        """The share of runs within tolerance; 0 without runs."""
        return self.runs_within / self.runs if self.runs else 0.0


def judged_numbers(paper: Paper, records: Sequence[Record]) -> list[Record]:
    """Return the rows of :func:`fedtailor.papers.records.compare` that have a verdict, over all
    tables of a paper.

    A number that several tables print is judged once, in the first of them.
    """
    rows: dict[tuple[str, str, str], Record] = {}
    for table in paper.tables:
        for row in compare(paper, table, records):
            if row["verdict"] is not None:
                rows.setdefault((row["column"], row["method"], row["score"]), row)
    return list(rows.values())


def places_by_explanation(paper: Paper, rows: Iterable[Record]) -> dict[str, str]:
    """Return the explanations of the numbers outside tolerance, each with the numbers that it
    covers, as text.

    Args:
        paper: names the columns and methods.
        rows: of :func:`judged_numbers`.
    """
    explanations: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row["verdict"] == "outside":
            score = "" if row["label"] == "accuracy" else f" {row['label']}"
            number = f"{paper.methods[row['method']].label}{score} ({100 * row['difference']:+.1f})"
            column = paper.columns[row["column"]].label
            explanations.setdefault(row["explanation"], {}).setdefault(column, []).append(number)

    return {
        text: "; ".join(f"{column}: {', '.join(numbers)}" for column, numbers in columns.items())
        for text, columns in explanations.items()
    }


def count(rows: Iterable[Mapping[str, object]]) -> Tally:
    """Count verdicts.

    Example:
        >>> run = {"paper": "pfedvem", "column": "cifar10_50", "method": "pfedvem"}
        >>> rows = [{**run, "verdict": "within"}, {**run, "verdict": "outside", "cause": "open"}]
        >>> count(rows)
        Tally(runs=1, runs_within=0, numbers=2, numbers_within=1, elsewhere=0, unexplained=1)
    """
    runs: dict[tuple[object, ...], list[Mapping[str, object]]] = {}
    for row in rows:
        runs.setdefault((row["paper"], row["column"], row["method"]), []).append(row)

    numbers = [row for own in runs.values() for row in own]
    outside = [[row for row in own if row["verdict"] == "outside"] for own in runs.values()]
    causes = [{row["cause"] for row in own} for own in outside]
    return Tally(
        runs=len(runs),
        runs_within=sum(not own for own in outside),
        numbers=len(numbers),
        numbers_within=sum(row["verdict"] == "within" for row in numbers),
        elsewhere=sum("elsewhere" in known and "open" not in known for known in causes),
        unexplained=sum("open" in known for known in causes),
    )


def sentence(tally: Tally) -> str:
    """Return the share of runs within tolerance in words.

    Example:
        >>> sentence(Tally(runs=3, runs_within=2, numbers=5, numbers_within=4, elsewhere=0, unexplained=1))
        '2 of 3 runs (67 %) are within the tolerance that was stated before them.'
    """
    share = round(100 * tally.share)
    return f"{tally.runs_within} of {tally.runs} runs ({share} %) are within the tolerance that was stated before them."
