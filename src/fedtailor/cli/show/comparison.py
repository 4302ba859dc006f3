"""A comparison on the terminal: tables on stdout, warnings and notes on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtailor.cli.show.console import say, table

if TYPE_CHECKING:
    from fedtailor.report.comparison import Comparison


def show_comparison(comparison: Comparison) -> None:
    """Print the tables of a comparison, its notes and its warnings."""
    from fedtailor.report.tables import tables_of  # imports what it needs of numpy

    explained = set()
    for each in tables_of(comparison):
        columns = [name.replace(" ", "\n", 1) for name in each.columns]
        table(each.title, columns, each.rows, below="" if each.below in explained else each.below)
        explained.add(each.below)

    for sentence in comparison.notes:
        say(f"note: {sentence}")

    for sentence in comparison.warnings:
        say(f"warning: {sentence}", style="yellow")
