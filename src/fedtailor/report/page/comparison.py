"""The tables at the top of a page: what every method reached, and how they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedtailor.report.comparison import Comparison, compare
from fedtailor.report.figures.figure import Cell, Table
from fedtailor.report.figures.records import MethodRecords, SeedRecords, number
from fedtailor.report.page.section import NamedTable, Section
from fedtailor.report.tables import tables_of

_FIGURES = (
    ("accuracy", "mean", "mean accuracy, %"),
    ("accuracy", "worst10", "worst tenth, %"),
    ("accuracy", "smallest10", "smallest tenth, %"),
    ("accuracy", "pooled", "pooled, %"),
    ("ece", "pooled", "ECE, %"),
)
"""Metric, figure over clients, and name of the column."""
_POINT = "personalized"
"""The evaluation point of the comparison, which every method has."""
_POINT_ORDER = ("personalized", "global", "global_complete", "local")


def comparison_section(records: Sequence[MethodRecords]) -> Section:
    """Return what the methods reached, and how they differ if there are several that have finished.

    Args:
        records: the methods. Runs that have not finished count in the table of all models, with
            their last evaluation.
    """
    compared = _compared(records)
    results = _results(records, is_open=compared is None)
    remarks: list[str] = []
    if compared is not None:
        remarks = [*(f"Caution: {warning}" for warning in compared.warnings), *compared.notes]

    unfinished = [
        method.label
        for method in records
        if any(seed.run.result is None for seed in method.seeds.values())
    ]
    notes = []

    if unfinished:
        labels = ", ".join(unfinished)
        notes.append(
            f"Not finished, so with their last evaluation in the table of all models: {labels}."
        )

    tables = [] if compared is None else _tables(compared)
    return Section(
        name="comparison", title="Results", notes=notes, tables=[*tables, *results], remarks=remarks
    )


def _compared(records: Sequence[MethodRecords]) -> Comparison | None:
    """Return the comparison of the methods; None if fewer than two have finished runs to
    compare.
    """
    having = [
        method.method
        for method in records
        if any(_is_comparable(seed) for seed in method.seeds.values())
    ]
    return compare(having, point=_POINT) if len(having) > 1 else None


def _is_comparable(seed: SeedRecords) -> bool:
    """Return whether a run has finished and has scores of its clients."""
    return seed.run.result is not None and bool(seed.scores.get(_POINT))


def _tables(compared: Comparison) -> list[NamedTable]:
    """Return the tables of a comparison; those of single seeds are closed."""
    return [
        NamedTable(
            name=f"comparison-{number}",
            title=each.title,
            table=Table(each.columns, each.rows),
            below=each.below,
            is_open=not each.title.startswith("Tests"),
        )
        for number, each in enumerate(tables_of(compared), start=1)
    ]


def _results(records: Sequence[MethodRecords], *, is_open: bool) -> list[NamedTable]:
    """Return the table of all methods and evaluation points; none without evaluations."""
    rows: list[list[Cell]] = []
    for method in records:
        evaluations = [dict(_last_evaluations(seed)) for seed in method.seeds.values()]
        names = {name for found in evaluations for name in found}
        for name in sorted(names, key=_order):
            values = [found[name] for found in evaluations if name in found]
            figures = [_mean_and_error(values, metric, figure) for metric, figure, _ in _FIGURES]
            rows.append([method.label, name, len(values), *figures])

    if not rows:
        return []

    below = (
        "Accuracy on the clients' own test examples: the mean over clients, over the worst tenth of them, over the "
        "tenth with the least training data, and over all test examples together. ± is the standard error over seeds."
    )
    table = Table(["method", "models", "seeds", *(column for _, _, column in _FIGURES)], rows)

    return [
        NamedTable(
            name="results",
            title="All models of every method",
            table=table,
            below=below,
            is_open=is_open,
        )
    ]


def _last_evaluations(seed: SeedRecords) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the metrics of the evaluations of the final models, or of the last ones so
    far.
    """
    result = seed.run.result
    if result is not None:
        for name, metrics in result.get("metrics", {}).items():
            if name != "validation":
                yield str(name), metrics

        for name, metrics in result.get("new_clients", {}).items():
            yield f"{name}, new clients", metrics

        return

    for line in seed.run.rounds:
        for evaluation in line.get("evaluations", ()):
            if evaluation.get("test_set") == "clients" and evaluation.get("group") == "known":
                yield str(evaluation["point"]), evaluation["metrics"]


def _order(name: str) -> tuple[int, str]:
    point, _, group = name.partition(",")
    place = _POINT_ORDER.index(point) if point in _POINT_ORDER else len(_POINT_ORDER)
    return (place + len(_POINT_ORDER) * bool(group), name)


def _mean_and_error(values: Sequence[Mapping[str, Any]], metric: str, figure: str) -> str:
    """Return the mean over seeds in percent, with its standard error if there are several."""
    found = [number(value.get(metric, {}).get(figure)) for value in values]
    known = [100 * each for each in found if each is not None]
    if not known:
        return ""

    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return f"{mean:.1f}"

    error = math.sqrt(
        math.fsum((each - mean) ** 2 for each in known) / (len(known) - 1) / len(known)
    )
    return f"{mean:.1f} ± {error:.1f}"
