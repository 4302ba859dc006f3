"""The report of papers: printed and measured numbers side by side, with the figures that records
can give. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.experiment.records import Run
from fedtailor.papers.records import Record, compare, unused
from fedtailor.papers.shown import MISSING, SHOWN
from fedtailor.papers.tables import Paper
from fedtailor.papers.verdicts import count, judged_numbers, places_by_explanation, sentence
from fedtailor.report.figures.clients import accuracy_by_client, accuracy_by_size, gains
from fedtailor.report.figures.curves import accuracy_curves, gaussianity
from fedtailor.report.figures.diagnostics import beta, confidence, deviation
from fedtailor.report.figures.figure import Cell, Figure, Table
from fedtailor.report.figures.records import ClientScores, CurvePoint, MethodRecords, SeedRecords
from fedtailor.report.methods import Method
from fedtailor.report.page.build import Page, render_page
from fedtailor.report.page.section import NamedTable, Section

_COLUMNS = (
    "data",
    "method",
    "score",
    "model",
    "seeds",
    "printed, %",
    "ours, %",
    "standard error over seeds",
    "difference, points",
    "tolerance",
    "verdict",
)
_FIGURES = (
    accuracy_curves,
    accuracy_by_client,
    gains,
    accuracy_by_size,
    beta,
    confidence,
    deviation,
    gaussianity,
)


def build_report(
    papers: Mapping[str, Paper], records: Mapping[str, Sequence[Record]], *, table: str = ""
) -> Page:
    """Build the page of some papers from their records.

    Args:
        papers: by name.
        records: of each paper.
        table: the only table to show; empty: all.

    Example:
        >>> from fedtailor.papers.tables import load_paper
        >>> page = build_report({"pfedvem": load_paper("pfedvem")}, {"pfedvem": []})
        >>> [section.title for section in page.sections]
        ['Verdicts', 'pFedVEM']
    """
    current = {name: _current(paper, records[name]) for name, paper in papers.items()}
    judged = [row for name, paper in papers.items() for row in judged_numbers(paper, current[name])]
    sections = [
        Section(name="verdicts", title="Verdicts", notes=[sentence(count(judged)), _HOW_TO_READ])
    ]
    for name, paper in papers.items():
        sections += _sections(paper, current[name], table)

    labels = ", ".join(_label(paper) for paper in papers.values())
    return Page(render_page(f"Printed and measured: {labels}", sections), sections)


_HOW_TO_READ = (
    "Tolerances are in percentage points and were stated before the runs. One seed is no evidence for a difference. "
    "Settings that neither a paper nor its released code states are inferred: fedtailor experiments show says which."
)


def _label(paper: Paper) -> str:
    """Return the name of the method that a paper is about."""
    return paper.methods[paper.name].label if paper.name in paper.methods else paper.name


def _current(paper: Paper, records: Sequence[Record]) -> list[Record]:
    """Return the records whose settings are in a table."""
    stale = {id(record) for record in unused(paper, records)}
    return [record for record in records if id(record) not in stale]


def _sections(paper: Paper, records: Sequence[Record], table: str) -> Iterator[Section]:
    """Yield the section of a paper's tables, and one for each column with figures."""
    names = [table] if table else list(paper.tables)
    tables = [_printed_and_measured(paper, name, records) for name in names]
    places = places_by_explanation(paper, judged_numbers(paper, records))
    outside = [f"Outside: {where}. {text}" for text, where in places.items()]
    shown = [f"The paper's {each.name}: {each.words}" for each in SHOWN.get(paper.name, ())]
    missing = [
        f"Figure {number} is not drawn: {words}."
        for number, words in MISSING.get(paper.name, {}).items()
    ]
    yield Section(
        name=paper.name,
        title=_label(paper),
        notes=[
            f"{paper.source.title} ({paper.source.authors} {paper.source.year}, {paper.source.venue})."
        ],
        tables=[each for each in tables if each.table.rows],
        remarks=[*outside, *shown, *missing],
    )
    columns = dict.fromkeys(column for name in names for column in paper.tables[name].columns)

    for column in columns:
        own = [record for record in records if record["column"] == column]
        figures = _figures(paper, column, own)
        if figures:
            title = f"{_label(paper)}: {paper.columns[column].label}"
            yield Section(name=f"{paper.name}-{column}", title=title, figures=figures)


def _printed_and_measured(paper: Paper, name: str, records: Sequence[Record]) -> NamedTable:
    """Return the rows of a table that have a record."""
    rows = compare(paper, name, records)
    found = [row for row in rows if row["value"] is not None]
    missing = len(rows) - len(found)
    below = f"{missing} of {len(rows)} numbers have no record yet." if missing else ""

    return NamedTable(
        name=f"{paper.name}-table-{name}",
        title=f"Table {name}: {paper.tables[name].title}",
        table=Table(_COLUMNS, [_row(paper, row) for row in found]),
        below=" ".join([below, *paper.tables[name].notes]).strip(),
    )


def _row(paper: Paper, row: Record) -> list[Cell]:
    """Return a number of a table as cells."""
    return [
        paper.columns[row["column"]].label,
        paper.methods[row["method"]].label,
        row["label"],
        row["point"],
        ", ".join(map(str, row["seeds"])),
        _percent(row["reference"]),
        _percent(row["value"]),
        _percent(row["sem"]),
        _percent(row["difference"]),
        _percent(row["tolerance"]) if row["verdict"] else None,
        row["verdict"] or "",
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def _figures(paper: Paper, column: str, records: Sequence[Record]) -> list[Figure]:
    """Return the figures of a column of a paper; their names are made unique in the page."""
    by_method: dict[str, dict[int, Record]] = {}
    for record in records:
        by_method.setdefault(record["method"], {})[int(record["seed"])] = record

    methods = [
        _method(paper, method, by_method[method])
        for method in by_method
        if any(map(_has_curve, by_method[method].values()))
    ]
    if not methods:
        return []

    figures = [figure for draw in _FIGURES for figure in draw(methods)]
    return [_renamed(figure, f"{paper.name}-{column}-{figure.name}") for figure in figures]


def _renamed(figure: Figure, name: str) -> Figure:
    return Figure(
        name=name, title=figure.title, caption=figure.caption, draw=figure.draw, table=figure.table
    )


def _has_curve(record: Record) -> bool:
    """Return whether a record has what figures show; the oldest ones have not."""
    return bool(record.get("curve")) and bool(record.get("by_client"))


def _method(paper: Paper, method: str, records: Mapping[int, Record]) -> MethodRecords:
    """Return the records of a method in the form that figures are drawn from."""
    seeds = {seed: _seed(record) for seed, record in sorted(records.items()) if _has_curve(record)}
    first = next(iter(seeds.values()))
    return MethodRecords(
        Method(
            label=paper.methods[method].label,
            path=first.run.path,
            config=first.run.config,
            runs={seed: each.run for seed, each in seeds.items()},
        ),
        seeds,
    )


def _seed(record: Record) -> SeedRecords:
    """Return a record in the form that figures are drawn from."""
    run = Run(
        path=Path(str(record["digest"])[:8]),
        config=record["config"],
        provenance=record["provenance"],
        status={"state": "finished"},
        split={"split_sha256": record["provenance"].get("split_sha256")},
        rounds=[],
        events=[],
        result=record["result"],
        seeds={},
    )
    found = SeedRecords(run)

    for each in record["curve"]:
        if each["clients"] == "known":
            found.curves.setdefault(each["point"], {})[int(each["round"])] = CurvePoint(
                each["mean"], None
            )

    for point, correct in record["by_client"]["correct"].items():
        found.scores[point] = dict(_scores(record["by_client"], correct))
        found.rounds[point] = int(record["result"]["rounds"])

    training = record.get("training", {})
    _add_training(found, training.get("curve", {}), training.get("last_round", {}))
    return found


def _scores(by_client: Record, correct: Sequence[int | None]) -> Iterator[tuple[int, ClientScores]]:
    """Yield the scores of every client that was evaluated."""
    conditions = by_client.get("condition") or [""] * len(correct)
    for client, right in enumerate(correct):
        num_test = by_client["num_test"][client]
        if right is not None and num_test:
            yield (
                client,
                ClientScores(
                    accuracy=right / num_test,
                    num_train=by_client["num_train"][client],
                    num_test=num_test,
                    condition=conditions[client] or "",
                    bins=(),
                    class_counts={},
                    diagnostics=_diagnostics(by_client["diagnostics"], client),
                ),
            )


def _diagnostics(values: Mapping[str, Sequence[float | None]], client: int) -> dict[str, float]:
    """Return the numbers that a method reports of a client's model."""
    own = {name: numbers[client] for name, numbers in values.items()}
    return {name: number for name, number in own.items() if number is not None}


def _add_training(
    found: SeedRecords, curve: Mapping[str, Any], last_round: Mapping[str, Any]
) -> None:
    """Add training metrics: means over clients by round, and those of single clients in the last
    round.
    """
    for name, values in curve.items():
        if name != "round":
            pairs = zip(curve["round"], values, strict=True)
            found.followed[name] = {
                int(number): [value] for number, value in pairs if value is not None
            }

    for name, values in last_round.items():
        if name != "client":
            pairs = zip(last_round["client"], values, strict=True)
            found.last_training[name] = {
                int(client): value for client, value in pairs if value is not None
            }
