"""The reader of Parquet tables, which needs pyarrow (``fedtailor[data]``)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedtailor.data.own.cells import MAX_TEXTS, Words, number_or_none, text_of
from fedtailor.data.own.findings import Place, Unusable, show
from fedtailor.data.own.table import Cells, Roles, Table, Wanted, check_table
from fedtailor.data.own.text_columns import DATES, LISTS, SEVERAL_LABELS


def read_parquet(raw: bytes, place: Place, wanted: Wanted, *, limit: int) -> Table | None:
    """Return the table; None, with the problems added, if it cannot be used. Rows are counted from
    1.

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
        roles = wanted.find_roles(names, place)
        if roles is None or not _check_types(file.schema_arrow, roles, place):
            return None

        table = file.read(columns=[names[index] for index in _used(roles)])
        read = set(table.column_names)
        by_index = [table.column(name) if name in read else None for name in names]
        cells = _cells(by_index, roles, wanted)
    except Unusable:
        raise
    except (
        Exception
    ) as error:  # pyarrow raises OSError, its own exceptions, and Python's on damaged files
        first_line = str(error).partition("\n")[0]
        message = f"The Parquet file is damaged: {type(error).__name__}: {first_line.rstrip('.')}."
        raise Unusable("damaged_table", message) from error

    return check_table(place, roles, cells)


def _check_size(metadata: Any, limit: int) -> None:
    """Check the size that the file announces, before anything is decompressed."""
    announced = sum(
        metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)
    )
    size = max(announced, 4 * metadata.num_rows * metadata.num_columns)
    if size > limit:
        message = (
            f"The {metadata.num_rows} rows would take {size} bytes; at most {limit} can be read."
        )
        raise Unusable("too_large", message)


def _used(roles: Roles) -> list[int]:
    named = [
        index for index in (roles.label, roles.split, roles.image, roles.group) if index is not None
    ]
    return [*named, *roles.features]


def _check_types(schema: Any, roles: Roles, place: Place) -> bool:
    """Return whether every used column holds numbers or text; add the problem of those that do
    not.
    """
    import pyarrow.types as kinds

    fine = True
    numbers = (
        kinds.is_integer,
        kinds.is_floating,
        kinds.is_boolean,
        kinds.is_decimal,
        kinds.is_null,
    )

    for index in _used(roles):
        kind = schema.field(index).type
        plain = kind.value_type if kinds.is_dictionary(kind) else kind
        if _is_text(kind) or any(test(plain) for test in numbers):
            continue

        column = f"Column {show(roles.header[index])}"
        fine = False
        if index in roles.features and kinds.is_temporal(plain):
            place.error("dates", f"{column} holds dates or times ({kind}). {DATES}")
        elif kinds.is_list(plain) or kinds.is_large_list(plain) or kinds.is_fixed_size_list(plain):
            if index == roles.label:
                place.error("several_labels", f"{column} holds lists. {SEVERAL_LABELS}")
            else:
                place.error("time_series", f"{column} holds lists. {LISTS}")
        else:
            place.error(
                "wrong_column_type", f"{column} must hold numbers or text, but holds {show(kind)}."
            )

    return fine


def _cells(table: Sequence[Any], roles: Roles, wanted: Wanted) -> Cells:
    """Return the cells of all rows; ``table`` has the columns of the header, None for unused
    ones.
    """
    rows = max((len(column) for column in table if column is not None), default=0)
    values = np.empty((rows, len(roles.features)), dtype=np.float32)
    labels = [] if roles.label is None else _texts(table[roles.label])
    cells = Cells(values, range(1, rows + 1), labels)
    if roles.split is not None:
        cells.splits = _texts(table[roles.split])
    if roles.image is not None:
        cells.images = _texts(table[roles.image])
    if roles.group is not None:
        cells.groups = _texts(table[roles.group])

    for position, index in enumerate(roles.features):
        with np.errstate(
            over="ignore"
        ):  # values beyond 32-bit floats become infinite, which is checked later
            values[:, position] = _feature(table[index], roles.header[index], cells, wanted)

    return cells


def _texts(column: Any) -> list[str]:
    """Return the values as text, empty for missing ones. Whole numbers are written without a
    point.
    """
    return [text_of(value) for value in column.to_pylist()]


def _feature(column: Any, name: str, cells: Cells, wanted: Wanted) -> np.ndarray:
    """Return the values (rows,) as floats: numbers, codes of texts, NaN for missing ones."""
    if not _is_text(column.type) and name not in wanted.as_text:
        return np.asarray(column.cast("float64", safe=False).to_numpy())
    return feature_of_texts(_texts(column), name, cells, wanted)


def feature_of_texts(texts: Sequence[str], name: str, cells: Cells, wanted: Wanted) -> np.ndarray:
    """Return texts (rows,) as floats, as in a CSV table: a column holds text if one of its cells
    does.
    """
    numbers: Iterable[float | None] = []
    if name not in wanted.as_text:
        numbers = [number_or_none(text) for text in texts]
        wrong = [row for row, number in enumerate(numbers) if number is None]
        if not wrong:
            return np.array(numbers, dtype=np.float64)

        if wanted.only_known:
            cells.wrong[name] = (len(wrong), cells.lines[wrong[0]], texts[wrong[0]])
            return np.full(len(texts), np.nan)

    words = Words()
    cells.texts[name] = words
    most = None if wanted.only_known else MAX_TEXTS
    return np.array(
        [words.add(text, cells.lines[row], most) for row, text in enumerate(texts)],
        dtype=np.float64,
    )


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(
        kinds.is_string(plain) or kinds.is_large_string(plain) or kinds.is_string_view(plain)
    )
