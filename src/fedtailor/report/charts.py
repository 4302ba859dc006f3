"""The charts of reports and of data, in Altair: their look, common forms, and files. No torch.

Colors are CSS variables, so that one chart follows a page in light and in dark. In a file they are
those of ``LIGHT``. Names come from outside: they stand in data and domains, never in an expression.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import altair as alt
import vl_convert

from fedtailor.report.parts import Figure, Panel, visible

Chart: TypeAlias = alt.Chart | alt.LayerChart
Item = TypeVar("Item")
FORMATS = ("pdf", "svg", "png")
"""Files that a figure can be written as."""

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "quiet": "#59636e",
    "grid": "#e4e8ec",
    "s0": "#0b62a4",
    "s1": "#c2410c",
    "s2": "#15803d",
    "s3": "#8b3fa8",
    "s4": "#8a6d00",
    "s5": "#0e7490",
    "s6": "#b0226a",
    "s7": "#57534e",
}
"""Colors on white: text and marks have a contrast of 4.5 or more."""
DARK = {
    "paper": "#14181d",
    "ink": "#e6edf3",
    "quiet": "#a3adb8",
    "grid": "#2d343c",
    "s0": "#6cb6ff",
    "s1": "#ff9b62",
    "s2": "#5fd38a",
    "s3": "#d59bf0",
    "s4": "#e6c84f",
    "s5": "#58d0de",
    "s6": "#ff8abf",
    "s7": "#c0bab4",
}
"""The same on a dark background."""
INK = "var(--ink)"
MAIN = "var(--s0)"
CONTRAST = "var(--s1)"
PAPER = "var(--paper)"
QUIET = "var(--quiet)"

FEWEST_OF_A_LINE = 3
"""Points of a series; with fewer, all series are bars."""
MOST_BARS = 300
"""Bars of a panel; of more, some are left out, evenly along the sorted ones."""
MOST_DOTS = 1000
"""Dots of a panel; of more, the first ones are drawn."""

_SERIES = [f"var(--s{number})" for number in range(8)]
_DASHES = [
    dash for dash in ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2]) for _ in range(len(_SERIES))
]
"""After eight series the colors come again, with other dashes."""
_LONGEST_NAME = 28
_NAMED_BARS = 12
"""So few bars have their names below them."""
_FEW_POINTS = 12
"""Curves of so few points have a mark at each."""
_WIDE = 700
_HALF = 320
"""Pixels of a panel within its axes, alone and beside another one, where nothing else decides."""
_GAP = 40

_CONFIG = {
    "aria": False,  # the page says what a chart shows, and a table holds its numbers
    "background": "transparent",
    "font": "Helvetica, Arial, 'Liberation Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "gridColor": "var(--grid)",
        "labelColor": QUIET,
        "labelFontSize": 12,
        "labelPadding": 6,
        "titleColor": INK,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "axisX": {"grid": False, "domain": True, "domainColor": QUIET},
    "legend": {
        "columns": 2,
        "labelColor": INK,
        "labelFontSize": 12,
        "labelLimit": 170,
        "orient": "bottom",
        "symbolSize": 120,
        "symbolStrokeWidth": 2,
        "titleColor": QUIET,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "title": {
        "anchor": "start",
        "color": INK,
        "fontSize": 13,
        "frame": "group",
        "offset": 10,
        "subtitleColor": QUIET,
        "subtitleFontSize": 12,
    },
}


class CurvePoint(NamedTuple):
    """A point of a curve: a mean, and the smallest and largest of what it is the mean of."""

    round: int
    mean: float
    low: float
    high: float
    away: int = 0
    """Clients that gave no answer in this round, which the mean may be without."""


class Dot(NamedTuple):
    """A dot of a panel, with the name of what it is."""

    name: str
    x: float
    y: float


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return any number of rows as data of a chart."""
    return alt.InlineData(values=list(rows))


def labels(names: Iterable[str]) -> list[str]:
    """Return names as they are drawn: visible, at most 28 characters, and all different.

    >>> labels(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    counts: Counter[str] = Counter()
    short: dict[str, None] = {}  # in order
    for name in names:
        text = visible(name)
        if len(text) > _LONGEST_NAME:
            text = f"{text[: _LONGEST_NAME - 1]}…"

        # Shortened names may be equal, and equal names would be one mark of a chart.
        unique = text
        while unique in short:
            counts[text] += 1
            unique = f"{text} ({counts[text] + 1})"

        short[unique] = None

    return list(short)


def tooltip(field: str, title: str, number_format: str = "") -> alt.Tooltip:
    """Return a line of a tooltip; without a format of numbers, it is a text."""
    if not number_format:
        return alt.Tooltip(field=field, type="nominal", title=title)

    return alt.Tooltip(field=field, type="quantitative", title=title, format=number_format)


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most ``most`` items, evenly, the last one among them.

    >>> evenly([1, 2, 3, 4, 5, 6], most=3)
    [2, 4, 6]
    """
    step = math.ceil(len(items) / most) or 1

    return list(reversed(items[::-1][::step]))


def sorted_bars(
    values: Sequence[tuple[str, float]],
    quantity: str,
    *,
    number_format: str = ".1f",
    domain: tuple[float, float] | None = None,
    by_sign: bool = False,
    has_mean_line: bool = False,
) -> Chart:
    """Draw a bar per client, the largest first.

    Args:
        values: names and values.
        quantity: title of the vertical axis.
        number_format: of values in tooltips, as in d3.
        domain: ends of the vertical axis; None: from the values.
        by_sign: whether negative bars have another color.
        has_mean_line: whether a dashed line is drawn at the mean.
    """
    ordered = evenly(sorted(values, key=lambda pair: -pair[1]), MOST_BARS)
    drawn = labels(name for name, _ in ordered)
    rows = [
        {
            "rank": rank,
            "label": label,
            "name": visible(name),
            "value": value,
            "sign": "negative" if by_sign and value < 0 else "positive",
        }
        for rank, ((name, value), label) in enumerate(zip(ordered, drawn, strict=True))
    ]
    tips = [tooltip("name", "client"), tooltip("value", quantity, number_format)]

    # Many bars have ranks instead of names, which would not be readable.
    axis = alt.Axis(domain=not by_sign, labels=False, title=f"{len(values)} clients, sorted")
    x = alt.X("rank:O", axis=axis, scale=alt.Scale(paddingInner=0.15, paddingOuter=0))
    if len(ordered) <= _NAMED_BARS:
        axis = alt.Axis(
            title=None, domain=not by_sign, labelAngle=-40, labelLimit=90, labelOverlap=False
        )
        x = alt.X("label:O", axis=axis, scale=alt.Scale(domain=drawn, paddingInner=0.3))

    scale = alt.Scale(domain=list(domain), nice=5) if domain else alt.Scale(zero=True, nice=5)
    y = alt.Y("value:Q", title=quantity, scale=scale, axis=alt.Axis(tickCount=5))
    color = alt.Color(
        "sign:N",
        legend=None,
        scale=alt.Scale(domain=["positive", "negative"], range=[MAIN, CONTRAST]),
    )

    base = alt.Chart(inline(rows), height=150)
    # The bars, then what is drawn over them.
    layers = [base.mark_bar(opacity=0.75).encode(x=x, y=y, color=color, tooltip=tips)]
    if by_sign:
        layers.append(base.mark_rule(color=INK).encode(y=alt.datum(0)))

    if has_mean_line:
        mean = math.fsum(value for _, value in values) / len(values)
        layers.append(base.mark_rule(color=INK, strokeDash=[4, 3]).encode(y=alt.datum(mean)))

    return alt.LayerChart(layer=layers)


def curves(
    points: Mapping[str, Sequence[CurvePoint]],
    names: Sequence[str],
    quantity: str,
    *,
    include: float | None = None,
    has_tooltips: bool = True,
) -> Chart:
    """Draw a line per series with a band around it; bars where no series has three points.

    Args:
        points: by series, in the order of rounds.
        names: all series of the figure, so that a series has its color in every panel.
        quantity: title of the vertical axis.
        include: a value that the axis holds in any case.
        has_tooltips: whether every point has a mark that carries its tooltip, seen or not.
    """
    if max(map(len, points.values()), default=0) < FEWEST_OF_A_LINE:
        last = {name: series[-1] for name, series in points.items() if series}
        return _bars(last, quantity)

    domain = labels(names)
    drawn = dict(zip(names, domain, strict=True))
    rows = [{"series": drawn[name], **point._asdict()} for name in points for point in points[name]]
    legend = None
    if len(domain) > 1:
        legend = alt.Legend(title=None, symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3)

    scale = alt.Scale(domain=domain, range=_SERIES)
    color = alt.Color("series:N", legend=legend, scale=scale)
    scale = alt.Scale(domain=domain, range=_DASHES)
    dash = alt.StrokeDash("series:N", legend=legend, scale=scale)
    base = alt.Chart(inline(rows), height=190).encode(
        x=alt.X(
            "round:Q", title="round", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=False)
        ),
        color=color,
    )
    scale = alt.Scale(zero=False, nice=5)
    axis = alt.Axis(tickCount=5)
    low = alt.Y("low:Q", title=quantity, scale=scale, axis=axis)
    mean = alt.Y("mean:Q", title=quantity, scale=scale, axis=axis)
    layers = [
        base.mark_area(opacity=0.16).encode(y=low, y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=mean, strokeDash=dash),
    ]

    # Marks carry the tooltips; where there are many of them they cannot be seen.
    few = max(map(len, points.values())) <= _FEW_POINTS
    marks = base.mark_circle(size=45, opacity=1 if few else 0)
    tips = [
        tooltip("series", "method"),
        tooltip("round", "round", "d"),
        tooltip("mean", quantity, ".4~g"),
    ]
    if few or has_tooltips:
        layers.append(marks.encode(y=mean, tooltip=tips))

    # A ring around a mean that is not over all clients.
    incomplete = [row for row in rows if row["away"]]
    if incomplete:
        rings = base.mark_point(size=130, strokeWidth=1.5, filled=False)
        tips = [*tips, tooltip("away", "clients without an answer", "d")]
        layers.append(rings.properties(data=inline(incomplete)).encode(y=mean, tooltip=tips))

    # A mark that nobody sees keeps a value within the axis, which need not begin at 0.
    if include is not None:
        hidden = alt.Chart(inline([{}])).mark_point(opacity=0)
        layers.append(hidden.encode(y=alt.datum(include)))

    return alt.LayerChart(layer=layers)


def _bars(values: Mapping[str, CurvePoint], quantity: str) -> Chart:
    """Draw a bar to the right for every method, with its number, and a line for its spread."""
    drawn = labels(values)
    rows = [
        {"label": label, "name": visible(name), **point._asdict()}
        for label, (name, point) in zip(drawn, values.items(), strict=True)
    ]

    # Bars begin at 0, and the longest one leaves room for its number.
    ends = [0.0, *(end for point in values.values() for end in (point.low, point.high))]
    scale = alt.Scale(domain=[1.15 * min(ends), 1.15 * max(ends) or 1.0])
    axis = alt.Axis(title=None, labelLimit=150, labelColor=INK)
    base = alt.Chart(inline(rows), height=24 * len(rows)).encode(
        x=alt.X("mean:Q", title=quantity, scale=scale, axis=alt.Axis(tickCount=5)),
        y=alt.Y("label:N", axis=axis, scale=alt.Scale(domain=drawn, paddingInner=0.3)),
    )
    tips = [tooltip("name", "method"), tooltip("mean", quantity, ".3g")]
    bars = base.mark_bar(color=MAIN, opacity=0.75).encode(tooltip=tips)
    spread = base.mark_rule(color=INK).encode(x="low:Q", x2="high:Q")
    numbers = base.mark_text(align="left", dx=6, color=INK, fontSize=12).encode(
        x=alt.X("high:Q", title=quantity), text=alt.Text("mean:Q", format=".3g")
    )

    return alt.LayerChart(layer=[bars, spread, numbers])


def dots(
    points: Sequence[Dot],
    x: alt.X,
    y: alt.Y,
    *,
    line: Sequence[tuple[float, float]] = (),
    number_format: str = ".1f",
) -> Chart:
    """Draw a dot per client, and a line through other points.

    Args:
        points: the dots; of many, the first ones are drawn.
        x: titles, scale and axis of the field ``x``.
        y: the same of ``y``.
        line: points that a line joins.
        number_format: of ``y`` in tooltips.
    """
    rows = [
        {"name": visible(point.name), "x": point.x, "y": point.y} for point in points[:MOST_DOTS]
    ]
    tips = [
        tooltip("name", "client"),
        tooltip("x", str(x["title"]), ",.4~f"),
        tooltip("y", str(y["title"]), number_format),
    ]
    marks = alt.Chart(inline(rows), height=190).mark_circle(color=MAIN, opacity=0.6, size=50)
    layers = [marks.encode(x=x, y=y, tooltip=tips)]

    if line:
        line_points = inline({"x": across, "y": up} for across, up in line)
        layers.append(alt.Chart(line_points).mark_line(color=CONTRAST).encode(x=x, y=y))

    return alt.LayerChart(layer=layers)


def size_axis() -> alt.X:
    """Return a horizontal axis for numbers of examples, which differ by factors."""
    return alt.X(
        "x:Q",
        title="training examples of the client",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(tickCount=5, format="~s", labelOverlap=True),
    )


def page_specification(panel: Panel) -> str:
    """Return a panel as JSON for a page, as wide as its place; no name can end a script."""
    specification = _specification(_as_wide_as(panel, "container"))

    return json.dumps(specification).replace("<", "\\u003c")


def page_svg(panel: Panel, *, is_alone: bool) -> str:
    """Return a panel as SVG in the colors of the page, for readers without scripts."""
    chart = _as_wide_as(panel, _WIDE if is_alone else _HALF)

    svg = vl_convert.vegalite_to_svg(_specification(chart), allowed_base_urls=[])

    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)  # its place has a label


@cache
def page_library() -> str:
    """Return the script that draws specifications in a page: Vega, Vega-Lite and vega-embed."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def picture(figure: Figure, ending: str) -> bytes:
    """Return a figure as a file in light colors.

    Args:
        figure: any figure; its panels stand two in a row.
        ending: one of ``FORMATS``. PNG has two pixels per point.
    """
    whole: alt.TopLevelMixin
    if len(figure.panels) == 1:
        (panel,) = figure.panels
        below = ": ".join(text for text in (panel.title, panel.subtitle) if text)
        whole = _as_wide_as(panel, _WIDE).properties(title=_title(figure.title, below, _WIDE))
    else:
        charts = []
        for panel in figure.panels:
            title = _title(panel.title, panel.subtitle, _HALF)
            charts.append(_as_wide_as(panel, _HALF).properties(title=title))

        title = _title(figure.title, "", _WIDE)
        whole = alt.concat(*charts, columns=2, spacing=_GAP).properties(title=title)

    # Outside of a page there are no CSS variables: their light colors stand in their place.
    text = json.dumps(_specification(whole) | {"background": PAPER, "padding": 12})
    colored = re.sub(r"var\(--(\w+)\)", lambda match: LIGHT.get(match[1], match[0]), text)
    match ending:
        case "pdf":
            return vl_convert.vegalite_to_pdf(colored, allowed_base_urls=[])
        case "svg":
            return vl_convert.vegalite_to_svg(colored, allowed_base_urls=[]).encode()
        case _:
            return vl_convert.vegalite_to_png(colored, scale=2, allowed_base_urls=[])


def _as_wide_as(panel: Panel, width: int | str) -> Chart:
    """Return the chart of a panel in a given width."""
    width = max(width, panel.min_width) if isinstance(width, int) else width
    chart: Chart = panel.chart.properties(width=width)

    return chart


def _title(title: str, subtitle: str, width: int) -> alt.TitleParams:
    """Return a title in as many lines as it needs."""
    lines = textwrap.wrap(visible(title), width // 7) or [""]
    below = textwrap.wrap(visible(subtitle), width // 6)

    return alt.TitleParams(lines, subtitle=below) if below else alt.TitleParams(lines)


def _specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the specification of a chart, with our look and without an address."""
    specification: dict[str, Any] = chart.to_dict() | {"config": _CONFIG}
    del specification["$schema"]

    return specification
