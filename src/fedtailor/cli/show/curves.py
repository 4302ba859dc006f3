"""Curves of the accuracy by round, drawn with characters."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from fedtailor.cli.show.console import percent

_LEAST_WIDTH = 30
_LEAST_ROWS = 3
_MOST_ROWS = 6
_FRAME_ROWS = 2
"""Rows of a picture above and below its curves: the latest values, and the axis of rounds."""
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Distances, in percent, of which the ends of an axis are multiples."""
_MOST_IMPORTANT = ("personalized", "global", "local")
_MEAN = "green"
_WORST = "yellow"
_BRAILLE = 0x2800
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The bits of a braille character, by column and by row from below."""


@dataclass
class _Curve:
    """The accuracy of some models by round."""

    rounds: list[int] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)


class Curves:
    """The mean accuracy and that of the worst tenth of clients, for each kind of models that is
    tested.
    """

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}
        self._count = 0
        self._drawn: tuple[tuple[int, int, int, bool], list[Text]] = ((0, 0, 0, False), [])

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the accuracies of a round; ``record`` is its line in ``rounds.jsonl``."""
        for evaluation in record["evaluations"]:
            accuracy = evaluation["metrics"].get("accuracy")
            if accuracy is None or not (
                math.isfinite(accuracy["mean"]) and math.isfinite(accuracy["worst10"])
            ):
                continue

            curve = self._curves.setdefault(name_of(evaluation), _Curve())
            curve.rounds.append(record["round"])
            curve.mean.append(100 * accuracy["mean"])
            curve.worst.append(100 * accuracy["worst10"])
            self._count += 1

    def draw(self, width: int, height: int, *, ascii_only: bool) -> list[Text]:
        """Return the lines of pictures that fit, one picture for each kind of models that was
        tested twice or more.

        Args:
            width: columns of the terminal.
            height: lines that may be used.
            ascii_only: whether only ASCII characters can be shown.

        Returns:
            No line if there is too little room, or too little to show.
        """
        wanted = (self._count, width, height, ascii_only)
        before, lines = self._drawn
        if wanted != before:
            lines = self._draw(width, height, ascii_only=ascii_only)
            self._drawn = (wanted, lines)
        return lines

    def _draw(self, width: int, height: int, *, ascii_only: bool) -> list[Text]:
        names = [name for name, curve in list(self._curves.items()) if len(curve.worst) > 1]
        most = height // (_LEAST_ROWS + _FRAME_ROWS)
        names = sorted(names, key=_importance)[:most]
        if not names or width < _LEAST_WIDTH:
            return []

        rows = min(height // len(names) - _FRAME_ROWS, _MOST_ROWS)
        lines = []
        for name in reversed(names):
            curve = self._curves[name]
            lines += _picture(name, curve, width, rows, ascii_only=ascii_only)

        return lines


def _importance(name: str) -> int:
    """Return the place of a kind of models in the order in which they are shown where room is
    scarce.
    """
    return _MOST_IMPORTANT.index(name) if name in _MOST_IMPORTANT else len(_MOST_IMPORTANT)


def name_of(evaluation: Mapping[str, Any]) -> str:
    """Return which models an evaluation tested, on what, in words."""
    point = evaluation["point"]
    names = {"clients": point, "complete": f"{point} on the whole test part"}
    name = names.get(evaluation["test_set"], "validation")
    return f"{name}{' of new clients' if evaluation['group'] == 'new' else ''}"


def knows_ascii_only(console: Console) -> bool:
    """Return whether a terminal shows ASCII characters only, as far as its environment says."""
    if (
        console.options.ascii_only or os.environ.get("TERM") == "linux"
    ):  # the text console of Linux has no braille
        return True

    characters = os.environ.get("LC_CTYPE", "")
    if characters == "C.UTF-8":  # Python itself sets it where the locale is C
        characters = ""

    locale = os.environ.get("LC_ALL") or characters or os.environ.get("LANG", "")
    return locale in ("C", "POSIX")


def _picture(name: str, curve: _Curve, width: int, rows: int, *, ascii_only: bool) -> list[Text]:
    """Return the lines of one picture: the latest values, ``rows`` lines of curves, and the axis of
    rounds.
    """
    low, high, digits = _ends(min(curve.worst), max(curve.mean))
    labels = {0: f"{high:.{digits}f}", rows - 1: f"{low:.{digits}f}"}
    margin = max(map(len, labels.values()))
    columns = width - margin - 2
    draw = _draw_ascii if ascii_only else _draw_braille
    lines = [_title(name, curve, width, ascii_only=ascii_only)]

    for row, cells in enumerate(draw(curve, columns, rows, low, high)):
        line = Text(f"{labels.get(row, ''):>{margin}} {'|' if ascii_only else '│'}", no_wrap=True)
        for style, group in itertools.groupby(cells, key=lambda cell: cell[1]):
            line.append("".join(character for character, _ in group), style)

        lines.append(line)

    lines.append(_axis(curve, margin, columns, ascii_only=ascii_only))
    return lines


def _title(name: str, curve: _Curve, width: int, *, ascii_only: bool) -> Text:
    """Return the latest values, which are also the legend."""
    mean = f"{' *' if ascii_only else ''} {percent(curve.mean[-1] / 100)} %"
    worst = f"worst tenth{' o' if ascii_only else ''} {percent(curve.worst[-1] / 100)} %"
    is_short = len(f"{name}: mean{mean}, {worst}") > width
    title = Text(name if is_short else f"{name}: ", no_wrap=True, overflow="ellipsis")
    title.append(mean if is_short else f"mean{mean}", _MEAN)
    title.append(", ")
    title.append(worst, _WORST)
    return title


def _axis(curve: _Curve, margin: int, columns: int, *, ascii_only: bool) -> Text:
    """Return the axis of rounds, with the first and the last one that were tested."""
    stroke = "-" if ascii_only else "─"
    first = str(curve.rounds[0])
    last = str(curve.rounds[-1])
    middle = f"{' round ':{stroke}^{columns - len(first) - len(last)}}"
    return Text(f"{'':{margin}} {'+' if ascii_only else '└'}{first}{middle}{last}", no_wrap=True)


def _ends(least: float, most: float) -> tuple[float, float, int]:
    """Return the ends of an axis that holds two values, in percent, and how many digits their
    labels need.
    """
    step = next((step for step in _STEPS if 8 * step >= most - least), _STEPS[-1])
    low = math.floor(least / step) * step
    high = math.ceil(most / step) * step
    if high - low < step:
        high = low + step
    return low, high, 0 if step >= 1 else 1


def _heights(
    curve: _Curve, values: Sequence[float], width: int, height: int, low: float, high: float
) -> list[range]:
    """Return which of ``height`` dots a line covers, from below, for each of ``width`` columns of
    dots.
    """
    places = np.linspace(curve.rounds[0], curve.rounds[-1], width)
    shares = (np.interp(places, curve.rounds[: len(values)], values) - low) / (high - low)
    dots = np.clip(np.rint(shares * (height - 1)), 0, height - 1).astype(int).tolist()
    covered = []
    before = dots[0]

    for dot in dots:  # a steep line covers what is between a column and the next
        covered.append(
            range(before + 1, dot + 1) if dot > before else range(dot, max(before, dot + 1))
        )
        before = dot

    return covered


def _draw_braille(
    curve: _Curve, columns: int, rows: int, low: float, high: float
) -> list[list[tuple[str, str]]]:
    """Return characters and their styles, by row from above and column: eight dots in each
    character.
    """
    bits = [[0] * columns for _ in range(rows)]
    styles = [[""] * columns for _ in range(rows)]
    for values, style in ((curve.worst, _WORST), (curve.mean, _MEAN)):
        for place, covered in enumerate(_heights(curve, values, 2 * columns, 4 * rows, low, high)):
            column = place // 2
            for dot in covered:
                row = rows - 1 - dot // 4
                bits[row][column] |= _DOTS[place % 2][dot % 4]
                styles[row][column] = style

    return [
        [
            (chr(_BRAILLE + each) if each else " ", style)
            for each, style in zip(row, of_row, strict=True)
        ]
        for row, of_row in zip(bits, styles, strict=True)
    ]


def _draw_ascii(
    curve: _Curve, columns: int, rows: int, low: float, high: float
) -> list[list[tuple[str, str]]]:
    """Return characters and their styles, by row from above and column."""
    cells = [[(" ", "")] * columns for _ in range(rows)]
    for values, style, mark in ((curve.worst, _WORST, "o"), (curve.mean, _MEAN, "*")):
        for column, covered in enumerate(_heights(curve, values, columns, rows, low, high)):
            for dot in covered:
                cells[rows - 1 - dot][column] = (mark, style)
    return cells
