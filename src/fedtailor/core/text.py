"""Text for people: values made safe to print, figures, lists, counts with nouns, CSV, Markdown."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence

from fedtailor.core.errors import MOST_LISTED, joined

_HIDDEN_MEANING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line separators, marks that change the direction of text, bytes that are not
UTF-8."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Spreadsheets treat text with such a beginning as a formula; in some languages, the wide forms of
the signs too."""

_LONGEST_VALUE = 80
"""Most characters of a value in a message."""
_WHOLE_NUMBER = re.compile("-?[0-9]{1,300}")
NOTHING = "-"
"""Stands for a number that does not exist."""


def escaped(name: str) -> str:
    """Write characters that could change a terminal, or are not text, as backslash escapes."""
    return _HIDDEN_MEANING.sub(_escape, name)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:  # Python's code for a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"

    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def inert(text: str) -> str:
    """Put an apostrophe before a formula, so that a spreadsheet shows the cell as text.

    Numbers are no formulas.

    >>> inert("=1+1"), inert("-0.5"), inert("ditto")
    ("'=1+1", '-0.5', 'ditto')
    """
    is_number = re.fullmatch(r"[+-]?\d+(\.\d+)?", text)
    return f"'{text}" if text.startswith(_FORMULA) and not is_number else text


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Return rows of cells as the text of a CSV file; None is an empty cell.

    >>> csv_text([("site", "examples"), ("a, b", 3)])
    'site,examples\n"a, b",3\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, of_numbers: Container[int] = ()
) -> str:
    """Return a table in Markdown.

    Args:
        columns: their titles.
        rows: of cells, in which Markdown is already escaped.
        of_numbers: positions of the columns of numbers, which stand to the right.

    >>> print(markdown_table(["site", "examples"], [["a", "3"]], of_numbers=[1]))
    | site | examples |
    | --- | ---: |
    | a | 3 |
    """
    dashes = ["---:" if column in of_numbers else "---" for column in range(len(columns))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, dashes, *rows])


def quoted(value: object) -> str:
    """Quote a value for a message: cut, with control characters escaped."""
    text = repr(str(value))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def listed(names: Iterable[str], most: int = MOST_LISTED) -> str:
    """Return the first names in quotes, and the number of the others.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    return joined([quoted(name) for name in names], most)


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun; the plural has an s unless it is given.

    >>> counted(1, "image"), counted(2, "image"), counted(3, "class", "classes")
    ('1 image', '2 images', '3 classes')
    """
    return f"1 {singular}" if number == 1 else f"{number} {plural or singular + 's'}"


def round_figure(value: float | None, in_percent: bool, *, signed: bool = False) -> str:
    """Return a value in percent with one decimal place, or with three; a dash if there is none.

    0 has no sign.

    >>> round_figure(0.5, in_percent=True), round_figure(0.5, in_percent=False, signed=True)
    ('50.0', '+0.500')
    """
    if value is None:
        return NOTHING

    digits = 1 if in_percent else 3
    rounded = round(100 * value if in_percent else value, digits) + 0.0  # -0.0 becomes 0.0
    return f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share in percent, without the sign; a dash if there is none."""
    return round_figure(share, in_percent=True)


def with_error(
    value: float | None, error: float | None, in_percent: bool, *, signed: bool = False
) -> str:
    """Return a figure with its standard error, if it has one.

    >>> with_error(0.5, 0.01, in_percent=True)
    '50.0 ± 1.0'
    """
    text = round_figure(value, in_percent, signed=signed)
    return text if error is None else f"{text} ± {round_figure(error, in_percent)}"


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of names that differ only by case, spaces or Unicode form.

    >>> similar_names(["Site", "site ", "other"])
    [['Site', 'site ']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folded = unicodedata.normalize("NFKC", name).casefold()
        groups[unicodedata.normalize("NFKC", folded).strip()].append(name)

    return [group for group in groups.values() if len(group) > 1]


def sorted_classes(names: Iterable[str]) -> list[str]:
    """Return names of classes in order: whole numbers in theirs, else sorted as text.

    Example:
        >>> sorted_classes(["10", "2", "-1"])
        ['-1', '2', '10']
    """
    names = set(names)
    if all(_WHOLE_NUMBER.fullmatch(name) for name in names):
        # "1" and "01" are two names of one number.
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)
