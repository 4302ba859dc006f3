"""How many examples of which class every client has, as papers on federated learning draw it."""

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
"""The first so many are drawn: more cannot be told apart on a page. The subtitle then says so."""

_LEGEND = 4
_MOST_RADIUS = 16


def count_classes(parts: Sequence[np.ndarray], y: np.ndarray, num_classes: int) -> np.ndarray:
    """Return how many examples of each class (clients, classes) are at the positions of each client.

    Args:
        parts: per client, positions (n,) in ``y``.
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
    """Draw a bubble per client (across) and class (up) whose area is the number of examples.

    Of more than ``MAX_CLIENTS`` clients or ``MAX_CLASSES`` classes the first are drawn, and the subtitle says so.

    Args:
        class_counts: examples (clients, classes), whole numbers.
        client_names: one per client; empty: numbers from 0.
        class_names: one per class; empty: numbers from 0.
        title: above the picture.

    Example:
        >>> bubbles(np.array([[5, 0], [1, 4]]), class_names=["cat", "dog"]).to_dict()["mark"]["type"]
        'circle'
    """
    num_clients, num_classes = class_counts.shape
    counts = class_counts[:MAX_CLIENTS, :MAX_CLASSES]
    clients = list(client_names or map(str, range(num_clients)))[:MAX_CLIENTS]
    classes = list(class_names or map(str, range(num_classes)))[:MAX_CLASSES]
    step_x, step_y = _step(len(clients), 28), _step(len(classes), 22)
    largest = max(int(counts.max(initial=0)), 1)
    size = alt.Size(
        "count:Q",
        scale=alt.Scale(domain=[0, largest], range=[0, math.pi * _radius(counts, step_x, step_y) ** 2]),
        legend=alt.Legend(
            title="Examples", format=",d", values=_round_numbers(largest), symbolFillColor=HUE, symbolStrokeColor=HUE
        ),
    )
    chart = (
        alt.Chart(inline(_rows(counts, clients, classes)), width=step_x * len(clients), height=step_y * len(classes))
        # the thin line keeps a single example visible beside a thousand
        .mark_circle(color=HUE, stroke=HUE, strokeWidth=0.8, opacity=1)
        .encode(
            x=alt.X("client:N", scale=_scale(clients), axis=_axis("Client", clients, step_x, upright=True)),
            y=alt.Y("class:N", scale=_scale(classes, reverse=_numbered(classes)), axis=_axis("Class", classes, step_y)),
            size=size,
            tooltip=[alt.Tooltip(f"{name}:N", title=name) for name in ("Client", "Class", "Examples")],
        )
    )
    return finish(chart, title=title, subtitle=_left_out(num_clients, num_classes))


def _rows(counts: np.ndarray, clients: list[str], classes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a row per bubble; no bubble stands for no example."""
    client_labels, class_labels = labels(clients), labels(classes)
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
    """Return pixels from one bubble to the next."""
    return max(10, min(largest, 800 // max(number, 1)))


def _scale(names: list[str], *, reverse: bool = False) -> alt.Scale:
    """Return places in the order of ``names``, as data: sorting by names would put them into an expression."""
    return alt.Scale(type="point", domain=labels(names), padding=0.5, reverse=reverse)


def _axis(title: str, names: list[str], step: int, *, upright: bool = False) -> alt.Axis:
    """Return an axis with every name, or with round numbers only where the names are numbers in order."""
    shown = labels(names)
    numbered = _numbered(names)
    every = next(each for each in (1, 2, 5, 10, 20) if each * step >= (22 if upright else 14) or each == 20)
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
    """Return whether the names are the numbers from 0; classes then go up, as in papers, and names go down."""
    return names == [str(number) for number in range(len(names))]


def _radius(counts: np.ndarray, step_x: int, step_y: int) -> float:
    """Return the largest radius of the largest bubble with which no two bubbles touch, in pixels."""
    sizes = np.sqrt(counts / max(counts.max(initial=0), 1))
    radius = float(min(_MOST_RADIUS, step_x, step_y))
    for across, up, each in ((1, 0, sizes), (0, 1, sizes), (1, 1, sizes), (1, 1, sizes[:, ::-1])):
        # only neighbors can touch, because no radius is more than one step
        sums = each[across:, up:] + each[: len(each) - across, : each.shape[1] - up]
        distance = math.hypot(across * step_x, up * step_y)
        radius = min(radius, distance / max(float(sums.max(initial=0)), 1e-9))
    return radius


def _round_numbers(largest: int) -> list[int]:
    """Return at most four round numbers up to ``largest``, for the legend."""
    powers = range(len(str(largest)))
    numbers = [digit * 10**power for power, digit in itertools.product(powers, (1, 2, 5))]
    return [number for number in numbers if number <= largest][-_LEGEND:]


def _left_out(num_clients: int, num_classes: int) -> str:
    """Say what is not drawn."""
    parts = ((num_clients, MAX_CLIENTS, "clients"), (num_classes, MAX_CLASSES, "classes"))
    said = [f"the first {most} of {number:,} {what}" for number, most, what in parts if number > most]
    return " and ".join(said).capitalize()
