"""The reader of Parquet tables, which needs pyarrow (``fedtailor[data]``)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedtailor.data.own.findings import Place, Unusable, show
from fedtailor.data.own.table import Cells, Columns, Table, check_table, find_columns


def read_parquet(raw: bytes, place: Place, label_column: str, *, limit: int) -> Table | None:
    """Return the table; None, with the problems added, if it cannot be used. Rows are counted from 1.

    Raises:
        Unusable: pyarrow is not installed, the file is damaged, or has more than ``limit`` bytes.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        message = "Parquet files need pyarrow, which is not installed: pip install 'fedtailor[data]', or use CSV."
        raise Unusable("pyarrow_missing", message) from error
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(raw))
        _check_size(file.metadata, limit)
        names = file.schema_arrow.names
        columns = find_columns(names, place, label_column)
        if columns is None or not _check_types(file.schema_arrow, columns, place):
            return None
        table = file.read(columns=[names[index] for index in _used(columns)])
        read = set(table.column_names)
        by_index = [table.column(name) if name in read else None for name in names]
        cells = _cells(by_index, columns)
    except Unusable:
        raise
    except Exception as error:  # pyarrow raises OSError, its own exceptions, and Python's on damaged files
        first_line = str(error).partition("\n")[0]
        message = f"The Parquet file is damaged: {type(error).__name__}: {first_line.rstrip('.')}."
        raise Unusable("damaged_table", message) from error
    return check_table(place, columns, cells)


def _check_size(metadata: Any, limit: int) -> None:
    """Check the size that the file announces, before anything is decompressed."""
    announced = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    size = max(announced, 4 * metadata.num_rows * metadata.num_columns)
    if size > limit:
        message = f"The {metadata.num_rows} rows would take {size} bytes; at most {limit} can be read."
        raise Unusable("too_large", message)


def _used(columns: Columns) -> list[int]:
    named = [index for index in (columns.label, columns.split, columns.image) if index is not None]
    return [*named, *columns.features]


def _check_types(schema: Any, columns: Columns, place: Place) -> bool:
    """Return whether every used column holds numbers or text; add the problem of those that do not."""
    import pyarrow.types as kinds

    fine = True
    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal, kinds.is_null)
    for index in _used(columns):
        kind = schema.field(index).type
        plain = kind.value_type if kinds.is_dictionary(kind) else kind
        if not _is_text(kind) and not any(test(plain) for test in numbers):
            message = f"Column {show(columns.header[index])} must hold numbers or text, but holds {show(kind)}."
            place.error("wrong_column_type", message)
            fine = False
    return fine


def _cells(table: Sequence[Any], columns: Columns) -> Cells:
    """Return the cells of all rows; ``table`` has the columns of the header, None for unused ones."""
    labels = _texts(table[columns.label])
    values = np.empty((len(labels), len(columns.features)), dtype=np.float32)
    cells = Cells(values, range(1, len(labels) + 1), labels)
    if columns.split is not None:
        cells.splits = _texts(table[columns.split])
    if columns.image is not None:
        cells.images = _texts(table[columns.image])
    for position, index in enumerate(columns.features):
        with np.errstate(over="ignore"):  # values beyond 32-bit floats become infinite, which is checked later
            values[:, position] = _numbers(table[index], columns.header[index], cells)
    return cells


def _texts(column: Any) -> list[str]:
    """Return the values as text, empty for missing ones."""
    return ["" if value is None else str(value).strip() for value in column.to_pylist()]


def _numbers(column: Any, name: str, cells: Cells) -> np.ndarray:
    """Return the values (rows,) as floats: NaN for missing ones; text is counted."""
    if not _is_text(column.type):
        return np.asarray(column.cast("float64", safe=False).to_numpy())
    given = [(row, text) for row, text in enumerate(column.to_pylist()) if text is not None]
    if given:
        first_row, first_text = given[0]
        cells.texts[name] = (len(given), first_row + 1, first_text)
    values = np.full(len(column), np.nan)
    values[[row for row, _ in given]] = 0.0
    return values


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(kinds.is_string(plain) or kinds.is_large_string(plain) or kinds.is_string_view(plain))
