"""A figure: a drawing for any width, with its numbers as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedtailor.data.own.names import inert
from fedtailor.report.figures.drawing import Drawing

WIDE = 820
"""Pixels of a figure on a desktop, and in a file."""
NARROW = 340
"""Pixels of a figure on a phone."""

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """A table: names of columns, and rows of texts and numbers; None is an empty cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def to_csv(self) -> str:
        """Return the table as CSV that is safe to open in a spreadsheet."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([inert(name) for name in self.columns])
        for row in self.rows:
            writer.writerow(
                [inert(cell) if isinstance(cell, str) else show_cell(cell) for cell in row]
            )
        return text.getvalue()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a report."""

    name: str
    """The name of its files."""
    title: str
    caption: str
    """What is drawn, and how to read it."""
    draw: Callable[[int], Drawing]
    """Draws it for a width in pixels."""
    table: Table
    """The numbers that are drawn."""


def show_cell(cell: Cell) -> str:
    """Return a cell as text: a number has at most six digits.

    >>> show_cell(0.123456789), show_cell(None), show_cell(12)
    ('0.123457', '', '12')
    """
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def percent(share: float | None) -> float | None:
    """Return a share in percent, to two decimal places.

    >>> percent(0.71234)
    71.23
    """
    return None if share is None else round(100 * share, 2)
