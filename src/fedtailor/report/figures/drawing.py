"""Drawings: SVG whose colors are variables of the page, so that it is readable in dark and in
light.

A drawing is made of few elements, each with a class; the style says what a class looks like. As a
file of its own, a drawing holds this style with the light colors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from markupsafe import escape

from fedtailor.data.own.names import safe_name

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]

SERIES = 8
"""Colors of series; the next one has the first color again, with other dashes."""
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "quiet": "#59636e",
    "grid": "#e4e8ec",
    "gain": "#0b62a4",
    "harm": "#c2410c",
    "s0": "#0b62a4",
    "s1": "#c2410c",
    "s2": "#15803d",
    "s3": "#8b3fa8",
    "s4": "#8a6d00",
    "s5": "#0e7490",
    "s6": "#b0226a",
    "s7": "#57534e",
}
"""Colors on white: text has a contrast of 4.5 or more, marks of 3 or more."""
DARK = {
    "paper": "#14181d",
    "ink": "#e6edf3",
    "quiet": "#a3adb8",
    "grid": "#2d343c",
    "gain": "#6cb6ff",
    "harm": "#ff9b62",
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
_DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2", "1.5 3.5", "12 3", "6 2 2 2 2 2")
_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_WIDTH_OF_A_CHARACTER = 7.0
_STYLE = """
.drawing text { font: 12px %(font)s; fill: var(--ink); }
.drawing text.quiet { fill: var(--quiet); }
.drawing text.small { font-size: 11px; }
.drawing text.strong { font-weight: bold; }
.drawing .grid { stroke: var(--grid); stroke-width: 1; fill: none; }
.drawing .axis { stroke: var(--quiet); stroke-width: 1; fill: none; }
.drawing .mark { fill: var(--ink); }
.drawing .stroke { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.drawing .guide { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 4 3; fill: none; }
.drawing .gain { fill: var(--gain); }
.drawing .harm { fill: var(--harm); }
.drawing .gap { fill: none; stroke: var(--harm); stroke-width: 1; stroke-dasharray: 2 2; }
.drawing .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.drawing .band { fill-opacity: 0.16; stroke: none; }
.drawing .dot { fill-opacity: 0.55; }
.drawing .soft { fill-opacity: 0.7; }
.drawing .ring { stroke: var(--paper); stroke-width: 1.5; }
.drawing text.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
%(series)s
""".strip()


def _style() -> str:
    """Return the style of all drawings; colors are variables."""
    rules = []
    for number in range(SERIES):
        rules.append(f".drawing .fill{number} {{ fill: var(--s{number}); }}")
        rules.append(f".drawing .line{number} {{ stroke: var(--s{number}); }}")
    return _STYLE % {"font": _FONT, "series": "\n".join(rules)}


STYLE = _style()


def in_colors(style: str, colors: dict[str, str]) -> str:
    """Return a style in which every variable is a color."""
    return re.sub(r"var\(--(\w+)\)", lambda match: colors[match[1]], style)


def clean(name: str) -> str:
    """Return a name that can be drawn: control characters are escapes that can be seen."""
    return safe_name(name).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def shortened(names: Sequence[str], most: int) -> list[str]:
    """Return names of at most ``most`` characters, all different.

    >>> shortened(["ditto (penalty=0.1)", "ditto (penalty=0.2)"], 10)
    ['ditto (pe…', 'ditto… (2)']
    """
    shown: list[str] = []
    for name in map(clean, names):
        text = name if len(name) <= most else f"{name[: most - 1]}…"
        number = 2
        while text in shown:
            ending = f"… ({number})"
            text = name[: max(1, most - len(ending))] + ending
            number += 1

        shown.append(text)

    return shown


def width_of(text: str) -> float:
    """Return about how wide a text is, in pixels."""
    return _WIDTH_OF_A_CHARACTER * len(text)


class Drawing:
    """A drawing of a given width in pixels, with its elements in the order in which they are
    added.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.height = 0.0
        self._elements: list[str] = []

    def reach(self, y: float) -> None:
        """Make the drawing at least ``y`` high."""
        self.height = max(self.height, y)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Add a straight line."""
        self._elements.append(
            f'<line class="{kind}" x1="{_place(x1)}" y1="{_place(y1)}" x2="{_place(x2)}" y2="{_place(y2)}"/>'
        )

    def path(
        self, points: Iterable[Point], kind: str, *, series: int | None = None, closed: bool = False
    ) -> None:
        """Add a line through points, with the dashes of a series; or an area, if it is closed."""
        steps = " ".join(f"{_place(x)},{_place(y)}" for x, y in points)
        name = "polygon" if closed else "polyline"
        dashes = "" if series is None else _DASHES[(series + series // SERIES) % len(_DASHES)]
        extra = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._elements.append(f'<{name} class="{kind}" points="{steps}"{extra}/>')

    def circle(self, x: float, y: float, radius: float, kind: str, *, tip: str = "") -> None:
        """Add a dot; a tip is shown when the mouse rests on it."""
        start = f'<circle class="{kind}" cx="{_place(x)}" cy="{_place(y)}" r="{_place(radius)}"'
        self._elements.append(_with_tip(start, "circle", tip))

    def bar(
        self, x: float, y: float, width: float, height: float, kind: str, *, tip: str = ""
    ) -> None:
        """Add a rectangle by its upper left corner."""
        start = f'<rect class="{kind}" x="{_place(x)}" y="{_place(y)}" width="{_place(width)}" height="{_place(height)}"'
        self._elements.append(_with_tip(start, "rect", tip))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: Anchor = "start",
        kind: str = "",
        turned: bool = False,
    ) -> None:
        """Add a text by its base line; a turned one runs upward."""
        where = f' x="{_place(x)}" y="{_place(y)}"'
        turn = f' transform="rotate(-90 {_place(x)} {_place(y)})"' if turned else ""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        looks = f' class="{kind}"' if kind else ""
        self._elements.append(f"<text{looks}{where}{place}{turn}>{escape(clean(text))}</text>")

    def legend(self, names: Mapping[int, str], y: float) -> float:
        """Add names by series, beside samples of their lines, in as many rows as they need; return
        where they end.
        """
        x = 0.0
        for number, name in names.items():
            needed = 34 + width_of(name)
            if x > 0 and x + needed > self.width:
                x = 0.0
                y += 18

            sample = [(x, y + 8), (x + 24, y + 8)]
            self.path(sample, f"line line{number % SERIES}", series=number)
            self.text(x + 30, y + 12, name)
            x += needed + 12

        self.reach(y + 20)
        return y + 20

    def inline(self, label: str) -> str:
        """Return the drawing as a part of a page, which has :data:`STYLE` and the colors.

        Args:
            label: what it shows, for those who do not see it.
        """
        return self._svg(f' role="img" aria-label="{escape(clean(label))}"')

    def standalone(self, title: str, description: str) -> str:
        """Return the drawing as a file of its own, in the light colors, with its title above it."""
        head = 30
        names = f"<title>{escape(clean(title))}</title><desc>{escape(clean(description))}</desc>"
        style = f"<style>{escape(in_colors(STYLE, LIGHT))}</style>"
        paper = f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
        heading = f'<text class="strong" x="0" y="16">{escape(clean(title))}</text>'
        content = f'{names}{style}{paper}<g transform="translate(12 12)">{heading}'
        content += f'<g transform="translate(0 {head})">{"".join(self._elements)}</g></g>'
        width = self.width + 24
        height = _place(self.height + head + 24)
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'

        return f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" {size}>{content}</svg>\n'

    def _svg(self, attributes: str) -> str:
        box = f'viewBox="0 0 {self.width} {_place(self.height)}" width="{self.width}" height="{_place(self.height)}"'
        return f'<svg class="drawing" {box}{attributes}>{"".join(self._elements)}</svg>'


def _place(value: float) -> str:
    """Return a coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _with_tip(start: str, name: str, tip: str) -> str:
    """Return an element, with a tip inside it if there is one."""
    return f"{start}><title>{escape(clean(tip))}</title></{name}>" if tip else f"{start}/>"
