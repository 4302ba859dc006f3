"""Is it worth it for each site: tables, and a chart of the differences with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from fedtailor.experiment.site_rows import measure_name
from fedtailor.report import charts
from fedtailor.report.comparison import Comparison
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable, Section, to_percent, visible
from fedtailor.report.records import MethodRecords
from fedtailor.report.worth_it import MOST_SITES, judge_methods, verdict_sentences, worth_it_tables

_COLORS = {"better": charts.MAIN, "no clear difference": charts.QUIET, "worse": charts.CONTRAST}
Record = Mapping[str, Any]


def verdict_section(records: Sequence[MethodRecords], comparison: Comparison | None) -> Section:
    """Return for which sites the methods are worth it; empty without single predictions.

    Args:
        records: of all methods.
        comparison: of those that have finished; None if they are fewer than two.
    """
    if comparison is not None:
        verdicts = comparison.worth_it
        shown = comparison.judged
        why_shown = comparison.why_judged
    else:
        verdicts = judge_methods([method.method for method in records])
        shown = next(iter(verdicts), "")
        why_shown = ""

    if not verdicts:
        return Section(name="worth-it", title="")

    return Section(
        name="worth-it",
        title="Is it worth it?",
        notes=verdict_sentences(verdicts, shown, why_shown),
        tables=[replace(table, conclusion="") for table in worth_it_tables(verdicts, shown)],
        figures=[_figure(verdicts[shown], shown)],
    )


def _figure(record: Record, method: str) -> Figure:
    """Return the differences of all sites that have one."""
    sites = [site for site in record["sites"] if site["difference"] is not None]
    name = measure_name(record["measure"])
    caption = (
        f"{name[0].upper()}{name[1:]} of the personalized model minus that of the best own model, "
        "in points (hundredths), on the same test examples. "
    )
    if len(sites) <= MOST_SITES:
        chart = _intervals(sites)
        caption += "The lines are 95 % intervals, and colors are verdicts."
    else:
        bars = [(str(site["site"]), 100 * site["difference"]["difference"]) for site in sites]
        chart = charts.sorted_bars(bars, "points", number_format="+.1f", by_sign=True)
        caption += "Every bar is a site, sorted."

    rows: list[list[Cell]] = []
    for site in sites:
        ends = [to_percent(site["difference"][name]) for name in ("difference", "low", "high")]
        rows.append([str(site["site"]), site["examples"], *ends, site["verdict"]])

    columns = ["site", "test examples", "difference, points", "low", "high", "verdict"]
    return Figure(
        name="worth-it-differences",
        title=f"Difference at every site: {method} against the best own model",
        caption=caption,
        panels=[Panel(chart=chart)],
        table=ReportTable(columns=columns, rows=rows),
    )


def _intervals(sites: Sequence[Record]) -> charts.Chart:
    """Draw the difference and the interval of every site, one below the other."""
    names = [str(site["site"]) for site in sites]
    drawn = charts.labels(names)
    rows = []
    for name, label, site in zip(names, drawn, sites, strict=True):
        paired = {key: to_percent(value) for key, value in site["difference"].items()}
        row = {"name": visible(name), "label": label, "verdict": site["verdict"], **paired}
        rows.append(row | {"examples": site["examples"]})

    scale = alt.Scale(domain=list(_COLORS), range=list(_COLORS.values()))
    name_axis = alt.Axis(title=None, labelLimit=110, labelColor=charts.INK)
    base = alt.Chart(charts.inline(rows), height=28 * len(rows)).encode(
        y=alt.Y("label:N", scale=alt.Scale(domain=drawn), axis=name_axis),
        color=alt.Color("verdict:N", scale=scale, legend=alt.Legend(title=None, columns=3)),
        tooltip=[
            charts.tooltip("name", "site"),
            charts.tooltip("examples", "test examples", "d"),
            charts.tooltip("difference", "difference, points", "+.1f"),
            charts.tooltip("low", "from", "+.1f"),
            charts.tooltip("high", "to", "+.1f"),
            charts.tooltip("verdict", "verdict"),
        ],
    )
    title = "points: better to the right"
    axis = alt.Axis(tickCount=5, grid=True)
    low = alt.X("low:Q", title=title, axis=axis, scale=alt.Scale(zero=True, nice=5))
    nothing = alt.Chart(charts.inline([{}])).mark_rule(color=charts.INK, strokeDash=[4, 3])
    zero = nothing.encode(x=alt.datum(0))
    interval = base.mark_rule(strokeWidth=2).encode(x=low, x2="high:Q")
    point = base.mark_circle(size=90, opacity=1).encode(x=alt.X("difference:Q", title=title))
    return alt.LayerChart(layer=[zero, interval, point])
