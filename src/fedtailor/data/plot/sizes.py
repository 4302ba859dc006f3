"""Pictures of the sizes of local training sets: a histogram over many seeds, or one bar per
client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import altair as alt
import numpy as np

from fedtailor.data.plot.style import HUE, INK, Picture, clean, finish, inline, labels

MAX_BARS = 50
"""Most clients for which :func:`size_bars` is readable."""

_MOST_BINS = 80
_BAR = 20  # pixels from one bar to the next
_WIDTH = 520
_HEIGHT = 90


def sizes(samples: Mapping[str, np.ndarray], *, title: str = "Local training-set sizes") -> Picture:
    """Draw one histogram per partition, one below the other over the same sizes (pFedVEM, 2023,
    Figures 3-6).

    The widths of bins are whole numbers and the same for all; a height is the share of all clients
    of all seeds.

    Args:
        samples: sizes by the name of the partition, in arrays of any shape, such as (seeds,
            clients).
        title: title above the picture.

    Example:
        >>> len(sizes({"iid": np.full((2, 3), 10), "other": np.array([[5, 9, 16]])}).to_dict()["vconcat"])
        2
    """
    every = np.concatenate([np.ravel(each) for each in samples.values()])
    edges = bins(int(every.min()), int(every.max()))
    last = list(samples)[-1]
    panels = [
        _panel(name, np.ravel(each), edges, last=name == last) for name, each in samples.items()
    ]
    return finish(alt.vconcat(*panels, spacing=24), title=title, width=_WIDTH)


def size_bars(
    counts: Sequence[int], names: Sequence[str] = (), *, title: str = "Local training-set sizes"
) -> Picture:
    """Draw one bar per client, with its number of training examples.

    Args:
        counts: number of training examples of each client.
        names: one per client; empty: numbers from 0.
        title: title above the picture.

    Example:
        >>> size_bars([5, 9], ["north", "south"]).to_dict()["layer"][0]["mark"]["type"]
        'bar'
    """
    shown = labels(list(names) or [str(number) for number in range(len(counts))])
    rows = [
        {"client": name, "count": int(count)} for name, count in zip(shown, counts, strict=True)
    ]
    across = alt.Axis(tickCount=5, ticks=False, labelPadding=6, format=",d", tickMinStep=1)
    scale = alt.Scale(domain=[0, max(*counts, 1)], nice=True)
    # the order of the names is a domain: a sort by names would put them into an expression
    y = alt.Y(
        "client:N",
        title=None,
        scale=alt.Scale(domain=shown),
        axis=alt.Axis(ticks=False, domain=False),
    )
    base = alt.Chart(inline(rows), width=_WIDTH, height=_BAR * len(rows))
    bars = base.mark_bar(color=HUE, height=_BAR - 6).encode(
        x=alt.X("count:Q", title="Training examples", axis=across, scale=scale), y=y
    )
    numbers = base.mark_text(align="left", dx=4, color=INK).encode(
        x="count:Q", y=y, text=alt.Text("count:Q", format=",d")
    )

    return finish(alt.LayerChart(layer=[bars, numbers]), title=title, width=_WIDTH)


def bins(smallest: int, largest: int) -> np.ndarray:
    """Return edges of at most ``_MOST_BINS`` bins, whose width is 1, 2 or 5 times a power of ten.

    They begin at 0, or just below ``smallest`` if that is far from 0.
    """
    first = 0 if smallest < largest / 2 else smallest
    width = next(each for each in _round_widths() if (largest - first) / each < _MOST_BINS - 2)
    start = first // width * width
    if first:
        start -= width
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
        {
            "from": low,
            "to": high,
            "share": count / len(values),
            "Examples": f"{low:,} to {high - 1:,}",
        }
        for low, high, count in zip(
            edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True
        )
        if count
    ]
    title = "Training examples of a client" if last else None
    across = alt.Axis(
        title=title, labels=last, ticks=False, tickCount=10, labelPadding=6, labelFlush=False
    )
    up = alt.Axis(format="%", tickCount=4, ticks=False, labelPadding=6, minExtent=40)
    panel: alt.Chart = (
        alt.Chart(inline(rows), width=_WIDTH, height=_HEIGHT)
        .mark_rect(color=HUE, stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X(
                "from:Q",
                axis=across,
                scale=alt.Scale(domain=[int(edges[0]), int(edges[-1])], nice=False),
            ),
            x2="to:Q",
            y=alt.Y("share:Q", title="Share of clients", axis=up),
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("Examples:N"),
                alt.Tooltip("share:Q", title="Share of clients", format=".2%"),
            ],
        )
        .properties(
            title=alt.TitleParams(
                clean(name),
                subtitle=_summary(values),
                fontSize=12,
                color=INK,
                offset=6,
                frame="group",
            )
        )
    )

    return panel


def _summary(values: np.ndarray) -> str:
    """Return the median and the middle 90 % in words."""
    low, median, high = np.percentile(values, [5, 50, 95])
    if values.min() == values.max():
        return f"{low:,.0f} for every client"
    return f"median {median:,.0f}, 90 % of clients from {low:,.0f} to {high:,.0f}"
