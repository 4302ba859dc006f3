"""Sheets of sample images, in which each pixel is a square."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

import altair as alt
import numpy as np

from fedtailor.data.dataset import Dataset
from fedtailor.data.plot.style import INK, Picture, finish, inline, labels

_SIDE = 64
"""Least height of an image on the sheet, in pixels; smaller ones are enlarged by a whole factor."""
_GAP = 4


def contact_sheet(
    images: np.ndarray,
    *,
    row_names: Sequence[str],
    column_names: Sequence[str],
    title: str = "Sample images",
    subtitle: str = "",
) -> Picture:
    """Draw images in rows and columns.

    Args:
        images: uint8 (rows, columns, height, width, channels), one channel (gray) or three.
        row_names: one per row, on the left.
        column_names: one per column, at the top.
        title: title above the picture.
        subtitle: line below the title.

    Example:
        >>> sheet = contact_sheet(np.zeros((1, 2, 8, 8, 1), np.uint8), row_names=["clean"], column_names=["1", "2"])
        >>> [layer["mark"]["type"] for layer in sheet.to_dict()["layer"]]
        ['image', 'text', 'text']
    """
    rows, columns, height, width = images.shape[:4]
    factor = math.ceil(_SIDE / height)
    across = factor * width
    down = factor * height
    lefts = [column * (across + _GAP) for column in range(columns)]
    tops = [row * (down + _GAP) for row in range(rows)]
    pictures = [
        {
            "x": lefts[column] + across / 2,
            "y": tops[row] + down / 2,
            "url": _data_url(images[row, column], factor),
        }
        for row in range(rows)
        for column in range(columns)
    ]
    row_labels = [
        {"x": -8, "y": top + down / 2, "name": name} for top, name in zip(tops, labels(row_names))
    ]
    column_labels = []

    for left, name in zip(lefts, column_names):
        [shown] = labels([name])  # one at a time: several columns may have the same name
        column_labels.append({"x": left + across / 2, "y": -8, "name": shown})

    x = alt.X("x:Q", scale=None, axis=None)
    y = alt.Y("y:Q", scale=None, axis=None)
    layers = [
        alt.Chart(inline(pictures))
        .mark_image(width=across, height=down)
        .encode(x=x, y=y, url="url:N"),
        alt.Chart(inline(row_labels))
        .mark_text(align="right", baseline="middle", color=INK)
        .encode(x=x, y=y, text="name:N"),
        alt.Chart(inline(column_labels))
        .mark_text(baseline="bottom", color=INK)
        .encode(x=x, y=y, text="name:N"),
    ]
    chart = alt.LayerChart(layer=layers, width=lefts[-1] + across, height=tops[-1] + down)

    return finish(chart, title=title, subtitle=subtitle)


def corruption_sheet(dataset: Dataset, *, seed: int, frost_folder: Path) -> Picture:
    """Draw two images of different classes under every corruption (down) and severity (across).

    Args:
        dataset: images that a run could corrupt.
        seed: seed for the choice of the two images, and of the corruptions.
        frost_folder: folder of photographs for the corruption "frost"; if there are none, a
            subtitle says so.

    Raises:
        DataError: the examples are not such images, or some of the photographs are missing or
            damaged.
    """
    from fedtailor.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
    from fedtailor.data.corruptions.pictures import load_frost
    from fedtailor.data.corruptions.shift import check_images

    check_images(dataset)
    rows = _two_rows(dataset.y, seed)
    clean = dataset.x[rows]
    frost = load_frost(frost_folder, {})
    sheet = []

    for kind in CORRUPTIONS:
        corrupted = [
            corrupt(clean, kind, severity, rows=rows, seed=seed, frost=frost)
            for severity in SEVERITIES
        ]
        sheet.append([clean, *corrupted])

    by_image = np.array(sheet).swapaxes(1, 2)  # (kinds, 2, 1 + severities, height, width, channels)
    return contact_sheet(
        by_image.reshape(len(sheet), -1, *clean.shape[1:]),
        row_names=[kind.replace("_", " ") for kind in CORRUPTIONS],
        column_names=["original", *map(str, SEVERITIES)] * len(rows),
        title=f"Corruptions of {dataset.name}, severity 1 to 5",
        subtitle="" if frost else "frost is approximate: drawn, not photographs",
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
