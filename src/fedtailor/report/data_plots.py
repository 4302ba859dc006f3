"""Pictures of data, for reports and papers: partitions, local sizes, corruptions. No torch."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import altair as alt
import numpy as np

from fedtailor.report.charts import INK, MAIN, Chart, inline, labels, tooltip
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable, visible

if TYPE_CHECKING:
    from fedtailor.data.dataset import Dataset

MOST_BUBBLES = 100
"""Clients and classes of a partition; of more, the first ones are drawn."""
MOST_SIZE_BARS = 50
"""Most clients for which :func:`size_bars` is readable."""

_BUBBLE_ROW = 24
_NARROWEST_BUBBLE = 11
"""Pixels from one bubble to the next, down and at least across."""
_LARGEST_BUBBLE = 0.55
"""Radius of the largest bubble, as a share of the pixels to the next one."""
_MOST_BINS = 80
_IMAGE = 64
"""Least height of an image on a sheet, in pixels; smaller ones are enlarged by a whole factor."""
_GAP = 4


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
    remark: str = "",
) -> Figure:
    """Draw one bubble per client (across) and class (down), whose area is the number of examples.

    Args:
        class_counts: number of examples (clients, classes).
        client_names: one per client; empty: numbers from 0.
        class_names: one per class; empty: numbers from 0.
        title: title of the figure.
        remark: further sentences of its caption.

    Example:
        >>> bubbles(np.array([[5, 0], [1, 4]]), class_names=["cat", "dog"]).table.rows
        [['0', 5, 5, 0], ['1', 5, 1, 4]]
    """
    num_clients, num_classes = class_counts.shape
    clients = list(client_names) or [str(number) for number in range(num_clients)]
    classes = list(class_names) or [str(number) for number in range(num_classes)]
    caption = f"The area of a bubble is the number of examples of a client and class.{remark}"
    if max(num_clients, num_classes) > MOST_BUBBLES:
        caption += f" Only the first {MOST_BUBBLES} clients and classes are drawn."

    rows: list[list[Cell]] = [
        [client, sum(counts), *counts]
        for client, counts in zip(clients, class_counts.tolist(), strict=True)
    ]
    drawn = class_counts[:MOST_BUBBLES, :MOST_BUBBLES]
    panel = Panel(
        chart=_bubble_chart(drawn, clients[:MOST_BUBBLES], classes[:MOST_BUBBLES]),
        min_width=_NARROWEST_BUBBLE * len(drawn),
    )

    return Figure(
        name="partition",
        title=title,
        caption=caption,
        panels=[panel],
        table=ReportTable(columns=["client", "all", *classes], rows=rows),
    )


def _bubble_chart(counts: np.ndarray, clients: list[str], classes: list[str]) -> Chart:
    """Draw the bubbles of a table (clients, classes)."""
    client_labels = labels(clients)
    class_labels = labels(classes)
    rows = [
        {
            "client": client_labels[client],
            "class": class_labels[label],
            "client name": visible(clients[client]),
            "class name": visible(classes[label]),
            "examples": int(counts[client, label]),
        }
        for client, label in np.argwhere(counts).tolist()
    ]

    # Bubbles are as large as the room for them, which only the reader's screen knows.
    step = f"min({_BUBBLE_ROW}, width / {len(clients)})"
    largest = alt.ExprRef(f"{math.pi} * pow({_LARGEST_BUBBLE} * {step}, 2)")
    most = max(int(counts.max(initial=0)), 1)
    size = alt.Size(
        "examples:Q",
        scale=alt.Scale(domain=[0, most], range=[0, largest]),
        legend=alt.Legend(title="examples", format=",d", values=_round_numbers(most), columns=4),
    )
    tips = [
        tooltip("client name", "client"),
        tooltip("class name", "class"),
        tooltip("examples", "examples", ",d"),
    ]
    across = alt.X("client:N", title="client", axis=_name_axis(clients), scale=_in_order(clients))
    down = alt.Y("class:N", title="class", axis=_name_axis(classes), scale=_in_order(classes))
    chart = alt.Chart(inline(rows), height=_BUBBLE_ROW * len(classes))

    # The thin line keeps a single example visible beside a thousand.
    marks = chart.mark_circle(color=MAIN, opacity=0.7, stroke=MAIN, strokeWidth=0.8)
    bubbles: Chart = marks.encode(x=across, y=down, size=size, tooltip=tips)

    return bubbles


def _in_order(names: Sequence[str]) -> alt.Scale:
    """Return a scale of names in their order. They are data: a sort would need an expression."""
    return alt.Scale(type="point", domain=labels(names), padding=0.5)


def _name_axis(names: Sequence[str]) -> alt.Axis:
    """Return an axis of names; where there are many numbers, of some of them."""
    are_numbers = all(name.isdecimal() for name in names)

    return alt.Axis(
        grid=True,
        domain=False,
        labelAngle=0 if are_numbers else -40,
        labelLimit=130,
        labelOverlap=are_numbers,
        labelSeparation=5,
        labelColor=INK,
    )


def _round_numbers(largest: int) -> list[int]:
    """Return at most four numbers for a legend: round ones, and the largest itself."""
    powers = range(len(str(largest)))
    numbers = [digit * 10**power for power in powers for digit in (1, 2, 5)]
    smaller = [number for number in numbers if number <= 0.85 * largest]

    return [*smaller[-3:], largest]


def sizes(samples: Mapping[str, np.ndarray], *, title: str = "Local training-set sizes") -> Figure:
    """Draw one histogram per partition over the same sizes (pFedVEM, 2023, Figures 3 to 6).

    The widths of bins are whole numbers and the same for all; a height is the share of all clients.

    Args:
        samples: sizes by the name of the partition, in arrays of any shape, such as (seeds,
            clients).
        title: title of the figure.
    """
    every = np.concatenate([np.ravel(sample) for sample in samples.values()])
    edges = bins(int(every.min()), int(every.max()))
    panels = []
    rows: list[list[Cell]] = []
    for name, sample in samples.items():
        values = np.ravel(sample)
        heights, _ = np.histogram(values, edges)
        bars = [
            {
                "from": low,
                "to": high,
                "sizes": f"{low:,} to {high - 1:,}",
                "share": height / len(values),
            }
            for low, high, height in zip(
                edges[:-1].tolist(), edges[1:].tolist(), heights.tolist(), strict=True
            )
            if height
        ]
        rows += [[name, bar["from"], bar["to"] - 1, bar["share"]] for bar in bars]
        panels.append(Panel(chart=_histogram(bars, edges), title=name, subtitle=_summary(values)))

    return Figure(
        name="sizes",
        title=title,
        caption="The share of clients by the number of their training examples.",
        panels=panels,
        table=ReportTable(columns=["partition", "from", "to", "share of clients"], rows=rows),
    )


def _histogram(bars: Sequence[Mapping[str, object]], edges: np.ndarray) -> Chart:
    scale = alt.Scale(domain=[int(edges[0]), int(edges[-1])], nice=False)
    axis = alt.Axis(tickCount=6, labelFlush=False, labelOverlap=True)
    x = alt.X("from:Q", title="training examples of a client", axis=axis, scale=scale)
    y = alt.Y("share:Q", title="share of clients", axis=alt.Axis(format="%", tickCount=4))
    tips = [tooltip("sizes", "examples"), tooltip("share", "share of clients", ".2%")]
    marks = alt.Chart(inline(bars), height=130).mark_rect(color=MAIN, opacity=0.75)

    histogram: Chart = marks.encode(x=x, x2="to:Q", y=y, y2=alt.datum(0), tooltip=tips)

    return histogram


def _summary(values: np.ndarray) -> str:
    """Return the median and the middle 90 % in words."""
    low, median, high = np.percentile(values, [5, 50, 95])
    if values.min() == values.max():
        return f"{low:,.0f} for every client"

    return f"median {median:,.0f}, 90 % of clients from {low:,.0f} to {high:,.0f}"


def bins(smallest: int, largest: int) -> np.ndarray:
    """Return edges of at most 80 bins, whose width is 1, 2 or 5 times a power of ten.

    They begin at 0, or just below ``smallest`` if that is far from 0.
    """
    first = 0 if smallest < largest / 2 else smallest
    width = next(one for one in _round_widths() if (largest - first) / one < _MOST_BINS - 2)
    start = first // width * width
    if first:
        start -= width

    return np.arange(start, largest + 2 * width, width)


def _round_widths() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def size_bars(
    counts: Sequence[int], names: Sequence[str] = (), *, title: str = "Local training-set sizes"
) -> Figure:
    """Draw one bar per client, with its number of training examples.

    Args:
        counts: number of training examples of each client.
        names: one per client; empty: numbers from 0.
        title: title of the figure.
    """
    clients = list(names) or [str(number) for number in range(len(counts))]
    shown = labels(clients)
    rows = [
        {"client": label, "name": visible(name), "count": int(count)}
        for label, name, count in zip(shown, clients, counts, strict=True)
    ]
    axis = alt.Axis(title=None, labelLimit=160, labelColor=INK)
    x = alt.X("count:Q", title="training examples", axis=alt.Axis(format=",d", tickCount=5))
    y = alt.Y("client:N", axis=axis, scale=alt.Scale(domain=shown, paddingInner=0.3))
    tips = [tooltip("name", "client"), tooltip("count", "training examples", ",d")]

    base = alt.Chart(inline(rows), height=22 * len(rows)).encode(x=x, y=y)
    bars = base.mark_bar(color=MAIN, opacity=0.75).encode(tooltip=tips)
    numbers = base.mark_text(align="left", dx=4, color=INK, fontSize=12)
    text = numbers.encode(text=alt.Text("count:Q", format=",d"))
    chart = alt.LayerChart(layer=[bars, text])
    table = ReportTable(
        columns=["client", "training examples"], rows=[*zip(clients, map(int, counts), strict=True)]
    )

    return Figure(
        name="sizes",
        title=title,
        caption="The number of training examples of every client.",
        panels=[Panel(chart=chart)],
        table=table,
    )


def contact_sheet(
    images: np.ndarray,
    *,
    row_names: Sequence[str],
    column_names: Sequence[str],
    title: str = "Sample images",
    caption: str = "",
) -> Figure:
    """Draw images in rows and columns, each pixel as a square.

    Args:
        images: uint8 (rows, columns, height, width, channels), one channel (gray) or three.
        row_names: one per row, on the left.
        column_names: one per column, at the top; several may have the same name.
        title: title of the figure.
        caption: what it shows.
    """
    rows, columns, height, width = images.shape[:4]
    factor = math.ceil(_IMAGE / height)
    across = factor * width + _GAP
    down = factor * height + _GAP
    pictures = [
        {
            "x": (column + 0.5) * across,
            "y": (row + 0.5) * down,
            "url": _data_url(images[row, column], factor),
            "row": visible(row_names[row]),
            "column": visible(column_names[column]),
        }
        for row in range(rows)
        for column in range(columns)
    ]
    names = [
        {"x": -8, "y": (row + 0.5) * down, "name": name}
        for row, name in enumerate(labels(row_names))
    ]
    tops = []
    for column, name in enumerate(column_names):
        (label,) = labels([name])
        tops.append({"x": (column + 0.5) * across, "y": -8, "name": label})

    # Places are pixels.
    x = alt.X("x:Q", scale=None, axis=None)
    y = alt.Y("y:Q", scale=None, axis=None)
    tips = [tooltip("row", "row"), tooltip("column", "column")]
    image = alt.Chart(inline(pictures)).mark_image(width=across - _GAP, height=down - _GAP)
    left = alt.Chart(inline(names)).mark_text(align="right", baseline="middle", color=INK)
    above = alt.Chart(inline(tops)).mark_text(baseline="bottom", color=INK)
    layers = [
        image.encode(x=x, y=y, url="url:N", tooltip=tips),
        left.encode(x=x, y=y, text="name:N"),
        above.encode(x=x, y=y, text="name:N"),
    ]
    chart = alt.LayerChart(layer=layers, width=across * columns, height=down * rows)

    return Figure(name="images", title=title, caption=caption, panels=[Panel(chart=chart)])


def corruption_sheet(dataset: Dataset, *, seed: int, frost_folder: Path) -> Figure:
    """Draw two images of different classes under every corruption (down) and severity (across).

    Args:
        dataset: images that a run could corrupt.
        seed: seed for the choice of the two images, and of the corruptions.
        frost_folder: folder of photographs for the corruption "frost"; if there are none, the
            caption says so.

    Raises:
        DataError: the examples are not such images, or some of the photographs are missing or
            damaged.
    """
    from fedtailor.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
    from fedtailor.data.corruptions.pictures import load_frost
    from fedtailor.data.corruptions.shift import check_images

    check_images(dataset)
    rows = _two_rows(dataset.y, seed)
    originals = dataset.x[rows]
    frost = load_frost(frost_folder, {})
    sheet = []
    for kind in CORRUPTIONS:
        corrupted = [
            corrupt(originals, kind, severity, rows=rows, seed=seed, frost=frost)
            for severity in SEVERITIES
        ]
        sheet.append([originals, *corrupted])

    # (kinds, 2, 1 + severities, height, width, channels)
    by_image = np.array(sheet).swapaxes(1, 2)
    caption = "Two images under every corruption, with severities 1 to 5."
    if not frost:
        caption += " Frost is approximate: drawn, not photographs."

    return contact_sheet(
        by_image.reshape(len(sheet), -1, *originals.shape[1:]),
        row_names=[kind.replace("_", " ") for kind in CORRUPTIONS],
        column_names=["original", *map(str, SEVERITIES)] * len(rows),
        title=f"Corruptions of {dataset.name}, severity 1 to 5",
        caption=caption,
    )


def _two_rows(y: np.ndarray, seed: int) -> np.ndarray:
    """Return the rows of two examples, of different classes if there are any."""
    order = np.random.default_rng(seed).permutation(len(y))
    others = order[y[order] != y[order[0]]]

    return np.array([order[0], others[0] if len(others) else order[-1]])


def _data_url(image: np.ndarray, factor: int) -> str:
    """Return a PNG as a URL. The image is enlarged here, since viewers would smooth it."""
    from PIL import Image

    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    if large.shape[-1] == 1:
        large = large[..., 0]

    stream = io.BytesIO()
    Image.fromarray(large).save(stream, "PNG", optimize=True)

    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
