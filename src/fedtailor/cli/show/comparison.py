"""A comparison on the terminal: tables on stdout, warnings and notes on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtailor.cli.show.console import say, table

if TYPE_CHECKING:
    from fedtailor.report.comparison import Comparison


def show_comparison(comparison: Comparison) -> None:
    """Print the tables of a comparison, its notes and its warnings."""
    from fedtailor.report.tables import tables_of  # imports what it needs of numpy

    # The tables of new clients need no second explanation.
    explained = {""}
    for one in tables_of(comparison):
        columns = [name.replace(" ", "\n", 1) for name in one.columns]
        rows = [[str(cell) for cell in row] for row in one.rows]
        table(one.title, columns, rows, below="" if one.below in explained else one.below)
        explained.add(one.below)

    for sentence in comparison.notes:
        say(f"note: {sentence}")

    for sentence in comparison.warnings:
        say(f"warning: {sentence}", style="yellow")
