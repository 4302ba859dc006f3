"""Reliability diagrams: how often predictions of a given confidence are right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from fedtailor.report.charts import CONTRAST, INK, MAIN, Chart, inline, tooltip
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable, percent
from fedtailor.report.records import POINTS, MethodRecords

BINS = 15
"""Bins of confidence in the records, as in :mod:`fedtailor.core.metrics`, which needs torch."""


@dataclass
class Bin:
    """A bin of confidence, over clients and seeds."""

    examples: float = 0.0
    confidence: float = 0.0
    """The sum over examples."""
    right: float = 0.0


def reliability(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return a reliability diagram per method, over the test examples of all clients and seeds."""
    panels = []
    rows: list[list[Cell]] = []
    for method in records:
        bins = _bins(method)
        if not bins:
            continue

        panels.append(
            Panel(
                chart=_diagram(bins),
                title=f"{method.label}: {POINTS[method.point]}",
                subtitle=f"ECE {100 * calibration_error(bins):.1f} % over all test examples",
            )
        )
        for number, one in bins.items():
            bounds = [percent(number / BINS), percent((number + 1) / BINS)]
            shares = [percent(one.confidence / one.examples), percent(one.right / one.examples)]
            rows.append([method.label, *bounds, round(one.examples), *shares])

    if not panels:
        return []

    columns = ["method", "confidence from, %", "to, %", "predictions"]
    columns += ["mean confidence, %", "accuracy, %"]
    figure = Figure(
        name="reliability",
        title="Reliability: confidence and accuracy",
        caption="Bars show the accuracy of predictions by their confidence; on the dashed line, "
        "both are equal. Bars that end below it are predictions more confident than right; a short "
        "line shows their confidence. Pale bars hold few predictions. ECE is the expected "
        "calibration error: the mean gap, weighted by examples.",
        panels=panels,
        table=ReportTable(columns=columns, rows=rows),
    )

    return [figure]


def calibration_error(bins: Mapping[int, Bin]) -> float:
    """Return the expected calibration error of all examples together, as a share."""
    total = math.fsum(one.examples for one in bins.values())
    return math.fsum(abs(one.confidence - one.right) for one in bins.values()) / total


def _bins(method: MethodRecords) -> dict[int, Bin]:
    """Return the bins of a method that hold examples, in their order."""
    bins: dict[int, Bin] = {}
    for _, scores in method.scores():
        for number, examples, confidence, right in scores.bins:
            one = bins.setdefault(min(max(int(number), 0), BINS - 1), Bin())
            one.examples += examples
            one.confidence += confidence
            one.right += right

    return {number: one for number, one in sorted(bins.items()) if one.examples > 0}


def _diagram(bins: Mapping[int, Bin]) -> Chart:
    """Draw the bins of a method."""
    most = max(one.examples for one in bins.values())
    rows = [
        {
            "from": 100 * number / BINS + 0.4,
            "to": 100 * (number + 1) / BINS - 0.4,
            "accuracy": 100 * one.right / one.examples,
            "confidence": 100 * one.confidence / one.examples,
            "predictions": round(one.examples),
            "share": one.examples / most,
        }
        for number, one in bins.items()
    ]
    tips = [
        tooltip("confidence", "mean confidence, %", ".1f"),
        tooltip("accuracy", "accuracy, %", ".1f"),
        tooltip("predictions", "predictions", ",d"),
    ]
    ends = alt.Scale(domain=[0, 100])
    x = alt.X("from:Q", title="confidence, %", scale=ends, axis=alt.Axis(tickCount=5))
    y = alt.Y("accuracy:Q", title="accuracy, %", scale=ends, axis=alt.Axis(tickCount=5))
    opacity = alt.Opacity("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[0.25, 0.9]))

    base = alt.Chart(inline(rows), height=190)
    bars = base.mark_rect(color=MAIN).encode(
        x=x, x2="to:Q", y=y, y2=alt.datum(0), opacity=opacity, tooltip=tips
    )
    confidence = base.mark_rule(color=CONTRAST, strokeWidth=2)
    confidence = confidence.encode(x=x, x2="to:Q", y="confidence:Q", tooltip=tips)
    corners = inline([{"x": 0, "y": 0}, {"x": 100, "y": 100}])
    diagonal = alt.Chart(corners).mark_line(color=INK, strokeDash=[4, 3], strokeWidth=1.2)

    return alt.LayerChart(layer=[bars, confidence, diagonal.encode(x="x:Q", y="y:Q")])
