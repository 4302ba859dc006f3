"""A comparison on the terminal: tables on stdout, warnings and notes on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtailor.cli.show.console import say, table

if TYPE_CHECKING:
    from fedtailor.report.comparison import Comparison


def show_comparison(comparison: Comparison) -> None:
    """Print the tables of a comparison, its notes and its warnings."""
    from fedtailor.report.tables import tables_of  # imports what it needs of numpy

    for each in tables_of(comparison):
        table(each.title, each.columns, each.rows, below=each.below)
    for sentence in comparison.notes:
        say(f"note: {sentence}")
    for sentence in comparison.warnings:
        say(f"warning: {sentence}", style="yellow")
