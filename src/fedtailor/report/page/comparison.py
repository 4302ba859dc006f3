"""The tables at the top of a page: what every method reached, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtailor.core.metrics import CLIENT_METRICS, HEADINGS
from fedtailor.core.text import with_error
from fedtailor.report.cautions import near_chance, privacy_claims
from fedtailor.report.comparison import Comparison, compare
from fedtailor.report.parts import Cell, ReportTable, Section
from fedtailor.report.records import MethodRecords, SeedRecords, number
from fedtailor.report.statistics import mean, standard_error
from fedtailor.report.tables import method_tables

_FIGURES = {
    "mean accuracy, %": ("accuracy", "mean"),
    "worst tenth, %": ("accuracy", "worst10"),
    "smallest tenth, %": ("accuracy", "smallest10"),
    "pooled, %": ("accuracy", "pooled"),
    **{heading: (name, "mean") for heading, name in HEADINGS.items()},
}
"""Metric and figure over clients, by the name of the column."""
_POINT = "personalized"
"""The evaluation point of the comparison, which every method has."""
_POINT_ORDER = ("personalized", "global", "global_complete", "local")


def comparison_section(records: Sequence[MethodRecords], comparison: Comparison | None) -> Section:
    """Return what the methods reached, and how they differ if several have finished."""
    methods = [method.method for method in records]
    remarks = [f"Caution: {warning}" for warning in near_chance(methods)]
    notes = list(privacy_claims(methods))
    tables: list[ReportTable] = []
    if comparison is not None:
        remarks = [f"Caution: {warning}" for warning in comparison.warnings]
        remarks += [note for note in comparison.notes if note not in notes]
        tables = _comparison_tables(comparison)

    unfinished = [
        method.label for method in records if len(method.method.finished) < len(method.seeds)
    ]
    if unfinished:
        notes.append(f"Not finished, so with their last evaluation: {', '.join(unfinished)}.")

    tables += _results(records, is_open=comparison is None)
    return Section(name="comparison", title="Results", notes=notes, tables=tables, remarks=remarks)


def compare_finished(records: Sequence[MethodRecords]) -> Comparison | None:
    """Return the comparison of the methods with finished runs; None if they are fewer than two."""
    comparable = []
    for method in records:
        finished = [seed for seed in method.seeds.values() if seed.run.result is not None]
        if any(seed.scores(_POINT) for seed in finished):
            comparable.append(method.method)

    return compare(comparable, point=_POINT) if len(comparable) > 1 else None


def _comparison_tables(comparison: Comparison) -> list[ReportTable]:
    """Return the tables of a comparison; those of single seeds are closed."""
    return [
        replace(table, name=f"comparison-{number}", is_open=not table.title.startswith("Tests"))
        for number, table in enumerate(method_tables(comparison), start=1)
    ]


def _results(records: Sequence[MethodRecords], *, is_open: bool) -> list[ReportTable]:
    """Return the table of all methods and evaluation points; none without evaluations."""
    rows: list[list[Cell]] = []
    for method in records:
        evaluations = [dict(_last_evaluations(seed)) for seed in method.seeds.values()]
        for name in sorted({name for of_seed in evaluations for name in of_seed}, key=_order):
            values = [of_seed[name] for of_seed in evaluations if name in of_seed]
            cells = [
                _mean_and_error(values, metric, figure) for metric, figure in _FIGURES.values()
            ]
            rows.append([method.label, name, len(values), _clients_of(values), *cells])

    if not rows:
        return []

    table = ReportTable(
        name="results",
        title="All models of every method",
        columns=["method", "models", "seeds", "clients", *_FIGURES],
        rows=rows,
        below="Accuracy on the clients' own test examples: the mean over clients, over the worst "
        "tenth of them, over the tenth with the least training data, and over all test examples "
        "together. Balanced accuracy in %, AUROC and ECE in % (calibration error) are means over "
        "clients. ± is the "
        "standard error over seeds.",
        is_open=is_open,
    )

    return [table]


def _last_evaluations(seed: SeedRecords) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield names and metrics of the evaluations of the final models, or the last ones."""
    # A later evaluation of the same models takes the place of an earlier one.
    result = seed.run.result
    if result is None:
        for line in seed.run.rounds:
            for evaluation in line.get("evaluations", ()):
                if evaluation.get("test_set") == "clients" and evaluation.get("group") == "known":
                    yield str(evaluation["point"]), evaluation["metrics"]

        return

    for name, metrics in result.get("metrics", {}).items():
        if name != "validation":
            yield str(name), metrics

    for name, metrics in result.get("new_clients", {}).items():
        yield f"{name}, new clients", metrics


def _order(name: str) -> tuple[bool, int, str]:
    """Return the place of an evaluation: known clients first, then by point."""
    point, _, group = name.partition(",")
    rank = _POINT_ORDER.index(point) if point in _POINT_ORDER else len(_POINT_ORDER)

    return bool(group), rank, name


def _clients_of(values: Sequence[Mapping[str, Any]]) -> str:
    """Return over how many clients the means are, in each of the seeds if they differ."""
    counts = [number(value.get("clients", {}).get("evaluated")) for value in values]
    return " / ".join(f"{count:.0f}" for count in dict.fromkeys(counts) if count is not None)


def _mean_and_error(values: Sequence[Mapping[str, Any]], metric: str, figure: str) -> str:
    """Return the mean over seeds, with its standard error if there are several."""
    numbers = [number(value.get(metric, {}).get(figure)) for value in values]
    values_of_seeds = [one for one in numbers if one is not None]
    if not values_of_seeds:
        return ""

    in_percent = CLIENT_METRICS[metric].in_percent
    return with_error(mean(values_of_seeds), standard_error(values_of_seeds), in_percent)
