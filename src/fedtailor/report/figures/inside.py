"""Figures of what single methods report of their clients: beta, confidence, deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import altair as alt

from fedtailor.report import charts
from fedtailor.report.figures.clients import bars_by_client
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable, visible
from fedtailor.report.records import MethodRecords, Unit, mean_by_unit, unit_names

_CLEAN = "clean"


def beta(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return beta of every client by corruption and number of examples, where it is reported."""
    figures: list[Figure] = []
    for method in records:
        if method.method.config["algorithm"].get("beta") == "none":  # it is 1 for every client
            continue

        pairs = [pair for pair in method.scores() if "beta_means" in pair[1].diagnostics]
        values = mean_by_unit((unit, one.diagnostics["beta_means"]) for unit, one in pairs)
        if not values:
            continue

        # "contrast-3" is the corruption contrast with severity 3.
        conditions = {unit: one.condition.rpartition("-")[0] or _CLEAN for unit, one in pairs}
        sizes = {unit: one.num_train for unit, one in pairs}
        name = f"beta-{len(figures) + 1}" if figures else "beta"
        names = unit_names(records)
        figures.append(_beta_figure(name, method.label, values, conditions, sizes, names))

    return figures


def _beta_figure(
    name: str,
    label: str,
    values: Mapping[Unit, float],
    conditions: Mapping[Unit, str],
    sizes: Mapping[Unit, int],
    names: Mapping[Unit, str],
) -> Figure:
    """Return strips by corruption, if there are several, beside dots by number of examples."""
    panels = []
    caption = (
        "Beta is the weight of a client's own estimate against the server's: 1 is all its own. In "
        "pFedFDA (2024), Figure 2, it is larger for clients with corrupted data."
    )
    if len(set(conditions.values())) > 1:
        strips = [(conditions[unit], names[unit], value) for unit, value in values.items()]
        panels.append(Panel(chart=_strips(strips), title="By corruption"))
        caption += " Every dot is a client, the dark line a mean."

    points = [
        charts.Dot(names[unit], sizes[unit], values[unit]) for unit in values if sizes[unit] > 0
    ]
    if points:
        scale = alt.Scale(domain=[min(0, *values.values()), max(1, *values.values())])
        y = alt.Y("y:Q", title="beta", scale=scale)
        chart = charts.dots(points, charts.size_axis(), y, number_format=".3f")
        panels.append(Panel(chart=chart, title="By local data size"))

    rows: list[list[Cell]] = [
        [names[unit], conditions[unit], sizes[unit], value] for unit, value in values.items()
    ]
    columns = ["client", "corruption", "training examples", "beta"]

    return Figure(
        name=name,
        title=f"{label}: beta and corruption",
        caption=caption,
        panels=panels,
        table=ReportTable(columns=columns, rows=rows),
    )


def _strips(values: Sequence[tuple[str, str, float]]) -> charts.Chart:
    """Draw a strip of dots for every group, with a line at the mean of the group.

    Args:
        values: group, name and value of every dot.
    """
    groups = sorted({group for group, _, _ in values}, key=lambda group: (group != _CLEAN, group))
    shown = dict(zip(groups, charts.labels(groups), strict=True))
    rows = [
        {"group": shown[group], "name": visible(name), "value": value}
        for group, name, value in values
    ]
    axis = alt.Axis(title=None, grid=True, labelColor=charts.INK)
    y = alt.Y("group:N", axis=axis, scale=alt.Scale(domain=list(shown.values())))
    x = alt.X("value:Q", title="beta", scale=alt.Scale(zero=False))
    tips = [
        charts.tooltip("name", "client"),
        charts.tooltip("group", "corruption"),
        charts.tooltip("value", "beta", ".3f"),
    ]

    base = alt.Chart(charts.inline(rows), height=24 * len(groups)).encode(y=y)
    marks = base.mark_circle(color=charts.MAIN, opacity=0.6, size=50).encode(x=x, tooltip=tips)
    means = base.mark_tick(color=charts.INK, thickness=2).encode(
        x=alt.X("mean(value):Q", title="beta")
    )

    return alt.LayerChart(layer=[marks, means])


def confidence(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return the clients' shares of the confidence in their last round, where it is reported."""
    shares = {}
    for method in records:
        values = method.training("confidence")
        total = math.fsum(values.values())
        if total:  # zeros have no shares
            shares[method.label] = {unit: 100 * value / total for unit, value in values.items()}

    return bars_by_client(
        records,
        shares,
        name="confidence",
        title="Shares of the confidence",
        caption="The weight of every client's head in the server's mean, in percent of all, after "
        "the last round, as in pFedVEM (2023), Figure 10. Every bar is a client, sorted; the "
        "dashed line is the share if all were equal.",
        quantity="share, %",
        number_format=".4~g",
        has_mean_line=True,
    )


def deviation(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return how far the clients' heads are from the global one, where a method reports it."""
    return bars_by_client(
        records,
        {method.label: method.training("model_deviation") for method in records},
        name="model-deviation",
        title="Deviation of the clients' heads",
        caption="The squared distance of every client's head from the global one, per parameter, "
        "after the last round, as in pFedVEM (2023), Figure 11. Every bar is a client, sorted; the "
        "dashed line is the mean.",
        quantity="squared distance",
        number_format=".4~g",
        has_mean_line=True,
    )
