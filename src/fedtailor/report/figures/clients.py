"""Figures with a mark per client: accuracy, gain against other methods, local data size, the
partition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_object
from fedtailor.experiment.reader import RunRecords
from fedtailor.report.figures.axes import (
    Panel,
    horizontal_axis,
    horizontal_title,
    panels,
    titles,
    vertical_axis,
)
from fedtailor.report.figures.drawing import Drawing, shortened, width_of
from fedtailor.report.figures.figure import Cell, Figure, Table, percent
from fedtailor.report.figures.records import POINTS, MethodRecords, SeedRecords, Unit, unit_names
from fedtailor.report.figures.scales import Linear, linear, logarithmic

MOST_BARS = 300
"""Clients that are drawn in a panel of bars; of more, some are left out, evenly along the sorted
ones."""
MOST_DOTS = 1000
"""Clients that are drawn in a panel of dots; of more, the first ones."""
MOST_BUBBLES = 100
"""Clients and classes of the picture of the partition."""
_LONGEST_CLASS = 14
_WIDE_BUBBLES = 600


@dataclass(frozen=True)
class Reference:
    """What the accuracies of methods are compared with."""

    name: str
    """As in a sentence: against NAME."""
    accuracy: Mapping[Unit, float]
    label: str
    """The method that it is; empty for a model of every method's own."""


def accuracy_by_client(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return sorted bars of every client's accuracy, a panel per method, with a dot for the first
    reference.
    """
    shown = [method for method in records if method.point]
    if not shown:
        return []

    references = _references(records)
    reference = next((each for each in references if each.label), None)
    names = unit_names(records)
    accuracies = {method.label: method.accuracy() for method in shown}
    caption = "Every bar is a client, sorted by the accuracy of its model on its own test examples."
    if reference is not None:
        caption += f" The short lines show {reference.name} for the same client."

    caption += _over_seeds(records) + _left_out(max(map(len, accuracies.values())))

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        for panel, method in zip(panels(drawing, len(shown), 0, height=140), shown, strict=True):
            own = None if reference is None or reference.label == method.label else reference
            _draw_accuracies(panel, method, own, names)

        return drawing

    columns = [
        "client",
        "training examples",
        *(f"{method.label}: {method.point}, %" for method in shown),
    ]
    sizes = {unit: size for method in shown for unit, size in method.num_train().items()}
    rows: list[list[Cell]] = [
        [names[unit], size, *(percent(accuracies[method.label].get(unit)) for method in shown)]
        for unit, size in sizes.items()
    ]
    figure = Figure(
        name="accuracy-by-client",
        title="Accuracy of every client",
        caption=caption,
        draw=draw,
        table=Table(columns, rows),
    )

    return [figure]


def gains(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return who gains and who is harmed: against local training and FedAvg, or else the method's
    global model.
    """
    figures = []
    names = unit_names(records)
    for reference in _references(records):
        differences = {}
        for method in records:
            against = reference.accuracy if reference.label else method.accuracy("global")
            own = {} if method.label == reference.label else method.accuracy()
            common = {unit: own[unit] - against[unit] for unit in own if unit in against}
            if common:
                differences[method.label] = common

        if differences:
            figures.append(_gain_figure(reference, differences, names, _over_seeds(records)))

    return figures


def _gain_figure(
    reference: Reference,
    differences: Mapping[str, Mapping[Unit, float]],
    names: Mapping[Unit, str],
    seeds: str,
) -> Figure:
    """Return the sorted differences of accuracy from a reference, a panel per method."""
    largest = max(map(len, differences.values()))
    caption = (
        f"Every bar is a client, sorted: the accuracy of its model less that of {reference.name}, in points. "
        f"Bars above the line are clients that gain, bars below it clients that are harmed.{seeds}{_left_out(largest)}"
    )

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        every = [100 * value for found in differences.values() for value in found.values()]
        places = panels(drawing, len(differences), 0, height=140)
        for panel, (label, found) in zip(places, differences.items(), strict=True):
            y = linear(every, panel.bottom, panel.top, include=[0.0])
            _draw_gains(panel, y, label, found, names)

        return drawing

    units = list(dict.fromkeys(unit for found in differences.values() for unit in found))
    rows: list[list[Cell]] = [
        [names[unit], *(percent(found.get(unit)) for found in differences.values())]
        for unit in units
    ]
    name = "fedavg" if "FedAvg" in reference.name else "local" if reference.label else "global"

    return Figure(
        name=f"gain-against-{name}",
        title=f"Who gains and who is harmed, against {reference.name}",
        caption=caption,
        draw=draw,
        table=Table(["client", *(f"{label}, points" for label in differences)], rows),
    )


def accuracy_by_size(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return every client's accuracy against the number of its training examples."""
    shown = [method for method in records if any(size > 0 for size in method.num_train().values())]
    if not shown:
        return []

    names = unit_names(records)
    dots = {method.label: _by_size(method) for method in shown}
    caption = (
        "Every dot is a client. The line joins the mean accuracies of four groups of clients, from the fewest to the "
        "most training examples."
    )
    if max(map(len, dots.values())) > MOST_DOTS:
        caption += f" Only the first {MOST_DOTS} clients are drawn."

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        places = panels(drawing, len(shown), 0, height=150)
        every = [size for found in dots.values() for _, size, _ in found]
        for panel, (label, found) in zip(places, dots.items(), strict=True):
            x = logarithmic([float(size) for size in every], panel.left, panel.right)
            y = linear([0.0, 100.0], panel.bottom, panel.top)
            titles(panel, label, "accuracy, %")
            vertical_axis(panel, y, ticks=4)
            horizontal_axis(panel, x, "Training examples of the client")

            for unit, size, accuracy in found[:MOST_DOTS]:
                tip = f"{names[unit]}: {size} examples, {accuracy:.1f} %"
                drawing.circle(x(size), y(accuracy), 3.5, "dot fill0", tip=tip)

            drawing.path(
                [(x(size), y(accuracy)) for size, accuracy in _quarters(found)], "line line1"
            )

        return drawing

    rows: list[list[Cell]] = [
        [label, names[unit], size, round(accuracy, 2)]
        for label, found in dots.items()
        for unit, size, accuracy in found
    ]
    figure = Figure(
        name="accuracy-by-size",
        title="Accuracy and local data size",
        caption=caption,
        draw=draw,
        table=Table(["method", "client", "training examples", "accuracy, %"], rows),
    )

    return [figure]


def partition(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return the examples per client and class as bubbles, from the cards of the clients' models.

    Before a run has finished there are no cards. Then the test examples are drawn.
    """
    seeds = [seed for method in records for seed in method.seeds.values()]
    for seed in seeds:
        counts, class_names = training_counts(seed.run)
        if counts:
            return [
                _bubbles(counts, class_names, seed, "Training", len({one.split for one in seeds}))
            ]

    for seed in seeds:
        scores = next(iter(seed.scores.values()), {})
        found = {client: dict(each.class_counts) for client, each in scores.items()}
        if any(found.values()):
            return [_bubbles(found, [], seed, "Test", len({one.split for one in seeds}))]

    return []


def _references(records: Sequence[MethodRecords]) -> list[Reference]:
    """Return what methods are compared with: local training and FedAvg if they are there, else the
    own global model.
    """
    found = []
    by_name: dict[str, MethodRecords] = {}
    for method in records:
        if method.point:
            by_name.setdefault(method.method.algorithm, method)

    if "local" in by_name:
        method = by_name["local"]
        found.append(Reference("local training", method.accuracy(), method.label))

    for name in ("fedavg", "fedavg_ft"):
        accuracy = by_name[name].accuracy("global") if name in by_name else {}
        if accuracy:
            label = by_name[name].label if name == "fedavg" else f"{by_name[name].label}: global"
            found.append(Reference("the global model of FedAvg", accuracy, label))
            break

    if not found:
        found.append(Reference("the global model of the same run", {}, ""))

    return found


def _over_seeds(records: Sequence[MethodRecords]) -> str:
    """Return a sentence on means over seeds."""
    several = any(len(method.seeds) > 1 for method in records)
    return (
        " The accuracy of a client is the mean over the seeds with the same split."
        if several
        else ""
    )


def _left_out(clients: int) -> str:
    """Return a sentence on bars that are not drawn."""
    return f" Of {clients} clients, {MOST_BARS} are drawn, evenly." if clients > MOST_BARS else ""


def bars(values: Mapping[Unit, float]) -> list[Unit]:
    """Return the clients whose bars are drawn, the largest value first."""
    units = sorted(values, key=lambda unit: (-values[unit], unit))
    every = math.ceil(len(units) / MOST_BARS)
    return units[::every]


def _draw_accuracies(
    panel: Panel, method: MethodRecords, reference: Reference | None, names: Mapping[Unit, str]
) -> None:
    """Draw the sorted accuracies of a method."""
    values = method.accuracy()
    units = bars(values)
    y = linear([0.0, 100.0], panel.bottom, panel.top)
    mean = math.fsum(values.values()) / len(values)
    titles(panel, f"{method.label}: {POINTS[method.point]}", f"accuracy, %; mean {100 * mean:.1f}")
    vertical_axis(panel, y, ticks=4)
    step = panel.width / len(units)

    for number, unit in enumerate(units):
        top = y(100 * values[unit])
        left = panel.left + number * step
        tip = f"{names[unit]}: {100 * values[unit]:.1f} %"
        panel.drawing.bar(
            left, top, max(step * 0.85, 0.5), panel.bottom - top, "soft fill0", tip=tip
        )

        if reference is not None and unit in reference.accuracy:
            height = y(100 * reference.accuracy[unit])
            panel.drawing.line(left, height, left + max(step * 0.85, 1.5), height, "stroke")

    panel.drawing.line(panel.left, panel.bottom, panel.right, panel.bottom, "axis")
    horizontal_title(panel, f"{len(values)} clients, sorted")


def _draw_gains(
    panel: Panel, y: Linear, label: str, found: Mapping[Unit, float], names: Mapping[Unit, str]
) -> None:
    """Draw sorted differences of a method."""
    units = bars(found)
    gaining = sum(value > 0 for value in found.values())
    harmed = sum(value < 0 for value in found.values())
    mean = 100 * math.fsum(found.values()) / len(found)
    counts = f"{gaining} gain, {harmed} are harmed, {len(found) - gaining - harmed} equal; mean {mean:+.1f} points"
    titles(panel, label, counts)
    vertical_axis(panel, y, ticks=5)
    step = panel.width / len(units)

    for number, unit in enumerate(units):
        place = y(100 * found[unit])
        top = min(place, y(0))
        tip = f"{names[unit]}: {100 * found[unit]:+.1f} points"
        kind = "gain" if found[unit] > 0 else "harm"
        left = panel.left + number * step
        panel.drawing.bar(left, top, max(step * 0.85, 0.5), abs(place - y(0)), kind, tip=tip)

    panel.drawing.line(panel.left, y(0), panel.right, y(0), "stroke")
    horizontal_title(panel, f"{len(found)} clients, sorted")


def _by_size(method: MethodRecords) -> list[tuple[Unit, int, float]]:
    """Return the clients that have training examples: client, number of examples, accuracy in
    percent.
    """
    accuracy = method.accuracy()
    return [
        (unit, size, 100 * accuracy[unit]) for unit, size in method.num_train().items() if size > 0
    ]


def _quarters(dots: Sequence[tuple[Unit, int, float]]) -> list[tuple[float, float]]:
    """Return the mean size (geometric) and accuracy of four groups of clients by size; none of few
    clients.
    """
    ordered = sorted(dots, key=lambda dot: dot[1])
    if len(ordered) < 12:
        return []

    means = []
    for quarter in range(4):
        group = ordered[len(ordered) * quarter // 4 : len(ordered) * (quarter + 1) // 4]
        size = math.exp(math.fsum(math.log(dot[1]) for dot in group) / len(group))
        means.append((size, math.fsum(dot[2] for dot in group) / len(group)))

    return means


def training_counts(run: RunRecords) -> tuple[dict[int, dict[int, int]], list[str]]:
    """Return the training examples by client and class, and the names of the classes, from the
    cards of models.
    """
    counts: dict[int, dict[int, int]] = {}
    class_names: list[str] = []
    for path in sorted((run.path / "models").glob("*.json")):
        try:
            card = read_object(path, within=run.path)
        except DataError:
            continue

        match card:
            case {"number": int(client), "class_counts": [*found]} if all(
                isinstance(one, int) for one in found
            ):
                counts[client] = {label: count for label, count in enumerate(found) if count > 0}
                class_names = [str(name) for name in card.get("class_names") or ()]

    return dict(sorted(counts.items())), class_names


def _bubbles(
    counts: Mapping[int, Mapping[int, int]],
    class_names: Sequence[str],
    seed: SeedRecords,
    part: str,
    splits: int,
) -> Figure:
    """Return the picture of a partition."""
    clients = sorted(counts)
    classes = sorted(
        {label for found in counts.values() for label in found} | set(range(len(class_names)))
    )
    names = [seed.name_of(client) for client in clients]
    labels = [class_names[label] if label < len(class_names) else str(label) for label in classes]
    caption = (
        f"The area of a bubble is the number of {part.lower()} examples of a client (site) and class. "
        "Clients are across and classes down; on narrow screens it is the other way round."
    )
    if part == "Test":
        caption += " The numbers of training examples are known when the run has finished."
    if splits > 1:
        caption += f" This is the first of {splits} splits."
    if max(len(clients), len(classes)) > MOST_BUBBLES:
        caption += f" Only the first {MOST_BUBBLES} clients and classes are drawn."

    def draw(width: int) -> Drawing:
        shown_clients = [number for number, _ in enumerate(clients)][:MOST_BUBBLES]
        shown_classes = [number for number, _ in enumerate(classes)][:MOST_BUBBLES]
        table = [
            [counts[clients[row]].get(classes[column], 0) for column in shown_classes]
            for row in shown_clients
        ]

        return _draw_bubbles(width, table, names[:MOST_BUBBLES], labels[:MOST_BUBBLES])

    rows: list[list[Cell]] = [
        [name, sum(counts[client].values()), *(counts[client].get(label, 0) for label in classes)]
        for name, client in zip(names, clients, strict=True)
    ]

    return Figure(
        name="partition",
        title=f"{part} examples per client and class",
        caption=caption,
        draw=draw,
        table=Table(["client", "all", *labels], rows),
    )


def _draw_bubbles(
    width: int, counts: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str]
) -> Drawing:
    """Draw bubbles: clients across where the drawing is wide, else downward."""
    is_wide = width >= _WIDE_BUBBLES
    drawing = Drawing(width)
    short_clients = shortened(clients, _LONGEST_CLASS)
    short_classes = shortened(classes, _LONGEST_CLASS)
    across = short_clients if is_wide else short_classes
    down = short_classes if is_wide else short_clients
    left = 16 + max(map(width_of, down))
    step_x = min(30.0, (width - left - 8) / len(across))
    step_y = max(14.0, min(26.0, 2.2 * step_x))
    upright = max(map(width_of, across)) <= step_x * 3 and all(name.isdigit() for name in across)
    top = 24.0 if upright else 14 + max(map(width_of, across)) * 0.95
    every = 1 if not upright else max(1, math.ceil((max(map(width_of, across)) + 6) / step_x))
    largest = max(max(row) for row in counts) or 1
    radius = min(0.6 * math.sqrt(step_x * step_y), 1.2 * min(step_x, step_y))

    for place, name in enumerate(across):
        x = left + (place + 0.5) * step_x
        drawing.line(x, top, x, top + step_y * len(down), "grid")
        if upright and place % every == 0:
            drawing.text(x, top - 8, name, anchor="middle", kind="quiet small")
        elif not upright and step_x >= 9:
            drawing.text(x + 4, top - 8, name, kind="quiet small", turned=True)

    for place, name in enumerate(down):
        y = top + (place + 0.5) * step_y
        drawing.line(left, y, left + step_x * len(across), y, "grid")
        drawing.text(left - 8, y + 4, name, anchor="end", kind="quiet small")

    for client, row in enumerate(counts):
        for label, count in enumerate(row):
            if count:
                column = client if is_wide else label
                line = label if is_wide else client
                x = left + (column + 0.5) * step_x
                y = top + (line + 0.5) * step_y
                size = max(0.8, radius * math.sqrt(count / largest))
                drawing.circle(
                    x, y, size, "dot fill0", tip=f"{clients[client]}, {classes[label]}: {count}"
                )

    bottom = top + step_y * len(down) + 10
    _bubble_legend(drawing, left, bottom, radius, largest)
    return drawing


def _bubble_legend(drawing: Drawing, left: float, top: float, radius: float, largest: int) -> None:
    """Draw bubbles of known size."""
    x = left
    middle = top + max(radius, 8)
    for count in sorted({max(1, largest // 10), max(1, largest // 3), largest}):
        size = max(0.8, radius * math.sqrt(count / largest))
        drawing.circle(x + radius, middle, size, "dot fill0")
        drawing.text(x + 2 * radius + 4, middle + 4, f"{count:,}", kind="quiet small")
        x += 2 * radius + 18 + width_of(f"{count:,}")

    drawing.text(x, middle + 4, "examples", kind="quiet small")
    drawing.reach(middle + max(radius, 8) + 6)
