"""The reader of CSV tables in UTF-8, with commas, semicolons or tabs between the cells.

It uses Python's csv module even if pyarrow is installed: types are not guessed, and every problem has its row.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator

import numpy as np

from fedtailor.data.own.findings import Place, Unusable
from fedtailor.data.own.table import MISSING, Cells, Columns, Table, check_table, find_columns

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
LONGEST_HEADER = 2**20
"""Most characters of the first line from which the delimiter is recognized."""

TRUTH = {"true": 1.0, "false": 0.0}


def read_csv(raw: bytes, place: Place, label_column: str, *, limit: int) -> Table | None:
    """Return the table; None, with the problems added, if it cannot be used.

    The delimiter is the one of ``DELIMITERS`` with which the header has the label column, else the one that gives the
    most columns. Rows are named by their line in the file, where the header is line 1; blank lines are ignored.

    Raises:
        Unusable: the file is not UTF-8 or empty, has unmatched quotes, or more than ``limit`` bytes of features.
    """
    if not raw.strip():
        raise Unusable("empty_file", "The file is empty: it has no header.")
    lines = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", newline="")
    reader = None
    try:
        delimiter = _delimiter(lines.readline(LONGEST_HEADER), label_column)
        lines.seek(0)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        columns = find_columns(next(reader), place, label_column)
        if columns is None:
            return None
        note = f"Tables have {DELIMITERS[delimiter]} between their cells."
        if delimiter != "," and note not in place.findings.notes:
            place.findings.notes.append(note)
        rows = ((reader.line_num, row) for row in reader)
        complete, cells = _read_cells(rows, place, columns, limit)
    except UnicodeDecodeError as error:
        raise Unusable("wrong_encoding", f"The file is not UTF-8: {_first_wrong_byte(raw)}.") from error
    except csv.Error as error:
        line = reader.line_num if reader else 1
        raise Unusable("broken_table", f"Line {line} cannot be read: {error}.") from error
    table = check_table(place, columns, cells)
    return table if complete else None


def _first_wrong_byte(raw: bytes) -> str:
    """Return the first byte that is not UTF-8, and its line."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return f"byte 0x{raw[error.start]:02x} in line {line}"
    return "it ends within a character"


def _delimiter(first: str, label_column: str) -> str:
    """Return the character between the cells of the header."""

    def fit(delimiter: str) -> tuple[bool, int]:
        try:
            names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
        except csv.Error:
            return False, 0
        return label_column in names and len(names) > 1, len(names)

    return max(DELIMITERS, key=fit)


def _read_cells(
    rows: Iterator[tuple[int, list[str]]], place: Place, columns: Columns, limit: int
) -> tuple[bool, Cells]:
    """Return whether all rows, given with their line, are as long as the header, and the cells of those that are."""
    lines = array("q")
    values = array("f")
    splits: list[str] = []
    images: list[str] = []
    cells = Cells(np.empty(0, dtype=np.float32), lines, [])
    same: dict[str, str] = {}  # one text object per label
    complete = True
    for line, row in rows:
        if not row:
            continue
        if len(row) != len(columns.header):
            place.error("ragged_row", f"The row has {len(row)} cells, the header {len(columns.header)}.", line)
            complete = False
            continue
        lines.append(line)
        label = row[columns.label].strip()
        cells.labels.append(same.setdefault(label, label))
        if columns.split is not None:
            splits.append(row[columns.split].strip())
        if columns.image is not None:
            images.append(row[columns.image].strip())
        values.extend(_numbers(row, columns, cells, line))
        if 4 * len(values) > limit:
            message = f"At most {limit} bytes of features, 4 for each, can be read; line {line} exceeds the limit."
            raise Unusable("too_large", message)
    cells.values = np.frombuffer(values, dtype=np.float32).reshape(len(lines), len(columns.features))
    cells.splits = None if columns.split is None else splits
    cells.images = None if columns.image is None else images
    return complete, cells


def _numbers(row: list[str], columns: Columns, cells: Cells, line: int) -> list[float]:
    """Return the features of a row: NaN for an empty cell, 0 for text, which is counted."""
    try:
        return [_number(row[index]) for index in columns.features]
    except ValueError:
        return [_number_or_count(row[index], columns.header[index], cells, line) for index in columns.features]


def _number(cell: str) -> float:
    if "_" in cell:  # Python reads 1_2 as 12
        raise ValueError(cell)
    return float(cell)


def _number_or_count(cell: str, column: str, cells: Cells, line: int) -> float:
    word = cell.strip().lower()
    if word in MISSING:
        return float("nan")
    if word in TRUTH:
        return TRUTH[word]
    try:
        return _number(cell)
    except ValueError:
        count, first, text = cells.texts.get(column, (0, line, cell))
        cells.texts[column] = (count + 1, first, text)
        return 0.0
