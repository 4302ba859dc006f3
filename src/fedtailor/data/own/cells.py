"""The cells of tables as text: numbers, empty cells, categories."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedtailor.data.own.names import safe_name

MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?")
"""Cells of a feature, in lower case, that are empty. Among text, ``none`` is a category, such as no
medication."""

TRUTH = {"true": 1.0, "false": 0.0}

MAX_TEXTS = 1_000
"""Most different texts of a column that are kept to describe it; far more than a column of
categories may have."""

_SPELLINGS = 10 * MAX_TEXTS  # of a column that are remembered, so that each is looked at once
_EXACT = 2**53
"""Whole numbers below this are exact as floats."""


def number_in(cell: str) -> float:
    """Return the number in a cell.

    Raises:
        ValueError: it holds none.
    """
    if "_" in cell:  # Python reads 1_2 as 12
        raise ValueError(cell)
    return float(cell)


def number_or_none(cell: str) -> float | None:
    """Return the number in a cell: NaN for an empty cell, 1 and 0 for true and false, None for
    other text.
    """
    word = cell.strip().lower()
    if word in MISSING:
        return float("nan")
    if word in TRUTH:
        return TRUTH[word]

    try:
        return number_in(cell)
    except ValueError:
        return None


def text_in(cell: str) -> str:
    """Return the text in a cell as the name of a category, safe to print; empty for an empty cell.

    Numbers have one spelling, whatever the table: ``1``, ``1.0`` and ``01`` are the same.

    >>> text_in(" 1.0 "), text_in("Male"), text_in("N/A"), text_in("none"), text_in("TRUE")
    ('1', 'Male', '', 'none', 'true')
    """
    text = cell.strip()
    word = text.lower()
    if word in MISSING and word != "none":
        return ""
    if word in TRUTH:
        return word

    try:
        number = number_in(text)
    except ValueError:
        return safe_name(text)

    if not number.is_integer():
        return repr(number)

    try:
        return str(int(text))  # exact, however many digits
    except ValueError:
        return str(int(number)) if abs(number) < _EXACT else repr(number)


def text_of(value: object) -> str:
    """Return a value as the text of a cell, empty if there is none; whole numbers have no point."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return str(value).strip()


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        number_in(text)
    except ValueError:
        return False
    return True


@dataclass
class Words:
    """The different texts of one column of one table."""

    codes: dict[str, int] = field(default_factory=dict)
    """A number for every text, in the order of appearance."""
    filled: int = 0
    """How many cells are not empty; those after the last text that was kept are not counted."""
    first: dict[bool, tuple[int, str]] = field(default_factory=dict)
    """Line and text of the first cell that is a number, true or false (True), and of the first that
    is not (False)."""
    is_full: bool = False
    """Whether there are more texts than were kept."""

    spellings: dict[str, float] = field(default_factory=dict)
    """What ``add`` returned for a cell."""

    def add(self, cell: str, line: int, most: int | None = MAX_TEXTS) -> float:
        """Return the code of a cell; NaN for an empty one."""
        code = self.spellings.get(cell)
        if code is None:
            code = self._find(cell, line, most)
            if len(self.spellings) < _SPELLINGS:
                self.spellings[cell] = code
        if not self.is_full and not math.isnan(code):
            self.filled += 1
        return code

    def _find(self, cell: str, line: int, most: int | None) -> float:
        text = text_in(cell)
        if not text:
            return float("nan")
        if text in self.codes:
            return float(self.codes[text])

        if most is not None and len(self.codes) >= most:
            self.is_full = True
            return 0.0

        self.first.setdefault(is_number(text) or text in TRUTH, (line, text))
        self.codes[text] = len(self.codes)
        return float(self.codes[text])
