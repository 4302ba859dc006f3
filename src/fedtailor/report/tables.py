"""A comparison as tables: for the terminal, Markdown, LaTeX, CSV and JSON. No torch."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedtailor.core.atomic import to_json as as_json
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
from fedtailor.report.statistics import Interval

NOTHING = "-"
"""Stands for a number that does not exist."""
_SHARES = frozenset({"accuracy", "balanced_accuracy", "ece"})
"""Metrics that are printed in percent."""
_HARMED = frozenset({"harmed_versus_local", "harmed_versus_global"})
"""Figures that are shares of clients."""
_GAINS = frozenset({"gain_over_local", "gain_over_global"})
"""Figures that are printed with their sign."""
_SMALLEST_P = 0.001
_TEST_COLUMNS = (
    *("both", "missing", "difference", "interval_low", "interval_high"),
    *(
        "wilcoxon_statistic",
        "wilcoxon_p_value",
        "wilcoxon_method",
        "holm_p_value",
        "wins",
        "ties",
        "losses",
    ),
)
"""Columns of a CSV file about the test of a seed."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    columns: tuple[str, ...]
    """The first one holds labels, the others numbers."""
    rows: tuple[tuple[str, ...], ...]
    below: str
    """What the columns are."""


def tables_of(comparison: Comparison) -> list[Table]:
    """Return a comparison as tables: the methods, their differences over seeds, and the tests of
    every seed.

    The new clients have tables of their own. Where no method can be tested, there are the figures
    only.
    """
    found = []
    for group in comparison.groups:
        found.append(_methods_table(comparison, group))
        if any(each.tests for each in group.differences):
            found.append(_differences_table(comparison, group))
            found.append(_tests_table(comparison, group))
    return found


def to_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: its tables, then the warnings and notes.

    Labels cannot change the page: characters with a meaning in Markdown or HTML are escaped.
    """
    parts: list[str] = []
    for table in tables_of(comparison):
        alignment = ["---", *["---:"] * (len(table.columns) - 1)]
        lines = [
            _markdown_row(table.columns),
            f"| {' | '.join(alignment)} |",
            *map(_markdown_row, table.rows),
        ]
        parts += [f"**{_markdown(table.title)}**", "\n".join(lines)]
        below = _markdown(table.below)
        if below not in parts:  # the tables of new clients need no second explanation
            parts.append(below)

    for heading, sentences in (("Warnings", comparison.warnings), ("Notes", comparison.notes)):
        if sentences:
            parts += [
                f"**{heading}**",
                "\n".join(f"* {_markdown(sentence)}" for sentence in sentences),
            ]

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
            "group",
            "method",
            "reference",
            "metric",
            "point",
            "seed",
            "clients",
            *FIGURES,
            *_TEST_COLUMNS,
        ]
    )

    for group in comparison.groups:
        differences = {each.label: each for each in group.differences}
        for summary in group.summaries:
            start = [group.group, plain(summary.label), plain(comparison.reference)]
            start += [comparison.metric, comparison.point]
            for row in _csv_rows(summary, differences.get(summary.label)):
                writer.writerow([inert(cell) for cell in start] + row)

    return text.getvalue()


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON: what :meth:`Comparison.as_record` holds. Numbers are not
    rounded.
    """
    return as_json(comparison.as_record(), indent=2) + "\n"


def _methods_table(comparison: Comparison, group: GroupComparison) -> Table:
    """Return the figures of every method."""
    names = [name for name in FIGURES if any(name in each.figures for each in group.summaries)]
    rows = []
    for each in group.summaries:
        cells = [_estimate(comparison, name, each.figures.get(name)) for name in names]
        rows.append((plain(each.label), str(len(each.seeds)), _clients(each), *cells))

    sentences = [
        f"{'Higher' if comparison.higher_is_better else 'Lower'} is better.",
        "± is the standard error over seeds." if _has_errors(group) else "",
        "worst tenth: mean of the tenth of clients with the worst scores; smallest tenth: of those with the least "
        "training examples.",
    ]

    if "gain_over_local" in names:
        sentences.append(
            f"gain over Local: mean over clients, positive is better; harmed versus Local: clients in % that are worse "
            f"than with {comparison.local}."
        )

    if "gain_over_global" in names:
        sentences.append(
            f"gain over global, harmed versus global: the same against the global model{_borrowed(group)}."
        )

    return Table(
        title=_title(comparison, group, "Methods"),
        columns=("method", "seeds", "clients", *(FIGURES[name] for name in names)),
        rows=tuple(rows),
        below=" ".join(sentence for sentence in sentences if sentence),
    )


def _differences_table(comparison: Comparison, group: GroupComparison) -> Table:
    """Return the differences from the reference over seeds."""
    rows = []
    for each in group.differences:
        count = len(each.tests)
        significant = f"{each.significant_seeds} of {count}" if count else NOTHING
        difference = _estimate(comparison, "gain_over_local", each.over_seeds)
        rows.append((plain(each.label), str(count), difference, significant))

    below = (
        f"difference: mean over clients, then over the seeds that both have with the same split; positive: better than "
        f"{comparison.reference}. significant: seeds whose corrected p-value is below {SIGNIFICANT}, in either "
        "direction."
    )

    return Table(
        title=_title(comparison, group, f"Differences from {comparison.reference} over seeds"),
        columns=("method", "seeds", "difference", "significant"),
        rows=tuple(rows),
        below=below,
    )


def _tests_table(comparison: Comparison, group: GroupComparison) -> Table:
    """Return the tests of every seed."""
    rows = [
        (plain(each.label), str(seed), *_test_cells(comparison, test))
        for each in group.differences
        for seed, test in each.tests.items()
    ]
    below = (
        "clients: those that both methods have a score of; missing: the others. interval: 95 %, paired bootstrap over "
        "clients. p: Wilcoxon signed-rank test over clients. corrected p: Holm, for all methods of the seed. wins, "
        "ties, losses: clients at which the method is better, equal, worse."
    )

    return Table(
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
    unit = " in %" if comparison.metric in _SHARES else ""
    metric = comparison.metric.replace("_", " ")
    return plain(f"{what}: {metric}{unit}, {group.group} clients, {comparison.point} models")


def _borrowed(group: GroupComparison) -> str:
    """Return whose global model methods without one are compared with, in words."""
    having = [each for each in group.summaries if each.global_model]
    others = [each for each in having if each.global_model != each.label]
    if not others:
        return " of the method itself"
    labels = ", ".join(each.label for each in others)
    return f" of the method itself, or for {labels}, without one, that of {others[0].global_model}"


def _has_errors(group: GroupComparison) -> bool:
    return any(
        figure.error is not None for each in group.summaries for figure in each.figures.values()
    )


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
    is_share = comparison.metric in _SHARES
    digits = 1 if is_share else 3
    rounded = round(100 * value if is_share else value, digits) + 0.0  # -0.0 becomes 0.0
    return f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}"


def _interval(comparison: Comparison, interval: Interval | None) -> str:
    if interval is None:
        return NOTHING
    low = _number(comparison, interval.low, signed=True)
    return f"{low} to {_number(comparison, interval.high, signed=True)}"


def _p_value(value: float) -> str:
    return f"<{_SMALLEST_P}" if value < _SMALLEST_P else f"{value:.3f}"


def plain(text: str) -> str:
    """Return a text in one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", plain(text))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown, cells))} |"


def _csv_rows(summary: Summary, difference: Difference | None) -> Iterator[list[Any]]:
    """Yield the cells of a method from the seed on: one row per seed, then those over seeds."""
    tests = {} if difference is None else difference.tests
    for seed in summary.seeds:
        figures = [
            summary.figures[name].by_seed.get(seed, "") if name in summary.figures else ""
            for name in FIGURES
        ]
        test = tests.get(seed)
        cells = [""] * len(_TEST_COLUMNS) if test is None else _csv_test(test)
        yield [seed, summary.num_clients[seed], *figures, *cells]

    over_seeds = None if difference is None else difference.over_seeds
    estimates = [summary.figures.get(name) for name in FIGURES]
    rest = [""] * (len(_TEST_COLUMNS) - 3)  # a test belongs to one seed
    if summary.seeds:
        yield ["mean", "", *map(_mean_of, estimates), "", "", _mean_of(over_seeds), *rest]

    if len(summary.seeds) > 1:
        yield [
            "standard error",
            "",
            *map(_error_of, estimates),
            "",
            "",
            _error_of(over_seeds),
            *rest,
        ]


def _mean_of(estimate: Estimate | None) -> float | str:
    return "" if estimate is None else estimate.mean


def _error_of(estimate: Estimate | None) -> float | str:
    return "" if estimate is None or estimate.error is None else estimate.error


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
