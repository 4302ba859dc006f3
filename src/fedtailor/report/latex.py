"""A comparison as LaTeX tables (booktabs). No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedtailor.core.errors import printable
from fedtailor.report.comparison import Comparison
from fedtailor.report.parts import NOTHING, Cell, ReportTable
from fedtailor.report.tables import tables_of

_SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{character: f"\\{character}" for character in "{}$&#_%"},
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        **{character: f"{{{character}}}" for character in "[]*"},
        "±": r"$\pm$",
    }
)
"""Characters, and what LaTeX prints as them. After the end of a row, a bracket or a star would
belong to it."""
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")


def to_latex(comparison: Comparison) -> str:
    r"""Return a comparison as LaTeX tables, which need the package ``booktabs``.

    The tables can be read into any document with ``\input``. Warnings and notes are comments.
    Labels cannot change the document: characters with a meaning in LaTeX are escaped. Others are as
    they are, in UTF-8: it depends on the document whether it has, say, Chinese letters.
    """
    lines = [r"% needs \usepackage{booktabs}"]
    lines += [f"% warning: {printable(sentence)}" for sentence in comparison.warnings]
    lines += [f"% note: {printable(sentence)}" for sentence in comparison.notes]
    for table in tables_of(comparison):
        lines += _table(table)
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> escape_latex("50 % of a_b, Café")
    '50 \\% of a\\_b, Café'
    """
    return printable(text).translate(_SPECIAL)


def _table(table: ReportTable) -> Iterator[str]:
    """Yield the lines of a table."""
    yield r"\begin{table}"
    yield r"\centering"
    yield r"\footnotesize"
    yield r"\setlength{\tabcolsep}{4pt}"
    text = " ".join(filter(None, [f"{table.title}.", table.conclusion, table.below]))
    yield rf"\caption{{{escape_latex(text)}}}"
    yield rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}"
    yield r"\toprule"
    yield _row([_heading(name) for name in table.columns])
    yield r"\midrule"
    for label, *numbers in table.rows:
        yield _row([escape_latex(str(label)), *map(_number, numbers)])

    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _heading(name: str) -> str:
    """Return the heading of a column, in two lines if it has several words."""
    first, _, rest = name.partition(" ")
    if not rest:
        return escape_latex(first)

    return rf"\shortstack[r]{{{escape_latex(first)}\\{escape_latex(rest)}}}"


def _row(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _number(cell: Cell) -> str:
    """Return a cell of numbers, with a true minus; a dash if there is none."""
    return "--" if cell == NOTHING else _MINUS.sub("$-$", escape_latex(str(cell)))
