"""A comparison as tables: for the terminal, Markdown, LaTeX, CSV and JSON. No torch."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fedtailor.core.atomic import to_json as as_json
from fedtailor.core.errors import printable
from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.data.own.names import inert
from fedtailor.report.comparison import (
    FIGURES,
    SIGNIFICANT,
    Comparison,
    Difference,
    Estimate,
    GroupComparison,
    PairedTest,
    Summary,
)
from fedtailor.report.parts import Cell, ReportTable
from fedtailor.report.statistics import Interval

NOTHING = "-"
"""Stands for a number that does not exist."""
_HARMED = frozenset({"harmed_versus_local", "harmed_versus_global"})
"""Figures that are shares of clients."""
_GAINS = frozenset({"gain_over_local", "gain_over_global"})
"""Figures that are printed with their sign."""
_SMALLEST_P = 0.001
_TEST_COLUMNS = (
    *("both", "missing", "difference", "interval_low", "interval_high"),
    *("wilcoxon_statistic", "wilcoxon_p_value", "wilcoxon_method", "holm_p_value"),
    *("wins", "ties", "losses"),
)
"""Columns of a CSV file about the test of a seed."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def tables_of(comparison: Comparison) -> list[ReportTable]:
    """Return a comparison as tables: methods, differences over seeds, tests of every seed.

    The new clients have tables of their own. Where no method can be tested, there are the figures
    only.
    """
    tables = []
    for group in comparison.groups:
        tables.append(_methods_table(comparison, group))
        if any(difference.tests for difference in group.differences):
            tables.append(_differences_table(comparison, group))
            tables.append(_tests_table(comparison, group))

    return tables


def to_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: its tables, then the warnings and notes.

    Labels cannot change the page: characters with a meaning in Markdown or HTML are escaped.
    """
    parts: list[str] = []
    for table in tables_of(comparison):
        alignment = ["---", *["---:"] * (len(table.columns) - 1)]
        lines = [_markdown_row(table.columns), f"| {' | '.join(alignment)} |"]
        lines += map(_markdown_row, table.rows)
        parts += [f"**{_markdown(table.title)}**", "\n".join(lines)]

        # The tables of new clients need no second explanation.
        below = _markdown(table.below)
        if below not in parts:
            parts.append(below)

    for heading, sentences in (("Warnings", comparison.warnings), ("Notes", comparison.notes)):
        if sentences:
            lines = [f"* {_markdown(sentence)}" for sentence in sentences]
            parts += [f"**{heading}**", "\n".join(lines)]

    return "\n\n".join(parts) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Return a comparison as CSV that is safe to open in a spreadsheet.

    There is one row per group of clients, method and seed, then a row ``mean`` over seeds and, if
    there are several seeds, a row ``standard error``. Tests have rows of single seeds only. Numbers
    are not rounded and not in percent.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("group", "method", "reference", "metric", "point", "seed", "clients"),
            *FIGURES,
            *_TEST_COLUMNS,
        ]
    )
    for group in comparison.groups:
        differences = {difference.label: difference for difference in group.differences}
        for summary in group.summaries:
            start = [group.group, printable(summary.label), printable(comparison.reference)]
            start += [comparison.metric, comparison.point]
            for row in _csv_rows(summary, differences.get(summary.label)):
                writer.writerow([*map(inert, start), *row])

    return text.getvalue()


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON: what :meth:`Comparison.as_record` holds, not rounded."""
    return as_json(comparison.as_record(), indent=2) + "\n"


def _methods_table(comparison: Comparison, group: GroupComparison) -> ReportTable:
    """Return the figures of every method."""
    present = {name for summary in group.summaries for name in summary.figures}
    names = [name for name in FIGURES if name in present]
    rows = []
    for summary in group.summaries:
        cells = [_estimate(comparison, name, summary.figures.get(name)) for name in names]
        seeds = str(len(summary.seeds))
        rows.append((printable(summary.label), seeds, _clients(summary), *cells))

    below = f"{'Higher' if comparison.higher_is_better else 'Lower'} is better."
    if any(one.error is not None for each in group.summaries for one in each.figures.values()):
        below += " ± is the standard error over seeds."

    below += (
        " worst tenth: mean of the tenth of clients with the worst scores; smallest tenth: of "
        "those with the least training examples."
    )
    if "gain_over_local" in names:
        below += (
            " gain over Local: mean over clients, positive is better; harmed versus Local: clients "
            f"in % that are worse than with {comparison.local}."
        )

    if "gain_over_global" in names:
        below += (
            " gain over global, harmed versus global: the same against the global model"
            f"{_borrowed(group)}."
        )

    return ReportTable(
        title=_title(comparison, group, "Methods"),
        columns=("method", "seeds", "clients", *(FIGURES[name] for name in names)),
        rows=tuple(rows),
        below=below,
    )


def _differences_table(comparison: Comparison, group: GroupComparison) -> ReportTable:
    """Return the differences from the reference over seeds."""
    rows = []
    for difference in group.differences:
        count = len(difference.tests)
        significant = f"{difference.significant_seeds} of {count}" if count else NOTHING
        over_seeds = _estimate(comparison, "gain_over_local", difference.over_seeds)
        rows.append((printable(difference.label), str(count), over_seeds, significant))

    below = (
        "difference: mean over clients, then over the seeds that both have with the same split; "
        f"positive: better than {comparison.reference}. significant: seeds whose corrected p-value "
        f"is below {SIGNIFICANT}, in either direction."
    )

    return ReportTable(
        title=_title(comparison, group, f"Differences from {comparison.reference} over seeds"),
        columns=("method", "seeds", "difference", "significant"),
        rows=tuple(rows),
        below=below,
    )


def _tests_table(comparison: Comparison, group: GroupComparison) -> ReportTable:
    """Return the tests of every seed."""
    rows = [
        (printable(each.label), str(seed), *_test_cells(comparison, test))
        for each in group.differences
        for seed, test in each.tests.items()
    ]
    below = (
        "clients: those that both methods have a score of; missing: the others. interval: 95 %, "
        "paired bootstrap over clients. p: Wilcoxon signed-rank test over clients. corrected p: "
        "Holm, for all methods of the seed. wins, ties, losses: clients at which the method is "
        "better, equal, worse."
    )

    return ReportTable(
        title=_title(comparison, group, f"Tests against {comparison.reference} in each seed"),
        columns=(
            *("method", "seed", "clients", "missing", "difference", "interval"),
            *("p", "corrected p", "wins, ties, losses"),
        ),
        rows=tuple(rows),
        below=below,
    )


def _test_cells(comparison: Comparison, test: PairedTest) -> list[str]:
    """Return the cells of the test of a seed."""
    return [
        str(test.num_clients),
        str(test.num_missing),
        _number(comparison, test.difference, signed=True),
        _interval(comparison, test.interval),
        _p_value(test.wilcoxon.p_value),
        _p_value(test.holm_p_value),
        " / ".join(map(str, test.outcomes)),
    ]


def _title(comparison: Comparison, group: GroupComparison, what: str) -> str:
    unit = " in %" if CLIENT_METRICS[comparison.metric].in_percent else ""
    metric = comparison.metric.replace("_", " ")
    return printable(f"{what}: {metric}{unit}, {group.group} clients, {comparison.point} models")


def _borrowed(group: GroupComparison) -> str:
    """Return whose global model methods without one are compared with, in words."""
    owners = {each.label: each.global_model for each in group.summaries if each.global_model}
    borrowers = [label for label, owner in owners.items() if owner != label]
    if not borrowers:
        return " of the method itself"

    owner = owners[borrowers[0]]
    return f" of the method itself, or for {', '.join(borrowers)}, without one, that of {owner}"


def _clients(summary: Summary) -> str:
    """Return the numbers of clients with a score, over the seeds."""
    counts = sorted(set(summary.num_clients.values()))
    if not counts:
        return NOTHING

    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _estimate(comparison: Comparison, name: str, estimate: Estimate | None) -> str:
    """Return a figure with its standard error."""
    if estimate is None:
        return NOTHING

    if name in _HARMED:
        value = f"{100 * estimate.mean:.1f}"
        error = None if estimate.error is None else f"{100 * estimate.error:.1f}"
    else:
        value = _number(comparison, estimate.mean, signed=name in _GAINS)
        error = None if estimate.error is None else _number(comparison, estimate.error)

    return value if error is None else f"{value} ± {error}"


def _number(comparison: Comparison, value: float, *, signed: bool = False) -> str:
    """Return a value of the metric, rounded; 0 has no sign."""
    in_percent = CLIENT_METRICS[comparison.metric].in_percent
    digits = 1 if in_percent else 3
    rounded = round(100 * value if in_percent else value, digits) + 0.0  # -0.0 becomes 0.0
    return f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}"


def _interval(comparison: Comparison, interval: Interval | None) -> str:
    if interval is None:
        return NOTHING
    low = _number(comparison, interval.low, signed=True)
    return f"{low} to {_number(comparison, interval.high, signed=True)}"


def _p_value(value: float) -> str:
    return f"<{_SMALLEST_P}" if value < _SMALLEST_P else f"{value:.3f}"


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", printable(text))


def _markdown_row(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(_markdown(str(cell)) for cell in cells)} |"


def _csv_rows(summary: Summary, difference: Difference | None) -> Iterator[list[Any]]:
    """Yield the cells of a method from the seed on: one row per seed, then those over seeds."""
    tests = difference.tests if difference is not None else {}
    estimates = [summary.figures.get(name) for name in FIGURES]
    for seed in summary.seeds:
        figures = ["" if one is None else one.by_seed.get(seed, "") for one in estimates]
        cells = _csv_test(tests[seed]) if seed in tests else [""] * len(_TEST_COLUMNS)
        yield [seed, summary.num_clients[seed], *figures, *cells]

    # A test belongs to one seed, so rows over seeds have its difference only.
    over_seeds = difference.over_seeds if difference is not None else None
    every = [*estimates, None, None, over_seeds]
    rest = [""] * (len(_TEST_COLUMNS) - 3)
    if summary.seeds:
        means = ["" if one is None else one.mean for one in every]
        yield ["mean", "", *means, *rest]

    if len(summary.seeds) > 1:
        errors = ["" if one is None or one.error is None else one.error for one in every]
        yield ["standard error", "", *errors, *rest]


def _csv_test(test: PairedTest) -> list[Any]:
    """Return the cells of the test of a seed."""
    return [
        test.num_clients,
        test.num_missing,
        test.difference,
        *(test.interval or ("", "")),
        test.wilcoxon.statistic,
        test.wilcoxon.p_value,
        test.wilcoxon.method,
        test.holm_p_value,
        *test.outcomes,
    ]
