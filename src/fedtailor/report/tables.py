"""A comparison as tables: for the terminal, Markdown, LaTeX, CSV and JSON. No torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fedtailor.core.atomic import to_json as as_json
from fedtailor.core.errors import printable
from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.core.text import NOTHING, csv_text, inert, markdown_table, round_figure, with_error
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
from fedtailor.report.parts import Cell, ReportTable, show_p_value
from fedtailor.report.worth_it import worth_it_tables

_TEST_COLUMNS = (
    *("both", "missing", "difference", "interval_low", "interval_high"),
    *("wilcoxon_statistic", "wilcoxon_p_value", "wilcoxon_method", "holm_p_value"),
    *("wins", "ties", "losses"),
)
"""Columns of a CSV file about the test of a seed."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def tables_of(comparison: Comparison) -> list[ReportTable]:
    """Return a comparison as tables: methods, differences over seeds, tests of every seed.

    The verdicts for each site come first, where there are any. The new clients have tables of their
    own. Where no method can be tested, there are the figures only.
    """
    tables = []
    if comparison.judged:
        records = comparison.worth_it
        tables += worth_it_tables(records, comparison.judged, comparison.why_judged)

    return tables + method_tables(comparison)


def method_tables(comparison: Comparison) -> list[ReportTable]:
    """Return the tables about methods over all clients."""
    tables = []
    for group in comparison.groups:
        tables.append(_methods_table(comparison, group))
        if any(difference.by_seed for difference in group.differences):
            tables.append(_differences_table(comparison, group))
            tables.append(_tests_table(comparison, group))

    return tables


def to_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: its tables, then the warnings and notes.

    Labels cannot change the page: characters with a meaning in Markdown or HTML are escaped.
    """
    parts: list[str] = []
    for table in tables_of(comparison):
        columns, *rows = map(_markdown_cells, [table.columns, *table.rows])
        shown = markdown_table(columns, rows, of_numbers=range(1, len(columns)))
        parts += [f"**{_markdown(table.title)}**", shown]

        if table.conclusion:
            parts.append(f"**{_markdown(table.conclusion)}**")

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
    columns = ["group", "method", "reference", "metric", "point", "seed", "clients"]
    columns += [*FIGURES, *_TEST_COLUMNS]
    rows: list[list[Any]] = [columns]
    for group in comparison.groups:
        differences = {difference.label: difference for difference in group.differences}
        for summary in group.methods:
            start = {
                "group": group.group,
                "method": inert(printable(summary.label)),
                "reference": inert(printable(comparison.reference)),
                "metric": comparison.metric,
                "point": comparison.point,
            }
            for row in _csv_rows(summary, differences.get(summary.label)):
                cells = start | row
                rows.append([cells.get(name) for name in columns])

    return csv_text(rows)


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON: what :meth:`Comparison.as_record` holds, not rounded."""
    return as_json(comparison.as_record(), indent=2) + "\n"


def _methods_table(comparison: Comparison, group: GroupComparison) -> ReportTable:
    """Return the figures of every method."""
    present = {name for summary in group.methods for name in summary.figures}
    names = [name for name in FIGURES if name in present]
    rows = []
    for summary in group.methods:
        cells = [_estimate(comparison, name, summary.figures.get(name)) for name in names]
        seeds = str(len(summary.seeds))
        rows.append((printable(summary.label), seeds, _clients(summary), *cells))

    below = f"{'Higher' if comparison.higher_is_better else 'Lower'} is better."
    if any(
        one.standard_error is not None for each in group.methods for one in each.figures.values()
    ):
        below += " ± is the standard error over seeds."

    below += " worst tenth: of clients, by score; smallest tenth: with the least training data."
    if "balanced_accuracy" in names:
        below += " balanced: every class counts the same; AUROC: 0 to 1, mean over classes."

    if "gain_over_local" in names:
        below += (
            " gain over Local: mean over clients, positive is better; harmed versus Local: clients "
            f"in % that are worse than with {comparison.local}."
        )

    if "gain_over_global" in names:
        below += f" gain, harmed … global: the same against the global model{_borrowed(group)}."

    return ReportTable(
        title=_title(comparison, group, "Methods"),
        columns=("method", "seeds", "clients", *(FIGURES[name] for name in names)),
        rows=tuple(rows),
        below=below,
    )


def _differences_table(comparison: Comparison, group: GroupComparison) -> ReportTable:
    """Return the differences from the reference over seeds."""
    # Of a seed that lacks a method, fewer are corrected for.
    methods = Counter(seed for difference in group.differences for seed in difference.by_seed)
    fewest = {seed: _fewest_clients(count) for seed, count in methods.items()}
    rows = []
    for difference in group.differences:
        count = len(difference.by_seed)
        can_be = any(test.clients >= fewest[seed] for seed, test in difference.by_seed.items())
        significant = f"{difference.significant_seeds} of {count}" if can_be else NOTHING
        over_seeds = _estimate(comparison, "gain_over_local", difference.over_seeds)
        rows.append((printable(difference.label), str(count), over_seeds, significant))

    below = (
        "difference: mean over clients, then over the seeds that both have with the same split; "
        f"positive: better than {comparison.reference}. significant: seeds whose corrected p-value "
        f"is below {SIGNIFICANT}, in either direction; with fewer than {min(fewest.values())} "
        "clients none can be."
    )

    return ReportTable(
        title=_title(comparison, group, f"Differences from {comparison.reference} over seeds"),
        columns=("method", "seeds", "difference", "significant"),
        rows=tuple(rows),
        below=below,
    )


def _fewest_clients(num_methods: int) -> int:
    """Return with how many clients a corrected p-value can be significant.

    If all differences have one sign, the signed-rank test of n clients has p = 2 / 2^n, which
    Holm's method multiplies by the number of methods.

    >>> _fewest_clients(1), _fewest_clients(3)
    (6, 7)
    """
    clients = 1
    while num_methods * 2 ** (1 - clients) >= SIGNIFICANT:
        clients += 1

    return clients


def _tests_table(comparison: Comparison, group: GroupComparison) -> ReportTable:
    """Return the tests of every seed."""
    rows = [
        (printable(difference.label), str(seed), *_test_cells(comparison, test))
        for difference in group.differences
        for seed, test in difference.by_seed.items()
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
    in_percent = CLIENT_METRICS[comparison.metric].in_percent
    interval = [round_figure(end, in_percent, signed=True) for end in test.interval or ()]
    return [
        str(test.clients),
        str(test.missing),
        round_figure(test.difference, in_percent, signed=True),
        " to ".join(interval) or NOTHING,
        show_p_value(test.wilcoxon.p_value),
        show_p_value(test.holm_p_value),
        f"{test.wins} / {test.ties} / {test.losses}",
    ]


def _title(comparison: Comparison, group: GroupComparison, what: str) -> str:
    unit = " in %" if CLIENT_METRICS[comparison.metric].in_percent else ""
    metric = comparison.metric.replace("_", " ")
    clients = f"{group.group} clients, {comparison.point} models"
    return printable(f"{what}: {metric}{unit}, {clients}, {comparison.about}")


def _borrowed(group: GroupComparison) -> str:
    """Return whose global model methods without one are compared with, in words."""
    owners = {each.label: each.global_model for each in group.methods if each.global_model}
    borrowers = [label for label, owner in owners.items() if owner != label]
    if not borrowers:
        return " of the method itself"

    owner = owners[borrowers[0]]
    return f" of the method itself, or for {', '.join(borrowers)}, without one, that of {owner}"


def _clients(summary: Summary) -> str:
    """Return the numbers of clients with a score, over the seeds."""
    counts = sorted(set(summary.clients.values()))
    if not counts:
        return NOTHING

    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _estimate(comparison: Comparison, name: str, estimate: Estimate | None) -> str:
    """Return a figure with its standard error."""
    if estimate is None:
        return NOTHING

    metric = name if name in CLIENT_METRICS else comparison.metric
    in_percent = name.startswith("harmed") or CLIENT_METRICS[metric].in_percent
    signed = name.startswith("gain")
    return with_error(estimate.mean, estimate.standard_error, in_percent, signed=signed)


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", printable(text))


def _markdown_cells(cells: Sequence[Cell]) -> list[str]:
    return [_markdown(str(cell)) for cell in cells]


def _csv_rows(summary: Summary, difference: Difference | None) -> Iterator[dict[str, Any]]:
    """Yield the cells of a method by column: one row per seed, then those over seeds."""
    tests = difference.by_seed if difference is not None else {}
    for seed in summary.seeds:
        row: dict[str, Any] = {"seed": seed, "clients": summary.clients[seed]}
        for name, one in summary.figures.items():
            row[name] = one.by_seed.get(seed)

        yield row | (_csv_test(tests[seed]) if seed in tests else {})

    # A test belongs to one seed, so rows over seeds have its difference only.
    estimates = dict(summary.figures)
    if difference is not None and difference.over_seeds is not None:
        estimates["difference"] = difference.over_seeds

    if summary.seeds:
        yield {"seed": "mean", **{name: one.mean for name, one in estimates.items()}}
    if len(summary.seeds) > 1:
        errors = {name: one.standard_error for name, one in estimates.items()}
        yield {"seed": "standard error", **errors}


def _csv_test(test: PairedTest) -> dict[str, Any]:
    """Return the cells of the test of a seed."""
    low, high = test.interval or (None, None)
    cells = (
        *(test.clients, test.missing, test.difference, low, high),
        *(test.wilcoxon.statistic, test.wilcoxon.p_value, test.wilcoxon.method),
        *(test.holm_p_value, test.wins, test.ties, test.losses),
    )

    return dict(zip(_TEST_COLUMNS, cells, strict=True))
