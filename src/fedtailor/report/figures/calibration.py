"""Reliability diagrams: how often predictions of a given confidence are right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.report.figures.axes import Panel, horizontal_axis, panels, titles, vertical_axis
from fedtailor.report.figures.drawing import Drawing
from fedtailor.report.figures.figure import Cell, Figure, Table, percent
from fedtailor.report.figures.records import POINTS, MethodRecords
from fedtailor.report.figures.scales import Linear

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
    found = {method.label: _bins(method) for method in records}
    bins = {label: each for label, each in found.items() if each}
    points = {method.label: method.point for method in records}
    if not bins:
        return []

    caption = (
        "Bars show the accuracy of predictions by their confidence; on the dashed line, both are equal. Dashed boxes "
        "show where the model is more confident than right. ECE is the expected calibration error: the mean gap, "
        "weighted by examples. The thin bars below show how many predictions each bin holds."
    )

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        for panel, (label, each) in zip(
            panels(drawing, len(bins), 0, height=190), bins.items(), strict=True
        ):
            _draw_bins(panel, f"{label}: {POINTS[points[label]]}", each)

        return drawing

    rows: list[list[Cell]] = []
    for label, each in bins.items():
        for number, one in sorted(each.items()):
            shares = [percent(one.confidence / one.examples), percent(one.right / one.examples)]
            bounds = [percent(number / BINS), percent((number + 1) / BINS)]
            rows.append([label, *bounds, round(one.examples), *shares])

    columns = [
        "method",
        "confidence from, %",
        "to, %",
        "predictions",
        "mean confidence, %",
        "accuracy, %",
    ]
    figure = Figure(
        name="reliability",
        title="Reliability: confidence and accuracy",
        caption=caption,
        draw=draw,
        table=Table(columns, rows),
    )

    return [figure]


def calibration_error(bins: dict[int, Bin]) -> float:
    """Return the expected calibration error of all examples together, as a share."""
    total = math.fsum(one.examples for one in bins.values())
    return math.fsum(abs(one.confidence - one.right) for one in bins.values()) / total


def _bins(method: MethodRecords) -> dict[int, Bin]:
    """Return the bins of a method that hold examples."""
    found: dict[int, Bin] = {}
    for _, scores in method.scores():
        for number, examples, confidence, right in scores.bins:
            one = found.setdefault(min(max(int(number), 0), BINS - 1), Bin())
            one.examples += examples
            one.confidence += confidence
            one.right += right
    return {number: one for number, one in found.items() if one.examples > 0}


def _draw_bins(panel: Panel, title: str, bins: dict[int, Bin]) -> None:
    """Draw the bins of a method."""
    drawing = panel.drawing
    x = Linear(0.0, 100.0, panel.left, panel.right)
    y = Linear(0.0, 100.0, panel.bottom - 26, panel.top)
    titles(
        panel,
        title,
        f"accuracy, %; ECE {100 * calibration_error(bins):.1f} % over all test examples",
    )
    vertical_axis(panel, y, ticks=4)
    horizontal_axis(panel, x, "Confidence, %")
    step = panel.width / BINS
    most = max(one.examples for one in bins.values())

    for number, one in sorted(bins.items()):
        accuracy = 100 * one.right / one.examples
        confidence = 100 * one.confidence / one.examples
        left = panel.left + number * step + 1
        tip = f"{one.examples:.0f} predictions, confidence {confidence:.1f} %, accuracy {accuracy:.1f} %"
        drawing.bar(left, y(accuracy), step - 2, y(0) - y(accuracy), "soft fill0", tip=tip)
        if confidence > accuracy:
            drawing.bar(left, y(confidence), step - 2, y(accuracy) - y(confidence), "gap")

        height = 20 * one.examples / most
        drawing.bar(left + step * 0.2, panel.bottom - height, step * 0.6 - 2, height, "mark")

    drawing.line(x(0), y(0), x(100), y(100), "guide")
