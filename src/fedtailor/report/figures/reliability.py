"""Reliability diagrams: how often predictions of a given confidence are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt
import numpy as np

from fedtailor.report.charts import CONTRAST, INK, MAIN, Chart, inline, tooltip
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable, to_percent
from fedtailor.report.records import POINTS, MethodRecords
from fedtailor.report.statistics import mean

BINS = 15
"""Bins of confidence in the records, as in :mod:`fedtailor.core.metrics`, which needs torch."""


def reliability(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return a reliability diagram per method, over the test examples of all clients and seeds."""
    panels = []
    rows: list[list[Cell]] = []
    for method in records:
        bins = _bins(method)
        if not bins.any():
            continue

        error = mean(scores.metrics["ece"] for _, scores in method.scores())
        panels.append(
            Panel(
                chart=_diagram(bins),
                title=f"{method.label}: {POINTS[method.point]}",
                subtitle=f"ECE {100 * error:.1f} %, the mean over clients",
            )
        )
        for number, (examples, confidence, right) in _filled(bins):
            bounds = [to_percent(number / BINS), to_percent((number + 1) / BINS)]
            shares = [to_percent(confidence / examples), to_percent(right / examples)]
            rows.append([method.label, *bounds, round(examples), *shares])

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
        "calibration error: the mean gap of a client, weighted by examples; of all examples "
        "together it is usually smaller, because gaps of clients cancel.",
        panels=panels,
        table=ReportTable(columns=columns, rows=rows),
    )

    return [figure]


def _bins(method: MethodRecords) -> np.ndarray:
    """Return the bins of all clients and seeds together, as for the calibration error."""
    bins = np.zeros((BINS, 3))
    for _, scores in method.scores():
        for number, *sums in scores.bins:
            bins[int(number)] += sums

    return bins


def _filled(bins: np.ndarray) -> Iterator[tuple[int, list[float]]]:
    """Yield the bins with examples, and their numbers."""
    for number in np.flatnonzero(bins[:, 0]).tolist():
        yield number, bins[number].tolist()


def _diagram(bins: np.ndarray) -> Chart:
    """Draw the bins of a method."""
    most = bins[:, 0].max()
    rows = [
        {
            "from": 100 * number / BINS + 0.4,
            "to": 100 * (number + 1) / BINS - 0.4,
            "accuracy": 100 * right / examples,
            "confidence": 100 * confidence / examples,
            "predictions": round(examples),
            "share": examples / most,
        }
        for number, (examples, confidence, right) in _filled(bins)
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
