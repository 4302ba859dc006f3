"""Text on the terminal: tables on stdout, sentences on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedtailor.core.errors import WARNING, printable
from fedtailor.core.text import NOTHING, round_figure

_WIDTH_OF_A_FILE = 120
"""Columns of a table that goes into a pipe or file, unless ``COLUMNS`` says otherwise."""
_NARROWEST_TEXT = 16
"""Columns that a column of text needs, if it has so much text."""
_LONGEST_NAME = 40


def say(text: str, *, style: str = "") -> None:
    """Print a line to stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(printable(text), style=style))


def line_of_note(text: str) -> str:
    """Return a note of a run, or of data, as the line that is printed."""
    kind = "warning" if text.startswith(WARNING) else "note"
    return f"{kind}: {text.removeprefix(WARNING)}"


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    conclusion: str = "",
    below: str = "",
) -> None:
    """Print a table to stdout.

    It fits the width of the terminal, or ``COLUMNS``: text is folded, and columns that do not fit
    follow in a further block below, which repeats the first column.

    Args:
        title: printed above it.
        columns: their names; a newline starts a second line.
        rows: the cells.
        left: the first ``left`` columns hold text, the others numbers.
        conclusion: what it says, printed below it.
        below: text to print below that.
    """
    lines = [[printable(cell) for cell in row] for row in rows]
    console = Console(highlight=False)
    is_limited = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    if not is_limited:
        console.width = _WIDTH_OF_A_FILE

    # Columns of text may be folded, numbers and names may not.
    least = []
    for number, name in enumerate(columns):
        widths = [len(line) for line in name.split("\n")]
        widths += [Text(line[number]).cell_len for line in lines]
        may_fold = 0 < number < left
        least.append(min(max(widths), _NARROWEST_TEXT) if may_fold else max(widths))

    if is_limited:
        least[0] = min(least[0], max(_NARROWEST_TEXT, console.width // 2))
        blocks = _blocks(least, console.width)
    else:
        blocks = [list(range(len(columns)))]
        console.width = max(console.width, _width_of(least))

    console.print(Text(printable(title), style="bold"), soft_wrap=not is_limited)
    # A column that does not fit stands in a further table below.
    for block in blocks:
        grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for number in block:
            name = columns[number]
            width = least[number]
            grid.add_column(
                name, justify="left" if number < left else "right", overflow="fold", min_width=width
            )

        for line in lines:
            grid.add_row(*(Text(line[number]) for number in block))

        console.print(grid)

    if conclusion:
        console.print(Text(printable(conclusion), style="bold"), soft_wrap=not is_limited)
    if below:
        console.print(Text(printable(below)), soft_wrap=not is_limited)


def _blocks(least: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each block, as many as fit; every block begins with the first one."""
    blocks = [[0]]
    for number in range(1, len(least)):
        tried = [*blocks[-1], number]
        if len(blocks[-1]) > 1 and _width_of([least[column] for column in tried]) > width:
            tried = [0, number]
            blocks.append(tried)
        blocks[-1] = tried
    return blocks


def _width_of(widths: Sequence[int]) -> int:
    """Return the width of a table whose columns have these widths."""
    # Each has two blanks beside it, and the table has one more.
    return sum(widths) + 2 * len(widths) + 1


def shortened(name: str) -> str:
    """Return a name that does not make a table too wide."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def interval(ends: Mapping[str, float] | None, in_percent: bool = True) -> str:
    """Return the ends of an interval; a dash if there is none."""
    if ends is None:
        return NOTHING

    return " to ".join(round_figure(ends[name], in_percent) for name in ("low", "high"))


def duration(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> duration(7.4), duration(125), duration(3725)
        ('7 s', '2 min 05 s', '1 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"

    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"

    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
