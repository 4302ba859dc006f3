"""The common style of all pictures: colors, fonts, title, and names that are safe to draw."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt

from fedtailor.data.own.names import safe_name

Picture: TypeAlias = alt.Chart | alt.LayerChart | alt.VConcatChart
"""The type of the pictures in this package."""

HUE = "#1f5a8c"
"""The color of all marks: a contrast of 7:1 against white, dark enough in gray print."""
INK = "#222222"
QUIET = "#666666"
GRID = "#e9ecef"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
LONGEST_NAME = 28
"""Most characters of a name that are drawn; tooltips show the whole name."""

_CHARACTER = 7.5  # average width of a character of the title, in pixels
_SHORTEST_LINE = 24


def finish(chart: Picture, *, title: str, subtitle: str = "", width: int = 0) -> Picture:
    """Return the chart with title, fonts and quiet axes; no global setting is changed.

    Args:
        chart: the picture.
        title: title above the picture.
        subtitle: line below the title; empty: none.
        width: width of the whole picture in pixels; a longer title gets several lines. 0: always
            one line.
    """
    text: str | list[str] = clean(title)
    if width:
        lines = textwrap.wrap(clean(title), max(_SHORTEST_LINE, int(width / _CHARACTER)))
        if len(lines) > 1:
            text = lines

    chart.title = alt.TitleParams(text, subtitle=subtitle) if subtitle else alt.TitleParams(text)
    shown: Picture = (
        chart.configure(font=FONT, background="white", padding=10)
        .configure_view(stroke=None)
        .configure_title(
            anchor="start",
            color=INK,
            fontSize=14,
            subtitleColor=QUIET,
            subtitleFontSize=11,
            offset=12,
            subtitlePadding=4,
        )
        .configure_axis(
            gridColor=GRID,
            domain=False,
            tickColor=GRID,
            labelColor=INK,
            titleColor=INK,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=8,
        )
        .configure_legend(
            labelColor=INK, titleColor=INK, titleFontSize=11, titleFontWeight="normal"
        )
    )

    return shown


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as data within the specification, which Altair's limit on rows does not
    affect.
    """
    return alt.InlineData(values=list(rows))


def clean(name: str) -> str:
    """Return a name whose control characters are visible escapes, without characters that no
    picture can hold.
    """
    return safe_name(name).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def labels(names: Sequence[str]) -> list[str]:
    """Return names as they are drawn along an axis: clean, at most ``LONGEST_NAME`` characters, all
    different.

    >>> labels(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    seen: Counter[str] = Counter()
    taken = set()
    shown = []
    for name in names:
        text = clean(name)
        if len(text) > LONGEST_NAME:
            text = text[: LONGEST_NAME - 1] + "…"

        unique = text
        while unique in taken:
            seen[text] += 1
            unique = f"{text} ({seen[text] + 1})"

        taken.add(unique)
        shown.append(unique)

    return shown
