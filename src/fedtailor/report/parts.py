"""What a report is made of: tables, figures, and sections that hold them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtailor.core.text import csv_text, escaped, inert

if TYPE_CHECKING:
    import altair as alt

Cell = str | float | int | None
_SMALLEST_P = 0.001


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table of texts and numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    """None is an empty cell."""
    title: str = ""
    name: str = ""
    """The name of its CSV file."""
    conclusion: str = ""
    """What it says, in a sentence or two; shown between the table and ``below``."""
    below: str = ""
    """What the columns are."""
    is_open: bool = True
    """Whether a page shows it at once, or when the reader opens it."""

    def to_csv(self) -> str:
        """Return the table as CSV that is safe to open in a spreadsheet."""
        rows = [[inert(name) for name in self.columns]]
        for row in self.rows:
            rows.append([inert(cell) if isinstance(cell, str) else show_cell(cell) for cell in row])

        return csv_text(rows)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart of a figure. Panels stand side by side where there is room."""

    chart: alt.Chart | alt.LayerChart
    title: str = ""
    subtitle: str = ""
    min_width: int = 0
    """Pixels below which the chart is scrolled instead of made narrower."""
    picture: str = ""
    """The chart as SVG that was drawn before, for a page that is written often: it has no tooltips,
    and needs no script."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure: its panels, and the numbers that they show."""

    name: str
    """The name of its files."""
    title: str
    caption: str
    """What is drawn, and how to read it."""
    panels: Sequence[Panel]
    table: ReportTable | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page with a heading; it is left out if it is empty."""

    name: str
    """The anchor."""
    title: str
    notes: Sequence[str] = ()
    """Sentences below the heading."""
    tables: Sequence[ReportTable] = ()
    figures: Sequence[Figure] = ()
    remarks: Sequence[str] = ()
    """Sentences below everything else."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing below the heading."""
        return not (self.notes or self.remarks or self.tables or self.figures)


def show_cell(cell: Cell) -> str:
    """Return a cell as text: a number has at most six digits.

    >>> show_cell(0.123456789), show_cell(None), show_cell(12)
    ('0.123457', '', '12')
    """
    if cell is None:
        return ""

    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def to_percent(share: float | None) -> float | None:
    """Return a share in percent, to two decimal places.

    >>> to_percent(0.71234)
    71.23
    """
    return None if share is None else round(100 * share, 2)


def show_p_value(value: float) -> str:
    """Return a p-value with three decimal places.

    >>> show_p_value(0.0401), show_p_value(0.0001)
    ('0.040', '<0.001')
    """
    return f"<{_SMALLEST_P}" if value < _SMALLEST_P else f"{value:.3f}"


def visible(name: str) -> str:
    """Return a name with its control characters as escapes, without what no page can hold."""
    return escaped(name).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")
