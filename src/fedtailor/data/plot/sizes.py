"""How large local training sets are under a partition, over many seeds (pFedVEM, 2023, Figures 3-6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import altair as alt
import numpy as np

from fedtailor.data.plot.style import HUE, INK, Picture, clean, finish, inline

_MOST_BINS = 80
_WIDTH = 520
_HEIGHT = 90


def sizes(samples: Mapping[str, np.ndarray], *, title: str = "Local training-set sizes") -> Picture:
    """Draw a histogram per partition, one below the other over the same sizes.

    Bins are whole numbers wide and the same for all; a height is the share of all clients of all seeds.

    Args:
        samples: per partition, by the name to be shown: sizes in an array of any shape, such as (seeds, clients).
        title: above the picture.

    Example:
        >>> len(sizes({"iid": np.full((2, 3), 10), "other": np.array([[5, 9, 16]])}).to_dict()["vconcat"])
        2
    """
    every = np.concatenate([np.ravel(each) for each in samples.values()])
    edges = bins(int(every.min()), int(every.max()))
    last = len(samples) - 1
    panels = [_panel(name, np.ravel(each), edges, last=row == last) for row, (name, each) in enumerate(samples.items())]
    return finish(alt.vconcat(*panels, spacing=24), title=title)


def bins(smallest: int, largest: int) -> np.ndarray:
    """Return edges of at most ``_MOST_BINS`` bins, 1, 2 or 5 times a power of ten wide.

    They begin at 0, or just below ``smallest`` where that is far from 0.
    """
    first = 0 if smallest < largest / 2 else smallest
    width = next(each for each in _round_widths() if (largest - first) / each < _MOST_BINS - 2)
    start = first // width * width - (width if first else 0)
    return np.arange(start, largest + 2 * width, width)


def _round_widths() -> Iterable[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _panel(name: str, values: np.ndarray, edges: np.ndarray, *, last: bool) -> alt.Chart:
    """Return the histogram of one partition."""
    counts, _ = np.histogram(values, edges)
    rows = [
        {"from": low, "to": high, "share": count / len(values), "Examples": f"{low:,} to {high - 1:,}"}
        for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
        if count
    ]
    title = "Training examples of a client" if last else None
    across = alt.Axis(title=title, labels=last, ticks=False, tickCount=10, labelPadding=6, labelFlush=False)
    up = alt.Axis(format="%", tickCount=4, ticks=False, labelPadding=6, minExtent=40)
    panel: alt.Chart = (
        alt.Chart(inline(rows), width=_WIDTH, height=_HEIGHT)
        .mark_rect(color=HUE, stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("from:Q", axis=across, scale=alt.Scale(domain=[int(edges[0]), int(edges[-1])], nice=False)),
            x2="to:Q",
            y=alt.Y("share:Q", title="Share of clients", axis=up),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("Examples:N"), alt.Tooltip("share:Q", title="Share of clients", format=".2%")],
        )
        .properties(
            title=alt.TitleParams(
                clean(name), subtitle=_summary(values), fontSize=12, color=INK, offset=6, frame="group"
            )
        )
    )
    return panel


def _summary(values: np.ndarray) -> str:
    """Return median and the middle nine tenths in words."""
    low, median, high = np.percentile(values, [5, 50, 95])
    if values.min() == values.max():
        return f"every client {low:,.0f}"
    return f"median {median:,.0f}, nine of ten clients from {low:,.0f} to {high:,.0f}"
