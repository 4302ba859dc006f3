"""Panels of a drawing: their places, their axes and titles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.report.figures.drawing import Drawing, shortened, width_of
from fedtailor.report.figures.scales import Linear, Scale, label

_HEAD = 50.0
"""Pixels above a panel, for its title and that of the vertical axis."""
_FOOT = 44.0
"""Pixels below a panel, for ticks and the title of the horizontal axis."""
_GAP = 26.0
_LEFT = 48.0
_WIDTH_OF_A_BOLD_CHARACTER = 7.6
_RIGHT = 12.0
_TWO_COLUMNS = 600
"""Pixels from which on panels stand side by side."""
_STRIP = 24.0
_HALF_STRIP = 7.0
_LONGEST_CATEGORY = 22


@dataclass(frozen=True)
class Panel:
    """The area of a panel within its axes."""

    drawing: Drawing
    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """The width of the area."""
        return self.right - self.left


def panels(
    drawing: Drawing,
    count: int,
    top: float,
    *,
    height: float = 170.0,
    left: float = _LEFT,
    columns: int = 2,
) -> list[Panel]:
    """Return panels in rows below ``top``, side by side where the drawing is wide, and make room
    for them.

    Args:
        drawing: where they are.
        count: how many.
        top: where the first row begins, titles included.
        height: of the area within the axes.
        left: room for the labels of the vertical axis.
        columns: most panels side by side.
    """
    across = min(columns, count) if drawing.width >= _TWO_COLUMNS else 1
    step = (drawing.width - _GAP * (across - 1)) / across
    found = []
    for number in range(count):
        row, column = divmod(number, across)
        x = column * (step + _GAP)
        y = top + row * (height + _HEAD + _FOOT)
        found.append(Panel(drawing, x + left, y + _HEAD, x + step - _RIGHT, y + _HEAD + height))
        drawing.reach(y + _HEAD + height + _FOOT)

    return found


def titles(panel: Panel, title: str, subtitle: str, *, left: float | None = None) -> None:
    """Write the title of a panel, and below it a quiet line, such as what its vertical axis
    shows.
    """
    x = panel.left - _LEFT if left is None else left
    room = int((panel.right - x) / _WIDTH_OF_A_BOLD_CHARACTER)
    (shown,) = shortened([title], room)
    panel.drawing.text(x, panel.top - 31, shown, kind="strong")
    panel.drawing.text(x, panel.top - 14, subtitle, kind="quiet small")


def vertical_axis(panel: Panel, scale: Scale, *, ticks: int = 5) -> None:
    """Draw the ticks of a vertical axis, and a line across the panel at each."""
    for value in scale.ticks(ticks):
        y = scale(value)
        panel.drawing.line(panel.left, y, panel.right, y, "grid")
        panel.drawing.text(panel.left - 6, y + 4, label(value), anchor="end", kind="quiet small")


def horizontal_axis(
    panel: Panel, scale: Scale, title: str, *, grid: bool = False, whole: bool = False
) -> None:
    """Draw a horizontal axis with ticks and title; with ``whole``, ticks are whole numbers."""
    ticks = scale.ticks(max(2, int(panel.width / 55)))
    if whole:
        ticks = [value for value in ticks if abs(value - round(value)) < 1e-9]

    for value in ticks:
        x = scale(value)
        if grid:
            panel.drawing.line(x, panel.top, x, panel.bottom, "grid")

        panel.drawing.line(x, panel.bottom, x, panel.bottom + 4, "axis")
        panel.drawing.text(x, panel.bottom + 17, label(value), anchor="middle", kind="quiet small")

    panel.drawing.line(panel.left, panel.bottom, panel.right, panel.bottom, "axis")
    horizontal_title(panel, title, below=34)


def horizontal_title(panel: Panel, title: str, *, below: float = 18) -> None:
    """Write the title of a horizontal axis, some pixels below it."""
    middle = (panel.left + panel.right) / 2
    panel.drawing.text(middle, panel.bottom + below, title, anchor="middle", kind="small")


def strip_chart(
    drawing: Drawing,
    top: float,
    groups: dict[str, list[tuple[float, str]]],
    *,
    title: str,
    subtitle: str,
    axis: str,
) -> None:
    """Draw a strip of dots for every group, with a line at the mean of the group.

    Args:
        drawing: where it is drawn.
        top: where it begins.
        groups: value and tip of every dot, by group.
        title: title of the panel.
        subtitle: what a dot is.
        axis: title of the horizontal axis.
    """
    from fedtailor.report.figures.scales import linear

    names = shortened(list(groups), _LONGEST_CATEGORY)
    left = 16 + max(map(width_of, names))
    (panel,) = panels(drawing, 1, top, height=_STRIP * len(groups), left=left)
    scale = linear(
        [value for dots in groups.values() for value, _ in dots], panel.left + 6, panel.right - 6
    )
    titles(panel, title, subtitle, left=0)
    horizontal_axis(panel, scale, axis, grid=True)

    for number, (name, dots) in enumerate(zip(names, groups.values(), strict=True)):
        middle = panel.top + _STRIP * (number + 0.5)
        drawing.text(left - 10, middle + 4, name, anchor="end")
        drawing.line(panel.left, middle, panel.right, middle, "grid")
        for value, tip in dots:
            drawing.circle(scale(value), middle, 4, "dot fill0", tip=tip)

        mean = scale(sum(value for value, _ in dots) / len(dots))
        drawing.line(mean, middle - _HALF_STRIP, mean, middle + _HALF_STRIP, "stroke")


def whole_rounds(rounds: Sequence[int], panel: Panel) -> Linear:
    """Return a scale of rounds."""
    first = min(rounds)
    last = max(rounds)
    if first == last:
        first -= 1
        last += 1
    return Linear(first, last, panel.left + 4, panel.right - 4)
