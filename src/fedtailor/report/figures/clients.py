"""Figures with a mark per client: accuracy, gain against others, local data size, classes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from fedtailor.report.charts import MOST_BARS, MOST_DOTS, Dot, dots, size_axis, sorted_bars
from fedtailor.report.data_plots import bubbles
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable
from fedtailor.report.records import (
    POINTS,
    MethodRecords,
    SeedRecords,
    Unit,
    mean_by_unit,
    training_counts,
    unit_names,
)
from fedtailor.report.statistics import DECIMALS, mean, outcomes

_FEWEST_FOR_A_LINE = 12
"""Clients from which on four groups of them have a mean worth a line."""


@dataclass(frozen=True)
class ReferenceLine:
    """What the accuracies of methods are compared with."""

    name: str
    """In the name of the figure."""
    words: str
    """As in a sentence: against WORDS."""
    method: MethodRecords | None
    """None: every method itself."""
    point: str
    """The evaluation point."""
    label: str = ""
    """The method that it is; empty for a model of every method's own."""


def accuracy_by_client(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return sorted bars of every client's accuracy, a panel per method."""
    values = {}
    subtitles = {}
    for method in records:
        if method.point:
            title = f"{method.label}: {POINTS[method.point]}"
            accuracy = method.accuracy()
            values[title] = _in_percent(accuracy)
            subtitles[title] = f"mean {100 * mean(accuracy.values()):.1f} %"

    caption = "Every bar is a client, sorted by the accuracy of its model on its own test examples."
    return bars_by_client(
        records,
        values,
        name="accuracy-by-client",
        title="Accuracy of every client",
        caption=caption + _over_seeds(records),
        quantity="accuracy, %",
        subtitles=subtitles,
        domain=(0, 100),
    )


def gains(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return who gains and who is harmed, against local training and FedAvg if they are there.

    Without them, every method is compared with its own global model.
    """
    figures = []
    for reference in _references(records):
        values = {}
        subtitles = {}
        for method in records:
            if method.label == reference.label:
                continue

            # Without Local and FedAvg, every method is compared with its own global model.
            gaps = _gaps(method, reference.method or method, reference.point)
            if gaps:
                values[method.label] = _in_percent(gaps)
                subtitles[method.label] = _count_gains(gaps)

        caption = (
            "Every bar is a client, sorted: the accuracy of its model less that of "
            f"{reference.words}, in points. Bars below the line are clients that are harmed."
        )

        # One scale for all panels, with 0 in it; where nobody gains or loses it is left to Vega.
        every = [0.0, *(gap for gaps in values.values() for gap in gaps.values())]
        figures += bars_by_client(
            records,
            values,
            name=f"gain-against-{reference.name}",
            title=f"Who gains and who is harmed, against {reference.words}",
            caption=caption + _over_seeds(records),
            quantity="points",
            subtitles=subtitles,
            domain=(min(every), max(every)) if any(every) else None,
            number_format="+.1f",
            by_sign=True,
        )

    return figures


def _gaps(method: MethodRecords, other: MethodRecords, point: str) -> dict[Unit, float]:
    """Return by how much the clients' accuracies differ from those of another model.

    As in the table, they are the means over the seeds that both have with the same split.

    Args:
        method: at its own evaluation point.
        other: the method of the other model.
        point: evaluation point of the other model.
    """
    gaps = []
    for number, seed in method.seeds.items():
        base = other.seeds.get(number)
        if base is None or base.split != seed.split:
            continue

        # Models of a round are not compared with final ones.
        if (base.run.result is None) != (seed.run.result is None):
            continue

        theirs = base.scores(point)
        for client, scores in seed.scores(method.point).items():
            if client in theirs:
                gap = scores.metrics["accuracy"] - theirs[client].metrics["accuracy"]
                gaps.append(((seed.population, client), gap))

    return {unit: round(gap, DECIMALS) for unit, gap in mean_by_unit(gaps).items()}


def _count_gains(gaps: Mapping[Unit, float]) -> str:
    """Return in words how many clients gain, and how much is gained."""
    gaining, equal, harmed = outcomes(list(gaps.values()))
    counts = f"{gaining} gain, {harmed} are harmed, {equal} equal"
    return f"{counts}; mean {100 * mean(gaps.values()):+.1f} points"


def bars_by_client(
    records: Sequence[MethodRecords],
    values: Mapping[str, Mapping[Unit, float]],
    *,
    name: str,
    title: str,
    caption: str,
    quantity: str,
    subtitles: Mapping[str, str] | None = None,
    **look: Any,
) -> list[Figure]:
    """Return a figure with sorted bars, a panel for each title of ``values``; none without values.

    Args:
        records: of all methods.
        values: by title and client.
        name: of the figure's files.
        title: of the figure.
        caption: of the figure.
        quantity: what the values are.
        subtitles: by title.
        look: further arguments of :func:`fedtailor.report.charts.sorted_bars`.
    """
    values = {key: by_unit for key, by_unit in values.items() if by_unit}
    if not values:
        return []

    names = unit_names(records)
    panels = []
    for key, by_unit in values.items():
        bars = [(names[unit], value) for unit, value in by_unit.items()]
        chart = sorted_bars(bars, quantity, **look)
        panels.append(Panel(chart=chart, title=key, subtitle=(subtitles or {}).get(key, "")))

    most = max(map(len, values.values()))
    if most > MOST_BARS:
        caption += f" Of {most} clients, at most {MOST_BARS} are drawn, evenly."

    rows: list[list[Cell]] = []
    for unit in dict.fromkeys(unit for by_unit in values.values() for unit in by_unit):
        rows.append([names[unit], *(by_unit.get(unit) for by_unit in values.values())])

    columns = ["client", *(f"{key}, {quantity}" for key in values)]
    table = ReportTable(columns=columns, rows=rows)

    return [Figure(name=name, title=title, caption=caption, panels=panels, table=table)]


def accuracy_by_size(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return every client's accuracy against the number of its training examples."""
    names = unit_names(records)
    panels = []
    rows: list[list[Cell]] = []
    for method in records:
        accuracy = method.accuracy()
        points = [
            Dot(names[unit], size, 100 * accuracy[unit])
            for unit, size in method.num_train().items()
            if size > 0
        ]
        # Clients of one size would be dots above each other.
        if len({dot.x for dot in points}) < 2:
            continue

        scale = alt.Scale(domain=[0, 100])
        chart = dots(
            points,
            size_axis(),
            alt.Y("y:Q", title="accuracy, %", scale=scale, axis=alt.Axis(tickCount=5)),
            line=_quarters(points),
        )
        panels.append(Panel(chart=chart, title=method.label))
        rows += [[method.label, dot.name, int(dot.x), round(dot.y, 2)] for dot in points]

    if not panels:
        return []

    caption = "Every dot is a client. The line joins the means of four groups of clients, by size."
    if len(rows) > MOST_DOTS * len(panels):
        caption += f" Only the first {MOST_DOTS} clients are drawn."

    columns = ["method", "client", "training examples", "accuracy, %"]
    figure = Figure(
        name="accuracy-by-size",
        title="Accuracy and local data size",
        caption=caption,
        panels=panels,
        table=ReportTable(columns=columns, rows=rows),
    )

    return [figure]


def partition(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return the examples per client and class as bubbles, from the cards of the clients' models.

    Before a run has finished there are none.
    """
    seeds = [seed for method in records for seed in method.seeds.values()]
    for seed in seeds:
        counts, class_names = training_counts(seed.run)
        if any(counts.values()):
            splits = len({each.split for each in seeds})
            remark = f" This is the first of {splits} splits." if splits > 1 else ""
            return [_bubbles(counts, class_names, seed, remark)]

    return []


def _bubbles(
    counts: Mapping[int, Mapping[int, int]],
    class_names: Sequence[str],
    seed: SeedRecords,
    remark: str,
) -> Figure:
    """Return the picture of a partition."""
    used = {label for of_client in counts.values() for label in of_client}
    classes = sorted(used | set(range(len(class_names))))
    clients = sorted(counts)
    table = [[counts[client].get(label, 0) for label in classes] for client in clients]
    names = dict(enumerate(class_names))
    return bubbles(
        np.array(table),
        client_names=[seed.name_of(client) for client in clients],
        class_names=[names.get(label, str(label)) for label in classes],
        title="Training examples per client and class",
        remark=remark,
    )


def _references(records: Sequence[MethodRecords]) -> list[ReferenceLine]:
    """Return local training and FedAvg if they are there; else every method's own global model."""
    by_name: dict[str, MethodRecords] = {}
    for method in records:
        if method.point:
            by_name.setdefault(method.method.algorithm, method)

    references = []
    if "local" in by_name:
        method = by_name["local"]
        line = ReferenceLine("local", "local training", method, method.point, method.label)
        references.append(line)

    # Fine-tuned FedAvg has the same global model, and is a method of its own beside it.
    for name in ("fedavg", "fedavg_ft"):
        if name in by_name and by_name[name].accuracy("global"):
            label = by_name[name].label if name == "fedavg" else f"{by_name[name].label}: global"
            words = "the global model of FedAvg"
            references.append(ReferenceLine("fedavg", words, by_name[name], "global", label))
            break

    return references or [
        ReferenceLine("global", "the global model of the same run", None, "global")
    ]


def _in_percent(accuracy: Mapping[Unit, float]) -> dict[Unit, float]:
    return {unit: round(100 * value, 2) for unit, value in accuracy.items()}


def _over_seeds(records: Sequence[MethodRecords]) -> str:
    """Return a sentence on means over seeds."""
    if all(len(method.seeds) <= 1 for method in records):
        return ""

    return " The accuracy of a client is the mean over the seeds with the same split."


def _quarters(points: Sequence[Dot]) -> list[tuple[float, float]]:
    """Return the mean size (geometric) and accuracy of four groups of clients by size."""
    if len(points) < _FEWEST_FOR_A_LINE:
        return []

    # Sizes differ by factors, so their mean is geometric.
    ordered = sorted(points, key=lambda dot: dot.x)
    means = []
    for quarter in range(4):
        group = ordered[len(ordered) * quarter // 4 : len(ordered) * (quarter + 1) // 4]
        size = statistics.geometric_mean(dot.x for dot in group)
        means.append((size, mean(dot.y for dot in group)))

    return means
