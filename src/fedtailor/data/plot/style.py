"""What all pictures share: colors, fonts, title, and names made safe to draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt

from fedtailor.data.own.names import safe_name

Picture: TypeAlias = alt.Chart | alt.LayerChart | alt.VConcatChart
"""What the functions of this package return."""

HUE = "#1f5a8c"
"""The one color of marks: 7:1 against white, dark enough in gray print."""
INK = "#222222"
QUIET = "#666666"
GRID = "#e9ecef"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
LONGEST_NAME = 28
"""Characters of a name that are drawn; tooltips have all of it."""


def finish(chart: Picture, *, title: str, subtitle: str = "") -> Picture:
    """Return the chart with title, fonts and quiet axes; nothing global is changed."""
    chart.title = alt.TitleParams(clean(title), subtitle=subtitle) if subtitle else alt.TitleParams(clean(title))
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
        .configure_legend(labelColor=INK, titleColor=INK, titleFontSize=11, titleFontWeight="normal")
    )
    return shown


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as data within the specification; Altair's limit on rows is for tables only."""
    return alt.InlineData(values=list(rows))


def clean(name: str) -> str:
    """Return a name without characters that no picture can hold: control characters become visible escapes."""
    return safe_name(name).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def labels(names: Sequence[str]) -> list[str]:
    """Return names as they are drawn along an axis: clean, at most ``LONGEST_NAME`` characters, all different.

    >>> labels(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    seen: Counter[str] = Counter()
    taken = set()
    shown = []
    for name in names:
        text = clean(name)
        text = text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
        unique = text
        while unique in taken:
            seen[text] += 1
            unique = f"{text} ({seen[text] + 1})"
        taken.add(unique)
        shown.append(unique)
    return shown
