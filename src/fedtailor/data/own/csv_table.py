"""The reader of CSV tables in UTF-8, with commas, semicolons or tabs between the cells.

It uses Python's csv module even if pyarrow is installed: types are not guessed, and every problem
has its row.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from fedtailor.data.own.cells import MAX_TEXTS, Words, number_in, number_or_none
from fedtailor.data.own.findings import Place, Unusable
from fedtailor.data.own.table import Cells, Roles, Table, Wanted, check_table

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
LONGEST_HEADER = 2**20
"""Most characters of the first line from which the delimiter is recognized."""

_FIRST_ROWS = 100
"""Rows after which reading starts again if a column turned out to hold text: most columns of text
show it at once."""


def read_csv(raw: bytes, place: Place, wanted: Wanted, *, limit: int) -> Table | None:
    """Return the table; None, with the problems added, if it cannot be used.

    The delimiter is the one of ``DELIMITERS`` with which the header has the expected columns, else
    the one that gives the most columns. Rows are named by their line in the file, where the header
    is line 1; blank lines are ignored.

    Raises:
        Unusable: the file is not UTF-8 or empty, has unmatched quotes, or more than ``limit`` bytes
            of features.
    """
    if not raw.strip():
        raise Unusable("empty_file", "The file is empty: it has no header.")

    reader = None
    try:
        lines = _decoded(raw)
        delimiter = find_delimiter(lines.readline(LONGEST_HEADER), wanted.expected)
        lines.seek(0)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        roles = wanted.find_roles(next(reader), place)
        if roles is None:
            return None

        note = f"Tables have {DELIMITERS[delimiter]} between their cells."
        if delimiter != "," and note not in place.findings.notes:
            place.findings.notes.append(note)

        reading = _Pass(roles, wanted, limit)
        while not reading.read(reader):
            wanted = wanted._replace(as_text=wanted.as_text | reading.new_texts)
            reading = _Pass(roles, wanted, limit)
            reader = csv.reader(_decoded(raw), delimiter=delimiter, strict=True)
            next(reader)
    except UnicodeDecodeError as error:
        raise Unusable(
            "wrong_encoding", f"The file is not UTF-8: {_first_wrong_byte(raw)}."
        ) from error
    except csv.Error as error:
        line = reader.line_num if reader else 1
        raise Unusable("broken_table", f"Line {line} cannot be read: {error}.") from error

    for line, length in reading.ragged:
        place.error(
            "ragged_row", f"The row has {length} cells, the header {len(roles.header)}.", line
        )

    table = check_table(place, roles, reading.cells)
    return None if reading.ragged else table


def _decoded(raw: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", newline="")


def _first_wrong_byte(raw: bytes) -> str:
    """Return the first byte that is not UTF-8, and its line."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return f"byte 0x{raw[error.start]:02x} in line {line}"
    return "it ends within a character"


def find_delimiter(first: str, expected: Callable[[Collection[str]], int]) -> str:
    """Return the character between the cells of a header; ``expected`` counts the columns that are
    looked for.
    """

    def fit(delimiter: str) -> tuple[int, int]:
        try:
            names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
        except csv.Error:
            return 0, 0

        return expected(names) if len(names) > 1 else 0, len(names)

    return max(DELIMITERS, key=fit)


class _Pass:
    """One pass over the rows of a table, with the cells that were read."""

    def __init__(self, roles: Roles, wanted: Wanted, limit: int) -> None:
        self.roles = roles
        self.wanted = wanted
        self.limit = limit
        self.new_texts: set[str] = set()
        """Features with text that were read as numbers."""
        self.ragged: list[tuple[int, int]] = []
        """Line and length of every row that is not as long as the header."""
        self.cells = Cells(np.empty(0, dtype=np.float32), array("q"), [])
        names = [name for name in roles.feature_names if name in wanted.as_text]
        self.cells.texts = {name: Words() for name in names}
        self._most_texts = None if wanted.only_known else MAX_TEXTS
        self._columns = [
            (index, roles.header[index], self.cells.texts.get(roles.header[index]))
            for index in roles.features
        ]

    def read(self, reader: Any) -> bool:
        """Read all rows. Return False if a column turned out to hold text: the table must be read
        again.
        """
        roles = self.roles
        lines = array("q")
        values = array("f")
        labels: list[str] = []
        splits: list[str] = []
        images: list[str] = []
        groups: list[str] = []
        named = (
            (roles.label, labels),
            (roles.split, splits),
            (roles.image, images),
            (roles.group, groups),
        )
        same: dict[str, str] = {}  # one text object per label or group

        for row in reader:
            if not row:
                continue

            line = reader.line_num
            if len(row) != len(roles.header):
                self.ragged.append((line, len(row)))
                continue

            lines.append(line)
            for index, texts in named:
                if index is not None:
                    text = row[index].strip()
                    texts.append(same.setdefault(text, text))

            values.extend(self._features(row, line))
            if 4 * len(values) > self.limit:
                message = f"At most {self.limit} bytes of features, 4 for each, can be read"
                raise Unusable("too_large", f"{message}; line {line} exceeds the limit.")

            if self.new_texts and len(lines) == _FIRST_ROWS:
                return False

        self.cells.values = np.frombuffer(values, dtype=np.float32).reshape(
            len(lines), len(roles.features)
        )
        self.cells.lines = lines
        self.cells.labels = labels
        self.cells.splits = None if roles.split is None else splits
        self.cells.images = None if roles.image is None else images
        self.cells.groups = None if roles.group is None else groups

        return not self.new_texts

    def _features(self, row: list[str], line: int) -> list[float]:
        """Return the features of a row: numbers, codes of texts, NaN for empty cells."""
        if not self.cells.texts:
            try:
                return [number_in(row[index]) for index in self.roles.features]
            except ValueError:
                pass
        return [self._value(row[index], name, words, line) for index, name, words in self._columns]

    def _value(self, cell: str, name: str, words: Words | None, line: int) -> float:
        if words is not None:
            return words.add(cell, line, self._most_texts)

        number = number_or_none(cell)
        if number is not None:
            return number

        if self.wanted.only_known:
            count, first, text = self.cells.wrong.get(name, (0, line, cell))
            self.cells.wrong[name] = (count + 1, first, text)
        else:
            self.new_texts.add(name)

        return float("nan")
