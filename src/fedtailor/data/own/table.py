"""The reader of tables: CSV and Parquet files, and data frames, become the same columns.

CSV is read with Python's csv module even if pyarrow is installed: types are not guessed, and every
problem has its row. Parquet needs pyarrow (``fedtailor[data]``).
"""

from __future__ import annotations

import csv
import io
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.columns import MAX_CATEGORIES
from fedtailor.data.files import read_bytes
from fedtailor.data.own.cells import Cells, Table
from fedtailor.data.own.findings import FindingPlace, Unusable
from fedtailor.data.own.kinds import DATES, SERIES
from fedtailor.data.own.names import listed, safe_name, show
from fedtailor.data.own.patterns import cell_of

TABLES = (".csv", ".parquet", ".pq")
"""Endings of the names of tables, in upper or lower case."""

PARQUET = TABLES[1:]

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_LONGEST_HEADER = 2**20
"""Most characters of the first line from which the delimiter is recognized."""

_BLOCK = 2**17
"""Cells of a CSV table that are held as text at once."""


@dataclass(frozen=True)
class Sought:
    """What the reader of a table knows of its columns in advance."""

    is_expected: Callable[[str], bool]
    """Whether a column of that name is looked for; the delimiter is one that gives such columns."""
    keeps_texts: Callable[[str], bool]
    """Whether all texts of the column of that name are kept, however many they are."""


def read_table(
    path: Path, place: FindingPlace, sought: Sought, digests: dict[str, str], *, limit: int
) -> Table | None:
    """Read a CSV or Parquet file; None, with the problems added, if it cannot be used.

    Args:
        path: the file; every name that does not end as that of a Parquet file is CSV.
        place: gets the problems.
        sought: what is known of its columns.
        digests: gets the SHA-256 of the file.
        limit: most bytes, 4 for each cell.
    """
    read = _read_parquet if path.suffix.lower() in PARQUET else _read_csv
    try:
        raw = read_bytes(path, digests, folder=path.parent)
        return read(raw, place, sought, limit)
    except DataError as error:
        place.add("unreadable_file", error.message, severity="error")
    except Unusable as error:
        place.add(error.kind, error.message, severity="error")

    return None


def read_header(header: Iterable[str], place: FindingPlace) -> tuple[str, ...] | None:
    """Return the names of columns, safe to print; None, with the problem added, if wrong."""
    # All messages and features use these names, so they are unique and safe.
    names = tuple(safe_name(name.strip()) for name in header)
    if "" in names:
        columns = listed(names, 20)
        message = f"Column {names.index('') + 1} has no name; the columns are: {columns}."
        place.add("unnamed_column", message)
        return None

    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        place.add("duplicate_column", f"Column {show(repeated[0])} appears more than once.")
        return None

    return names


# CSV


def _read_csv(raw: bytes, place: FindingPlace, sought: Sought, limit: int) -> Table | None:
    """Read UTF-8 with commas, semicolons or tabs between the cells; blank lines are ignored."""
    if not raw.strip():
        raise Unusable("empty_file", "The file is empty: it has no header.")

    reader = None
    try:
        # Spreadsheets write a mark of the byte order, which utf-8-sig removes.
        text = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", newline="")
        # Where a comma is the decimal point, spreadsheets write semicolons.
        delimiter = _find_delimiter(text.readline(_LONGEST_HEADER), sought)
        text.seek(0)
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        names = read_header(next(reader), place)
        if names is None:
            return None

        if delimiter != ",":
            place.findings.note(f"Tables have {_DELIMITERS[delimiter]} between their cells.")

        return _read_rows(reader, names, place, sought, limit)
    except UnicodeDecodeError as error:
        message = f"The file is not UTF-8: {_first_wrong_byte(raw)}."
        raise Unusable("wrong_encoding", message) from error
    except csv.Error as error:
        line = reader.line_num if reader else 1
        raise Unusable("broken_table", f"Line {line} cannot be read: {error}.") from error


def _find_delimiter(first: str, sought: Sought) -> str:
    """Return the delimiter that gives the most expected columns, or else the most columns."""

    def fit(delimiter: str) -> tuple[int, int]:
        try:
            names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
        except csv.Error:
            return 0, 0

        expected = sum(sought.is_expected(safe_name(name)) for name in names)
        return expected if len(names) > 1 else 0, len(names)

    return max(_DELIMITERS, key=fit)


def _read_rows(
    reader: Any, names: Sequence[str], place: FindingPlace, sought: Sought, limit: int
) -> Table:
    """Read the rows below the header, some at a time."""
    lines = array("q")
    ragged: list[tuple[int, int]] = []
    columns = [Cells(keeps_texts=sought.keeps_texts(name)) for name in names]

    def whole_rows() -> Iterator[list[str]]:
        for row in reader:
            if len(row) == len(names):
                lines.append(reader.line_num)
                yield row
            # Rows of another length are told together, after the types of the columns.
            elif row:
                ragged.append((reader.line_num, len(row)))

    rows = whole_rows()
    while block := list(islice(rows, max(_BLOCK // len(names), 1))):
        if 4 * len(lines) * len(names) > limit:
            message = f"At most {limit} bytes, 4 for each cell, can be read"
            raise Unusable("too_large", f"{message}; line {lines[-1]} exceeds the limit.")

        # By column: few texts of a block are held at once, and numbers replace them.
        for cells, texts in zip(columns, zip(*block, strict=True), strict=True):
            cells.add(texts)

    return Table(place, dict(zip(names, columns, strict=True)), lines, ragged=ragged)


def _first_wrong_byte(raw: bytes) -> str:
    """Return the first byte that is not UTF-8, and its line."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return f"byte 0x{raw[error.start]:02x} in line {line}"

    return "it ends within a character"


# Parquet


def _read_parquet(raw: bytes, place: FindingPlace, sought: Sought, limit: int) -> Table | None:
    try:
        import pyarrow.parquet
    except ImportError as error:
        message = (
            "Parquet files need pyarrow, which is not installed: pip install 'fedtailor[data]', or "
            "use CSV."
        )
        raise Unusable("pyarrow_missing", message) from error

    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(raw))
        # A few kilobytes can announce terabytes.
        _check_size(file.metadata, limit)
        names = read_header(file.schema_arrow.names, place)
        if names is None:
            return None

        content = file.read()
        columns = {}
        refused = {}
        for name, column in zip(names, content.columns, strict=True):
            reason = _refuse_type(column.type)
            if reason is not None:
                refused[name] = reason
                columns[name] = Cells()
            else:
                columns[name] = _cells_of(column, keeps_texts=sought.keeps_texts(name))

        return Table(place, columns, range(1, content.num_rows + 1), refused)
    except Unusable:
        raise
    except Exception as error:  # pyarrow raises OSError, its own exceptions, and Python's
        first_line = str(error).partition("\n")[0]
        message = f"The Parquet file is damaged: {type(error).__name__}: {first_line.rstrip('.')}."
        raise Unusable("damaged_table", message) from error


def _check_size(metadata: Any, limit: int) -> None:
    """Check the size that the file announces, before anything is decompressed."""
    groups = range(metadata.num_row_groups)
    announced = sum(metadata.row_group(group).total_byte_size for group in groups)
    size = max(announced, 4 * metadata.num_rows * metadata.num_columns)
    if size > limit:
        message = f"{metadata.num_rows} rows would take {size} bytes; at most {limit} can be read."
        raise Unusable("too_large", message)


def _refuse_type(kind: Any) -> tuple[str, str] | None:
    """Return kind and sentence of the problem if a column holds neither numbers nor text."""
    import pyarrow.types as kinds

    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
    if _is_text(plain) or any(test(plain) for test in (*numbers, kinds.is_null)):
        return None

    if kinds.is_temporal(plain):
        return "dates", f"holds dates or times ({kind}). {DATES}"

    if kinds.is_list(plain) or kinds.is_large_list(plain) or kinds.is_fixed_size_list(plain):
        return "time_series", f"holds lists. {SERIES}"

    return "wrong_column_type", f"must hold numbers or text, but holds {show(kind)}."


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _cells_of(column: Any, *, keeps_texts: bool) -> Cells:
    """Return the cells of a column of pyarrow's that holds numbers or text."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)

    # One text for each different value, as in a CSV file.
    is_text = _is_text(column.type)
    encoded = column.combine_chunks().dictionary_encode()
    if not is_text and not keeps_texts and len(encoded.dictionary) > MAX_CATEGORIES:
        return Cells.of_numbers(np.asarray(column.cast("float64", safe=False).to_numpy()))

    texts = [cell_of(value) for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    if encoded.null_count:
        texts.append("")

    return Cells.of_codes(codes, texts, keeps_texts=keeps_texts)
