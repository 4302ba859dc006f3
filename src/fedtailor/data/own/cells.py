"""Tables in memory, whatever their file: a column is few different texts, or plain numbers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedtailor.core.text import counted, quoted
from fedtailor.data.columns import MAX_CATEGORIES, Decimal
from fedtailor.data.own.findings import FindingPlace
from fedtailor.data.own.kinds import SEVERAL_LABELS
from fedtailor.data.own.patterns import (
    THOUSANDS_POINT,
    category_in,
    cell_of,
    is_number,
    leave_out_text,
    matches,
    number_in,
    number_or_none,
)

MAX_TEXTS = 1_000
"""Most different texts of a column that are kept to describe it; far more than a column of
categories may have."""


Rewrite = Callable[[str], str]


class At(NamedTuple):
    """The first row in which something is, its text, and how many rows have it."""

    row: int
    text: str = ""
    num_rows: int = 1


def first_at(is_wrong: np.ndarray) -> At | None:
    """Return the first row where ``is_wrong`` (rows,) is true; None if there is none."""
    rows = np.flatnonzero(is_wrong)
    return At(int(rows[0]), num_rows=len(rows)) if len(rows) else None


class _Texts(dict[str, int]):
    """The different texts of a column, numbered in the order of appearance; each is read once."""

    def __init__(self) -> None:
        self.numbers = array("d")
        """The number in every text; NaN in those below."""
        self.words: list[int] = []
        """The positions of those that are text."""
        self.gaps: list[int] = []
        """The positions of those that mean an empty cell among numbers."""

    def __missing__(self, text: str) -> int:
        code = len(self)
        self[text] = code
        number = number_or_none(text)
        if number is None:
            self.words.append(code)
        elif number != number:
            self.gaps.append(code)

        self.numbers.append(float("nan") if number is None else number)
        return code


class Cells:
    """The cells of one column of a table.

    While there are few different texts, every cell is the position of its text. That is enough for
    columns of categories, and to tell later what a column holds. A column with more of them can
    only hold numbers, which are then all that is kept.

    Args:
        keeps_texts: whether all texts are kept, however many they are.
        rewrite: changes texts before they are looked at, such as a decimal comma to a point.

    Example:
        >>> cells = Cells()
        >>> cells.add(["1.5", "", "high", "1.5"])
        >>> cells.texts, cells.codes.tolist(), cells.numbers.tolist()
        (['1.5', '', 'high'], [0, 1, 2, 0], [1.5, nan, nan, 1.5])
    """

    def __init__(self, *, keeps_texts: bool = False, rewrite: Rewrite | None = None) -> None:
        self.keeps_texts = keeps_texts
        self.is_typed = False
        """Whether the file itself says that these are numbers, so that nobody wrote a comma."""
        self.has_thousands_point = False
        """Whether a number whose text was not kept may separate thousands, such as 1.250."""
        self.has_decimal_point = False
        """Whether a number whose text was not kept has a point that cannot separate thousands."""
        self._rewrite = rewrite
        self._texts = _Texts()
        self._codes = array("i")
        self._numbers: array[float] | None = None
        self._filled = 0
        self._text_at: At | None = None
        self._words: Counter[str] = Counter()

    @classmethod
    def of_codes(
        cls,
        codes: np.ndarray,
        texts: Iterable[str],
        *,
        keeps_texts: bool,
        rewrite: Rewrite | None = None,
    ) -> Cells:
        """Return cells (rows,) that are positions in texts; a text may appear twice."""
        cells = cls(keeps_texts=keeps_texts, rewrite=rewrite)
        numbers = np.array([cells._texts[text] for text in cells._read(texts)], dtype=np.int32)
        cells._codes.frombytes(numbers[codes].tobytes())
        cells._drop_texts()
        return cells

    @classmethod
    def of_numbers(cls, values: np.ndarray, rewrite: Rewrite | None = None) -> Cells:
        """Return cells (rows,) that are numbers; NaN is an empty cell."""
        if rewrite is not None:
            # Values that mean missing are few; each different number is looked at once.
            different, codes = np.unique(values, return_inverse=True)
            is_missing = [rewrite(cell_of(value)) == "" for value in different.tolist()]
            values = np.where(np.array(is_missing, dtype=bool)[codes], np.nan, values)

        cells = cls()
        cells.is_typed = True
        cells._numbers = array("f", _as_float32(values).tobytes())
        for value in values[:1].tolist():
            cells._texts[cell_of(value)]

        return cells

    @classmethod
    def of_values(
        cls, values: np.ndarray, *, keeps_texts: bool, rewrite: Rewrite | None = None
    ) -> Cells:
        """Return the cells of a column of a data frame (rows,), of numbers or objects."""
        if values.dtype.kind in "buif" and not keeps_texts:
            return cls.of_numbers(values, rewrite)

        cells = cls(keeps_texts=keeps_texts, rewrite=rewrite)
        cells.add([cell_of(value) for value in values.tolist()])
        return cells

    def add(self, cells: Iterable[str]) -> None:
        """Add the cells of more rows."""
        texts = self._read(cells)
        if self._numbers is not None:
            self._add_numbers(list(texts))
            return

        self._codes.extend(map(self._texts.__getitem__, texts))
        self._drop_texts()

    def _read(self, cells: Iterable[str]) -> Iterable[str]:
        texts = map(str.strip, cells)
        return texts if self._rewrite is None else map(self._rewrite, texts)

    def _drop_texts(self) -> None:
        """Keep only the numbers, if there are too many texts or if all are numbers."""
        most = MAX_TEXTS if self._texts.words else MAX_CATEGORIES
        if self.keeps_texts or len(self._texts) <= most:
            return

        # Later questions about the texts are answered from what is kept here.
        self._filled = self.num_filled
        self._text_at = self.text_at
        self._words = self.missing_words
        self._numbers = array("f", self.numbers.tobytes())
        self._codes = array("i")

    def _add_numbers(self, cells: Sequence[str]) -> None:
        assert self._numbers is not None
        self._look_for_points(cells)
        try:
            self._numbers.extend([number_in(cell) for cell in cells])
            return
        except ValueError:  # an empty cell, or text
            pass

        for cell in cells:
            number = number_or_none(cell)
            if number is None:
                row, text, count = self._text_at or At(len(self._numbers), cell, 0)
                self._text_at = At(row, text, count + 1)
                # One word beyond the limit shows that there are more.
                if len(self._texts.words) < MAX_TEXTS + 1:
                    self._texts[cell]
            elif number != number and cell:
                self._words[cell] += 1

            self._numbers.append(float("nan") if number is None else number)

    def _look_for_points(self, cells: Sequence[str]) -> None:
        """Remember what the points in numbers can mean, because their texts are not kept."""
        if self.has_decimal_point:  # which decides
            return

        points = [cell for cell in cells if "." in cell and is_number(cell)]
        thousands = [matches(THOUSANDS_POINT, cell) for cell in points]
        self.has_thousands_point |= any(thousands)
        self.has_decimal_point = not all(thousands)

    def __len__(self) -> int:
        return len(self._codes if self._numbers is None else self._numbers)

    @property
    def texts(self) -> list[str]:
        """The different texts in the order of appearance, without spaces around them."""
        return list(self._texts)

    @property
    def is_full(self) -> bool:
        """Whether there are more different texts than were kept."""
        return self._numbers is not None

    @property
    def codes(self) -> np.ndarray:
        """The positions of the cells in :attr:`texts` (rows,); only if all texts were kept."""
        return np.frombuffer(self._codes, dtype=np.int32)

    @property
    def numbers(self) -> np.ndarray:
        """The cells as numbers (rows,), float32; NaN for empty cells and for text."""
        if self._numbers is not None:
            return np.frombuffer(self._numbers, dtype=np.float32)

        return np.asarray(_as_float32(np.frombuffer(self._texts.numbers))[self.codes])

    @property
    def missing_words(self) -> Counter[str]:
        """How many cells hold which word for a missing number, such as ``n/a``."""
        if self._numbers is not None:
            return self._words

        counts = np.bincount(self.codes, minlength=len(self._texts))
        texts = self.texts
        return Counter({texts[code]: int(counts[code]) for code in self._texts.gaps if texts[code]})

    @property
    def num_filled(self) -> int:
        """How many cells have a value; those after the last text that was kept are not counted."""
        if self._numbers is not None:
            return self._filled

        texts = self.texts
        empty = [code for code in self._texts.gaps if not category_in(texts[code])]
        return int(np.isin(self.codes, empty, invert=True).sum())

    @property
    def text_at(self) -> At | None:
        """The first row whose cell is text, and how many are; None if all are numbers or empty."""
        return self._text_at if self._numbers is not None else self._at(self._texts.words)

    def look_up(self, value_of: Callable[[str], float], kind: DTypeLike) -> np.ndarray:
        """Return what a function says of the text of every cell (rows,); as :attr:`codes`."""
        values = np.array([value_of(text) for text in self._texts], dtype=kind)
        return np.asarray(values[self.codes])

    def at(self, is_wrong: Callable[[str], bool]) -> At | None:
        """Return the first row with such a text, and how many have one; None if there is none."""
        return self._at([code for text, code in self._texts.items() if is_wrong(text)])

    def _at(self, positions: Sequence[int]) -> At | None:
        at = first_at(np.isin(self.codes, positions)) if positions else None
        return at and at._replace(text=self.texts[self.codes[at.row]])


def _as_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # values beyond become infinite, which is checked later
        return values.astype(np.float32)


@dataclass(frozen=True)
class Table:
    """A table as it was read."""

    place: FindingPlace
    columns: dict[str, Cells]
    """By name, safe to print, in the order of the file."""
    lines: Sequence[int]
    """Line of every row in a CSV file, where the header is line 1; number of the row in a Parquet
    file, from 1."""
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Columns of a type that cannot be used: kind and sentence of the problem."""
    delimiter: str = ""
    """Between the cells of a CSV file; empty for others."""
    ragged: Sequence[tuple[int, int]] = ()
    """Line and length of every row that is not as long as the header; they are left out."""
    decimal: Decimal = "auto"
    """What commas are in its numbers; auto: there are none."""
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The cells of some columns as they stand in the file, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self.columns)

    def check_rows(self) -> None:
        """Add a problem for every row that is not as long as the header."""
        for line, length in self.ragged:
            cells = f"The row has {length} cells, the header {len(self.columns)}."
            self.place.add("ragged_row", cells, line)

    def check_types(self, names: Iterable[str], label: str = "") -> None:
        """Add the problems of those of some columns that cannot be used."""
        for name in filter(self.refused.__contains__, names):
            kind, sentence = self.refused[name]
            # A list of labels is not a series.
            if kind == "time_series" and name == label:
                kind = "several_labels"
                sentence = f"holds lists. {SEVERAL_LABELS}"
            elif name != label:
                sentence += f" To leave it out: {leave_out_text(name)}."

            self.place.add(kind, f"Column {quoted(name)} {sentence}", severity="error")

    def check_numbers(self, names: Iterable[str]) -> None:
        """Add the problems of those of some columns that hold infinite numbers."""
        for name in names:
            at = first_at(np.isinf(self.columns[name].numbers))
            self.check_cells("not_finite", name, "values beyond 32-bit floats", at)

    def check_cells(self, kind: str, name: str, what: str, at: At | None) -> None:
        """Add the first row in which a cell of a column is wrong, and how many there are.

        Args:
            kind: of the problem.
            name: of the column.
            what: what the wrong cells have, after "has".
            at: the first of them; None if all cells are right.
        """
        if at is None:
            return

        line = self.lines[at.row]
        text = f"{quoted(at.text)} in " if at.text else "in "
        rows = counted(at.num_rows, "row")
        message = f"Column {quoted(name)} has {what} in {rows}; the first is {text}row {line}."
        self.place.add(kind, message, line, severity="error")
