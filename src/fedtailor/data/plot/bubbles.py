"""The bubble plot of papers on federated learning: the number of examples of every client and
class.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np

from fedtailor.data.plot.style import HUE, Picture, clean, finish, inline, labels

MAX_CLIENTS = 100
MAX_CLASSES = 100
"""Only the first ones are drawn, since more cannot be told apart on a page; the subtitle then says
so."""

_LEGEND = 4
_MARGIN = 160  # pixels of the axis labels and the legend, beside the bubbles
_MOST_RADIUS = 16


def count_classes(parts: Sequence[np.ndarray], y: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the number of examples of each client and class, (clients, classes).

    Args:
        parts: positions (n,) in ``y`` of each client.
        y: labels (rows,).
        num_classes: number of classes.
    """
    return np.stack([np.bincount(y[part], minlength=num_classes) for part in parts])


def bubbles(
    class_counts: np.ndarray,
    *,
    client_names: Sequence[str] = (),
    class_names: Sequence[str] = (),
    title: str = "Examples per client and class",
) -> Picture:
    """Draw one bubble per client (across) and class (up), whose area is the number of examples.

    Only the first ``MAX_CLIENTS`` clients and ``MAX_CLASSES`` classes are drawn; the subtitle says
    if there are more.

    Args:
        class_counts: number of examples (clients, classes).
        client_names: one per client; empty: numbers from 0.
        class_names: one per class; empty: numbers from 0.
        title: title above the picture.

    Example:
        >>> bubbles(np.array([[5, 0], [1, 4]]), class_names=["cat", "dog"]).to_dict()["mark"]["type"]
        'circle'
    """
    num_clients, num_classes = class_counts.shape
    counts = class_counts[:MAX_CLIENTS, :MAX_CLASSES]
    clients = list(client_names or map(str, range(num_clients)))[:MAX_CLIENTS]
    classes = list(class_names or map(str, range(num_classes)))[:MAX_CLASSES]
    step_x = _step(len(clients), 28)
    step_y = _step(len(classes), 22)
    largest = max(int(counts.max(initial=0)), 1)
    size = alt.Size(
        "count:Q",
        scale=alt.Scale(
            domain=[0, largest], range=[0, math.pi * _radius(counts, step_x, step_y) ** 2]
        ),
        legend=alt.Legend(
            title="Examples",
            format=",d",
            values=_legend_values(largest),
            symbolFillColor=HUE,
            symbolStrokeColor=HUE,
        ),
    )
    width = step_x * len(clients)
    chart = (
        alt.Chart(
            inline(_rows(counts, clients, classes)), width=width, height=step_y * len(classes)
        )
        # the thin line keeps a single example visible beside a thousand
        .mark_circle(color=HUE, stroke=HUE, strokeWidth=0.8, opacity=1)
        .encode(
            x=alt.X(
                "client:N",
                scale=_scale(clients),
                axis=_axis("Client", clients, step_x, upright=True),
            ),
            y=alt.Y(
                "class:N",
                scale=_scale(classes, reverse=_numbered(classes)),
                axis=_axis("Class", classes, step_y),
            ),
            size=size,
            tooltip=[
                alt.Tooltip(f"{name}:N", title=name) for name in ("Client", "Class", "Examples")
            ],
        )
    )

    return finish(
        chart, title=title, subtitle=_left_out(num_clients, num_classes), width=width + _MARGIN
    )


def _rows(counts: np.ndarray, clients: list[str], classes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per bubble; there is no bubble without examples."""
    client_labels = labels(clients)
    class_labels = labels(classes)
    for client, label in np.argwhere(counts).tolist():
        count = int(counts[client, label])
        yield {
            "client": client_labels[client],
            "class": class_labels[label],
            "count": count,
            "Client": clean(clients[client]),
            "Class": clean(classes[label]),
            "Examples": f"{count:,}",
        }


def _step(number: int, largest: int) -> int:
    """Return the pixels from one bubble to the next."""
    return max(10, min(largest, 800 // max(number, 1)))


def _scale(names: list[str], *, reverse: bool = False) -> alt.Scale:
    """Return a scale in the order of ``names``. They are data: a sort by names would put them into
    an expression.
    """
    return alt.Scale(type="point", domain=labels(names), padding=0.5, reverse=reverse)


def _axis(title: str, names: list[str], step: int, *, upright: bool = False) -> alt.Axis:
    """Return an axis with every name, or only with round numbers if the names are consecutive
    numbers.
    """
    shown = labels(names)
    numbered = _numbered(names)
    spacing = 22 if upright else 14
    every = next((each for each in (1, 2, 5, 10) if each * step >= spacing), 20)
    wide = upright and not numbered and max(map(len, shown), default=0) * 7 > step

    return alt.Axis(
        title=title,
        values=shown[::every] if numbered else shown,
        grid=True,
        ticks=False,
        labelPadding=6,
        labelAngle=-90 if wide else 0,
        labelFontSize=11 if numbered else min(11, max(8, step - 2)),
        labelLimit=220,
        labelOverlap=False,
    )


def _numbered(names: list[str]) -> bool:
    """Return whether the names are the numbers from 0. Numbered classes go up, as in papers; others
    go down.
    """
    return names == [str(number) for number in range(len(names))]


def _radius(counts: np.ndarray, step_x: int, step_y: int) -> float:
    """Return the radius of the largest bubble, in pixels: as large as possible without bubbles that
    overlap.
    """
    sizes = np.sqrt(counts / max(counts.max(initial=0), 1))
    radius = float(min(_MOST_RADIUS, step_x, step_y))
    for across, up, each in ((1, 0, sizes), (0, 1, sizes), (1, 1, sizes), (1, 1, sizes[:, ::-1])):
        # only neighbors can touch, since no radius is more than one step
        sums = each[across:, up:] + each[: len(each) - across, : each.shape[1] - up]
        distance = math.hypot(across * step_x, up * step_y)
        radius = min(radius, distance / max(float(sums.max(initial=0)), 1e-9))
    return radius


def _legend_values(largest: int) -> list[int]:
    """Return at most four numbers for the legend: round ones, and ``largest`` itself."""
    powers = range(len(str(largest)))
    numbers = [digit * 10**power for power, digit in itertools.product(powers, (1, 2, 5))]
    smaller = [
        number for number in numbers if number <= 0.85 * largest
    ]  # closer ones look like the largest
    return [*smaller[1 - _LEGEND :], largest]


def _left_out(num_clients: int, num_classes: int) -> str:
    """Return a subtitle on clients and classes that are not drawn."""
    parts = []
    if num_clients > MAX_CLIENTS:
        parts.append(f"the first {MAX_CLIENTS} of {num_clients:,} clients")
    if num_classes > MAX_CLASSES:
        parts.append(f"the first {MAX_CLASSES} of {num_classes:,} classes")
    return " and ".join(parts).capitalize()
