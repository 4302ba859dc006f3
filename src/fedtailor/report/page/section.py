"""The parts of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.report.figures.figure import Figure, Table


@dataclass(frozen=True, kw_only=True)
class NamedTable:
    """A table with its title and the name of its CSV file."""

    name: str
    title: str
    table: Table
    below: str = ""
    """What the columns are."""
    is_open: bool = True
    """Whether it is shown at once, or when the reader opens it."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page with a heading; it is left out if it is empty."""

    name: str
    """The anchor."""
    title: str
    notes: Sequence[str] = ()
    """Sentences below the heading."""
    tables: Sequence[NamedTable] = ()
    figures: Sequence[Figure] = ()
    remarks: Sequence[str] = ()
    """Sentences below everything else."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing below the heading."""
        return not (self.notes or self.remarks or self.tables or self.figures)
