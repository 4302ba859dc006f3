"""Figures over the rounds of runs: accuracy, fit of the features, seconds and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fedtailor.report.figures.axes import (
    Panel,
    horizontal_axis,
    panels,
    titles,
    vertical_axis,
    whole_rounds,
)
from fedtailor.report.figures.drawing import SERIES, Drawing, shortened
from fedtailor.report.figures.figure import Cell, Figure, Table
from fedtailor.report.figures.records import POINTS, MethodRecords, SeedRecords, number
from fedtailor.report.figures.scales import linear

MOST_ROUNDS = 500
"""Rounds of a curve that are drawn and listed; of more, some are left out, evenly."""
_LONGEST_LABEL = 44
_MEGABYTE = 1e6
_FEW_MARKS = 12
"""Curves of so few points have a mark at each."""


@dataclass(frozen=True)
class Middle:
    """A value of a curve: the mean, and the smallest and largest of what it is the mean of."""

    mean: float
    low: float
    high: float
    count: int


Curve = Mapping[int, Middle]
"""By round."""


@dataclass(frozen=True)
class Quantity:
    """What a panel of curves shows."""

    title: str
    unit: str
    curves: Mapping[str, Curve]
    """By label of the method."""
    include: Sequence[float] = ()
    """Values that the vertical axis holds in any case."""


def accuracy_curves(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return a figure of accuracy by round for every evaluation point that the records have."""
    figures = []
    for point, words in POINTS.items():
        means = _over_seeds(records, partial(_means, point=point))
        worst = _over_seeds(records, partial(_worst_tenths, point=point))
        if not means:
            continue

        quantities = [
            Quantity("Mean over clients", "accuracy, %", means),
            Quantity("Worst tenth of the clients", "accuracy, %, mean of the worst tenth", worst),
        ]
        figures.append(
            _figure(
                f"curves-{point}",
                f"Accuracy by round: {words}",
                f"Accuracy of {words} on the clients' own test examples.",
                records,
                quantities,
            )
        )

    return figures


def gaussianity(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return how well a Gaussian of each class fits the features, by round; none if no method
    reports it.
    """
    surprise = _over_clients(records, "feature_surprise")
    if not surprise:
        return []

    quantities = [
        Quantity("Surprise", "negative log-likelihood, nats", surprise),
        Quantity(
            "Kurtosis", "1 for Gaussian features", _over_clients(records, "feature_kurtosis"), [1.0]
        ),
    ]
    figure = _figure(
        "gaussianity",
        "How Gaussian the features are, by round",
        "The negative log-likelihood of the clients' training features under a Gaussian of each class, as in FedLDA "
        "(2023), Figure 1; and their kurtosis (Mardia 1970) over that of a Gaussian, which is larger for heavy tails.",
        records,
        quantities,
        spread="clients",
    )

    return [figure]


def costs(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return seconds and bytes of every round."""
    seconds = [
        Quantity(
            "Training", "seconds per round", _cost(records, "seconds", "train"), include=[0.0]
        ),
        Quantity(
            "Evaluation",
            "seconds per round with evaluations",
            _evaluation_seconds(records),
            include=[0.0],
        ),
    ]
    sent = [
        Quantity("From all clients", "MB per round", _cost(records, "bytes", "up"), include=[0.0]),
        Quantity("To all clients", "MB per round", _cost(records, "bytes", "down"), include=[0.0]),
    ]
    if not seconds[0].curves:
        return []

    where = "Seconds are those of this machine, which other work may have slowed down."
    wide = "Every number of a message counts with its size in memory; 1 MB is a million bytes."
    return [
        _figure("seconds", "Seconds per round", where, records, seconds),
        _figure("bytes", "Bytes per round", wide, records, sent),
    ]


def thinned(rounds: Sequence[int], most: int = MOST_ROUNDS) -> list[int]:
    """Return at most ``most`` rounds, evenly, the last one among them.

    >>> thinned([1, 2, 3, 4, 5, 6], most=3)
    [2, 4, 6]
    """
    every = math.ceil(len(rounds) / most)
    return list(rounds)[(len(rounds) - 1) % every :: every] if every else []


def _means(seed: SeedRecords, point: str) -> dict[int, float]:
    """Return the mean accuracies over clients in percent, by round."""
    return {place: 100 * each.mean for place, each in seed.curves.get(point, {}).items()}


def _worst_tenths(seed: SeedRecords, point: str) -> dict[int, float]:
    """Return the mean accuracies of the worst tenth of the clients in percent, by round."""
    found = {place: each.worst_tenth for place, each in seed.curves.get(point, {}).items()}
    return {place: 100 * worst for place, worst in found.items() if worst is not None}


def _over_seeds(
    records: Sequence[MethodRecords], values: Callable[[SeedRecords], Mapping[int, float]]
) -> dict[str, Curve]:
    """Return curves by label, the mean over seeds, from the values of a seed by round."""
    curves: dict[str, Curve] = {}
    for method in records:
        found: dict[int, list[float]] = {}
        for seed in method.seeds.values():
            for place, value in values(seed).items():
                found.setdefault(place, []).append(value)

        if found:
            curves[method.label] = _middles(found)

    return curves


def _over_clients(records: Sequence[MethodRecords], metric: str) -> dict[str, Curve]:
    """Return curves by label of a training metric, the mean over clients and seeds."""
    curves: dict[str, Curve] = {}
    for method in records:
        found: dict[int, list[float]] = {}
        for seed in method.seeds.values():
            for place, values in seed.followed.get(metric, {}).items():
                found.setdefault(place, []).extend(values)

        if found:
            curves[method.label] = _middles(found)

    return curves


def _cost(records: Sequence[MethodRecords], kind: str, part: str) -> dict[str, Curve]:
    """Return seconds, or megabytes, of every round."""
    scale = _MEGABYTE if kind == "bytes" else 1.0

    def values(seed: SeedRecords) -> dict[int, float]:
        found = {int(line["round"]): _part(line.get(kind), part) for line in seed.run.rounds}
        return {place: value / scale for place, value in found.items() if value is not None}

    return _over_seeds(records, values)


def _evaluation_seconds(records: Sequence[MethodRecords]) -> dict[str, Curve]:
    """Return the seconds of evaluation in the rounds that have evaluations."""

    def values(seed: SeedRecords) -> dict[int, float]:
        lines = [line for line in seed.run.rounds if line.get("evaluations")]
        found = {int(line["round"]): _part(line.get("seconds"), "evaluate") for line in lines}
        return {place: value for place, value in found.items() if value is not None}

    return _over_seeds(records, values)


def _part(table: object, name: str) -> float | None:
    return number(table.get(name)) if isinstance(table, Mapping) else None


def _middles(values: Mapping[int, Sequence[float]]) -> dict[int, Middle]:
    return {
        place: Middle(math.fsum(each) / len(each), min(each), max(each), len(each))
        for place, each in sorted(values.items())
    }


def _figure(
    name: str,
    title: str,
    caption: str,
    records: Sequence[MethodRecords],
    quantities: Sequence[Quantity],
    *,
    spread: str = "seeds",
) -> Figure:
    """Return a figure with a panel per quantity and a line per method."""
    labels = [method.label for method in records]
    rounds = {
        label: sorted({place for each in quantities for place in each.curves.get(label, ())})
        for label in labels
    }
    kept = {
        label: {place for each in quantities for place in thinned(list(each.curves.get(label, ())))}
        for label in labels
    }
    sentences = [caption]

    if any(
        middle.count > 1
        for each in quantities
        for curve in each.curves.values()
        for middle in curve.values()
    ):
        sentences.append(f"The bands reach from the smallest to the largest value over {spread}.")

    if any(len(kept[label]) < len(rounds[label]) for label in labels):
        sentences.append(f"Of the rounds, at most {MOST_ROUNDS} are drawn and listed, evenly.")

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        names = dict(enumerate(shortened(labels, _LONGEST_LABEL)))
        top = drawing.legend(
            {series: names[series] for series in names if rounds[labels[series]]}, 0
        )
        for panel, quantity in zip(panels(drawing, len(quantities), top), quantities, strict=True):
            _draw_curves(panel, quantity, labels, kept)

        return drawing

    columns = ["method", "round"]
    for quantity in quantities:
        columns += [f"{quantity.title}, {quantity.unit}", "smallest", "largest"]

    rows: list[list[Cell]] = []
    for label in labels:
        for place in sorted(kept[label]):
            row: list[Cell] = [label, place]
            for quantity in quantities:
                found = quantity.curves.get(label, {}).get(place)
                row += [None, None, None] if found is None else [found.mean, found.low, found.high]

            rows.append(row)

    return Figure(
        name=name, title=title, caption=" ".join(sentences), draw=draw, table=Table(columns, rows)
    )


def _draw_curves(
    panel: Panel, quantity: Quantity, labels: Sequence[str], kept: Mapping[str, set[int]]
) -> None:
    """Draw a panel of curves."""
    drawing = panel.drawing
    titles(panel, quantity.title, quantity.unit)
    curves = {
        label: {
            place: middle
            for place, middle in quantity.curves.get(label, {}).items()
            if place in kept[label]
        }
        for label in labels
    }
    every = [middle for curve in curves.values() for middle in curve.values()]

    if not every:
        drawing.text(panel.left, (panel.top + panel.bottom) / 2, "not recorded", kind="quiet")
        return

    x = whole_rounds([place for curve in curves.values() for place in curve], panel)
    y = linear(
        [value for each in every for value in (each.low, each.high)],
        panel.bottom,
        panel.top,
        include=quantity.include,
    )
    vertical_axis(panel, y)
    horizontal_axis(panel, x, "Round", whole=True)

    for series, label in enumerate(labels):
        curve = curves[label]
        if any(middle.low < middle.high for middle in curve.values()):
            upper = [(x(place), y(middle.high)) for place, middle in curve.items()]
            lower = [(x(place), y(middle.low)) for place, middle in curve.items()]
            drawing.path([*upper, *reversed(lower)], f"band fill{series % SERIES}", closed=True)

    for series, label in enumerate(labels):
        points = [(x(place), y(middle.mean)) for place, middle in curves[label].items()]
        if len(points) > 1:
            drawing.path(points, f"line line{series % SERIES}", series=series)

        if len(points) <= _FEW_MARKS:
            for across, up in points:
                drawing.circle(across, up, 3, f"fill{series % SERIES}")
