"""A comparison as LaTeX tables (booktabs). No torch."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from fedtailor.core.errors import printable
from fedtailor.core.text import NOTHING
from fedtailor.report.comparison import Comparison
from fedtailor.report.parts import Cell, ReportTable
from fedtailor.report.tables import tables_of

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "`": "{`}",
    "[": "{[}",  # after the end of a row it would begin an argument
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "µ": r"$\mu$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
}
"""Characters, and what stands for them in every LaTeX, for all encodings of its text and
fonts."""
_LETTERS = "ßæÆœŒøØłŁı"
_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
"""Letters, and accents of others, that every LaTeX since 2018 knows as they are (UTF-8)."""
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")


def to_latex(comparison: Comparison) -> str:
    r"""Return a comparison as LaTeX tables, which need the package ``booktabs``.

    The tables can be read into any document with ``\input``. Warnings and notes are comments.
    Labels cannot change the document: characters with a meaning in LaTeX are escaped; those that
    LaTeX may not know are written by their number, as ``[U+4E2D]``.
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
    return "".join(map(_character, unicodedata.normalize("NFC", printable(text))))


def _character(character: str) -> str:
    """Return a character as LaTeX."""
    if character in _SPECIAL:
        return _SPECIAL[character]

    parts = unicodedata.normalize("NFD", character)
    is_accented = parts[0].isascii() and all(accent in _ACCENTS for accent in parts[1:])
    if is_accented or character in _LETTERS:
        return character

    return f"{{[}}U+{ord(character):04X}{{]}}"


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
