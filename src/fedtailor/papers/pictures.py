"""Pictures of rows of numbers: strips, points and lines, in panels below each other. Needs the extra ``plot``."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import altair as alt

from fedtailor.data.plot.style import HUE, INK, Picture, clean, finish, inline

Row: TypeAlias = Mapping[str, Any]
"""A mark: ``value``, ``column`` and ``method`` of its record, and what else belongs to it."""
Kind = Literal["beta", "points", "strips", "lines"]

_WIDTH = 520
_HEIGHT = 180
_STRIP = 22  # pixels from one strip to the next
_SUBTITLE = 95  # characters in a line


def picture(kind: Kind, rows: Sequence[Row], *, axis: str, title: str, subtitle: str) -> Picture:
    """Draw rows.

    Args:
        kind: ``points`` draws the value against ``num_train``, for each column and method; ``strips`` a strip per
            column, for each method; ``lines`` the value by ``round``, a line per method, for each column; ``beta`` a
            strip per ``corruption``, and points, for each column and method.
        rows: the marks.
        axis: what the values are.
        title: title above the picture.
        subtitle: text below the title.
    """
    chart = finish(alt.vconcat(*_PANELS[kind](rows, axis), spacing=24), title=title, subtitle=" ")
    chart.title.subtitle = textwrap.wrap(clean(subtitle), _SUBTITLE)
    return chart


def _beta_panels(rows: Sequence[Row], axis: str) -> list[Any]:
    panels = []
    for name, own in _grouped(rows, "column", "method").items():
        if len({row["corruption"] for row in own}) > 1:
            panels.append(_titled(_strips(own, "corruption", axis), name))
        panels.append(_titled(_points(own, axis), name))
    return panels


def _point_panels(rows: Sequence[Row], axis: str) -> list[Any]:
    return [_titled(_points(own, axis), name) for name, own in _grouped(rows, "column", "method").items()]


def _strip_panels(rows: Sequence[Row], axis: str) -> list[Any]:
    return [_titled(_strips(own, "column", axis), name) for name, own in _grouped(rows, "method").items()]


def _line_panels(rows: Sequence[Row], axis: str) -> list[Any]:
    return [_titled(_lines(own, axis), name) for name, own in _grouped(rows, "column").items()]


_PANELS: Mapping[Kind, Callable[[Sequence[Row], str], list[Any]]] = {
    "beta": _beta_panels,
    "points": _point_panels,
    "strips": _strip_panels,
    "lines": _line_panels,
}


def _grouped(rows: Sequence[Row], *names: str) -> dict[str, list[Row]]:
    """Return rows by the text of some of their entries, in the order in which they come up."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault("; ".join(str(row[name]) for name in names), []).append(row)
    return found


def _titled(chart: Any, title: str) -> Any:
    """Return a panel with its title."""
    return chart.properties(title=alt.TitleParams(clean(title), fontSize=12, color=INK, offset=6, frame="group"))


def _strips(rows: Sequence[Row], group: str, axis: str) -> alt.LayerChart:
    """Draw a mark per row along the line of its group, and a tick at the mean of each group."""
    groups = [
        clean(name) for name in sorted({str(row[group]) for row in rows}, key=lambda name: (name != "clean", name))
    ]
    drawn = inline([{**row, group: clean(str(row[group]))} for row in rows])
    base = alt.Chart(drawn, width=_WIDTH, height=_STRIP * len(groups))
    # the order of the names is a domain: a sort by names would put them into an expression
    y = alt.Y(f"{group}:N", title=None, scale=alt.Scale(domain=groups), axis=alt.Axis(ticks=False))
    marks = _with_marks(base).encode(x=alt.X("value:Q", title=axis), y=y, tooltip=_tooltip(rows))
    means = base.mark_tick(color=INK, thickness=3, height=_STRIP - 6).encode(x="mean(value):Q", y=y)
    return alt.LayerChart(layer=[marks, means])


def _points(rows: Sequence[Row], axis: str) -> alt.Chart:
    """Draw the value of every row, from 0 to 1, against the number of training examples."""
    chart: alt.Chart = _with_marks(alt.Chart(inline(rows), width=_WIDTH, height=_HEIGHT)).encode(
        x=alt.X("num_train:Q", title="Training examples of the client", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("value:Q", title=axis, scale=alt.Scale(domain=[0, 1])),
        tooltip=_tooltip(rows),
    )
    return chart


def _lines(rows: Sequence[Row], axis: str) -> alt.Chart:
    """Draw the value by round, the mean over seeds, with a line per method."""
    drawn = inline([{**row, "method": clean(row["method"])} for row in rows])
    chart: alt.Chart = (
        alt.Chart(drawn, width=_WIDTH, height=_HEIGHT)
        .mark_line(point=True)
        .encode(
            x=alt.X("round:Q", title="Round"),
            y=alt.Y("mean(value):Q", title=axis, scale=alt.Scale(zero=False)),
            color=alt.Color("method:N", title=None),
            strokeDash=alt.StrokeDash("method:N", title=None),
            tooltip=["method:N", "round:Q", "mean(value):Q", "count():Q"],
        )
    )
    return chart


def _with_marks(chart: alt.Chart) -> alt.Chart:
    """Return a chart whose marks are transparent dots, so that many of them can be told apart."""
    marked: alt.Chart = chart.mark_circle(color=HUE, opacity=0.4, size=30)
    return marked


def _tooltip(rows: Sequence[Row]) -> list[str]:
    kinds = {"client": "N", "num_train": "Q", "condition": "N", "seed": "N", "value": "Q"}
    return [f"{name}:{kind}" for name, kind in kinds.items() if name in rows[0]]
