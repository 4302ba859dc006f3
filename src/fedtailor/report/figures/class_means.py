"""The class means of the clients' features, in two dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedtailor.experiment.records import CLASS_MEANS_DIGEST
from fedtailor.report.figures.axes import horizontal_axis, panels, titles, vertical_axis
from fedtailor.report.figures.clients import training_counts
from fedtailor.report.figures.drawing import SERIES, Drawing, shortened, width_of
from fedtailor.report.figures.figure import Cell, Figure, Table
from fedtailor.report.figures.records import MethodRecords, SeedRecords
from fedtailor.report.figures.scales import linear

_LONGEST_CLASS = 14
_RADIUS = 6.0
_LINE = 13.0  # pixels from one line of text to the next


MOST_DOTS = 3000
"""Means that are drawn and listed; of more, only those of the first clients."""


def class_means(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return the class means of every method whose runs have recorded them: those of its first
    seed.

    Raises:
        DataError: their file is damaged.
    """
    figures: list[Figure] = []
    for method in records:
        having = [
            seed for seed in method.seeds.values() if CLASS_MEANS_DIGEST in (seed.run.result or {})
        ]
        if having:
            name = f"class-means-{len(figures) + 1}" if figures else "class-means"
            figures += _figure_of(having[0], method.label, name)

    return figures


def _figure_of(seed: SeedRecords, label: str, name: str) -> list[Figure]:
    """Return the class means of a run; no figure if no client has any.

    Where models differ, clients have different numbers of features. Those with the most common
    number are drawn.
    """
    found = seed.run.class_means()
    if not found:
        return []

    (size, _), *others = Counter(each.means.shape for each in found.values()).most_common()
    chosen = {client: each for client, each in sorted(found.items()) if each.means.shape == size}
    most = max(1, MOST_DOTS // max(1, size[0]))
    drawn = dict(list(chosen.items())[:most])
    counts = np.stack([each.counts for each in drawn.values()])
    if not counts.any():
        return []

    notes = ["Where clients train bodies of their own, their features need not be alike."]
    if others:
        notes.append(
            f"Only the {len(chosen)} clients whose models have {size[1]} features are drawn."
        )

    if len(drawn) < len(chosen):
        notes.append(f"Only the first {len(drawn)} clients are drawn.")

    _, class_names = training_counts(seed.run)
    figure = class_means_figure(
        np.stack([each.means for each in drawn.values()]),
        counts,
        class_names=class_names,
        client_names=[seed.name_of(client) for client in drawn],
        label=label,
        name=name,
    )

    return [replace(figure, caption=" ".join([figure.caption, *notes]))]


def class_means_figure(
    means: np.ndarray,
    counts: np.ndarray,
    *,
    class_names: Sequence[str] = (),
    client_names: Sequence[str] = (),
    label: str = "",
    name: str = "class-means",
) -> Figure:
    """Return the means of the features by client and class, in the two directions in which they
    vary most.

    The directions are the first two principal components of all means that are of at least one
    example.

    Args:
        means: means of features (clients, classes, features).
        counts: examples that each mean is of (clients, classes); a mean of none is left out.
        class_names: names of the classes; empty: numbers.
        client_names: names of the clients; empty: numbers.
        label: the method, for the title.
        name: name of the files.

    Raises:
        ValueError: the shapes do not fit, or no mean is of an example and finite.
    """
    if means.ndim != 3 or counts.shape != means.shape[:2]:
        raise ValueError(
            f"means must be (clients, classes, features) and counts (clients, classes), got {means.shape}"
        )

    present = (counts > 0) & np.isfinite(means).all(axis=2)
    if not present.any():
        raise ValueError("no mean is of an example and finite")

    places = np.argwhere(present)
    rows, explained = _principal_components(means[present].astype(np.float64))
    classes = [
        class_names[label] if label < len(class_names) else str(label)
        for label in range(means.shape[1])
    ]
    clients = [
        client_names[number] if number < len(client_names) else str(number)
        for number in range(len(means))
    ]
    weights = counts[present].astype(np.float64)
    shown = shortened(classes, _LONGEST_CLASS)

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        (panel,) = panels(drawing, 1, 0, height=min(420.0, width * 0.8))
        x = linear(rows[:, 0].tolist(), panel.left, panel.right)
        y = linear(rows[:, 1].tolist(), panel.bottom, panel.top)
        titles(
            panel,
            "Means by client and class",
            f"second component, {100 * explained[1]:.0f} % of the variance",
        )
        vertical_axis(panel, y)
        horizontal_axis(
            panel, x, f"First component, {100 * explained[0]:.0f} % of the variance", grid=True
        )

        for (client, group), (across, up) in zip(places.tolist(), rows.tolist(), strict=True):
            tip = f"{clients[client]}, {classes[group]}: {int(counts[client, group])} examples"
            drawing.circle(x(across), y(up), 3, f"dot fill{group % SERIES}", tip=tip)

        centers = {}
        for group in sorted(set(places[:, 1].tolist())):
            own = places[:, 1] == group
            across, up = np.average(rows[own], axis=0, weights=weights[own]).tolist()
            centers[group] = (x(across), y(up))
            drawing.circle(
                x(across), y(up), _RADIUS, f"fill{group % SERIES} ring", tip=classes[group]
            )

        _draw_names(drawing, {shown[group]: center for group, center in centers.items()})
        return drawing

    table_rows: list[list[Cell]] = [
        [clients[client], classes[group], int(counts[client, group]), across, up]
        for (client, group), (across, up) in zip(places.tolist(), rows.tolist(), strict=True)
    ]

    return Figure(
        name=name,
        title=f"{label}: class means in two dimensions"
        if label
        else "Class means in two dimensions",
        caption="Every small dot is the mean of a client's features of one class. Large dots, with the name of the "
        "class, are the means over clients, weighted by examples. The axes are the first two principal components of "
        f"all means; together they hold {100 * float(explained.sum()):.0f} % of the variance.",
        draw=draw,
        table=Table(
            ["client", "class", "examples", "first component", "second component"], table_rows
        ),
    )


def _draw_names(drawing: Drawing, centers: Mapping[str, tuple[float, float]]) -> None:
    """Write names above their places, or below, or beside them, where no other name or place is if
    that is possible.
    """
    taken = [
        (x, y + 4, _RADIUS) for x, y in centers.values()
    ]  # middle, base line, half of the width
    for name, (x, y) in centers.items():
        half = width_of(name) / 2
        candidates = [(x, y - 10), (x, y + 19), (x + half + 10, y + 4), (x - half - 10, y + 4)]
        free = [
            (middle, base)
            for middle, base in candidates
            if not any(
                abs(middle - other) < half + width and abs(base - line) < _LINE
                for other, line, width in taken
            )
        ]
        middle, base = [*free, *candidates][0]
        taken.append((middle, base, half))
        drawing.text(middle, base, name, anchor="middle", kind="strong halo")


def _principal_components(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n, 2) in the directions in which they vary most, and the shares of the
    variance (2,).
    """
    centered = points - points.mean(axis=0)
    left, sizes, directions = np.linalg.svd(centered, full_matrices=False)
    total = float((sizes**2).sum())
    shares = sizes**2 / total if total > 0 else np.zeros_like(sizes)
    signs = np.sign(
        directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)]
    )  # the same on any machine
    scores = left * sizes * signs
    padding = max(0, 2 - scores.shape[1])

    return np.pad(scores, ((0, 0), (0, padding)))[:, :2], np.pad(shares, (0, padding))[:2]
