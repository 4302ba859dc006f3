"""Tables to predict: read with the columns of the tables in training, so that equal cells give
equal bits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.columns import Columns, Texts
from fedtailor.data.files import read_bytes
from fedtailor.data.own.cells import text_of
from fedtailor.data.own.csv_table import read_csv
from fedtailor.data.own.findings import (
    MAX_TOTAL_BYTES,
    Findings,
    Place,
    Problem,
    Unusable,
    counted,
    show,
)
from fedtailor.data.own.layout import TABLES
from fedtailor.data.own.names import listed, safe_name
from fedtailor.data.own.parquet_table import feature_of_texts, read_parquet
from fedtailor.data.own.table import Cells, Roles, Table, Wanted, check_table, header_names


class LikeTable(NamedTuple):
    """A table with the features of the tables in training."""

    x: np.ndarray | None  # (rows, features), float32
    """None after an error."""
    lines: Sequence[int]
    """Line of every row in a CSV file, where the header is line 1; number of the row in a Parquet
    file, from 1, and in a data frame, from 0."""
    problems: list[Problem]
    """Errors, and a warning for every column with empty cells or unseen categories."""


def read_table_like(path: Path, columns: Columns) -> LikeTable:
    """Return the features of a CSV or Parquet table.

    Its columns may be in any order. Those of ``columns.unused``, such as the label, may be there
    and are ignored. Others that are missing or extra are errors.

    Args:
        path: the table.
        columns: how cells become features, ``Dataset.columns`` of the data in training.

    Example:
        >>> from fedtailor.data.columns import Column
        >>> read_table_like(Path("missing.csv"), Columns((Column("age", "number"),))).problems[0].kind
        'unreadable_file'
    """
    findings = Findings()
    place = Place(findings, "", safe_name(path.name))
    table = None
    if path.suffix.lower() not in TABLES:
        place.error("unknown_layout", f"Only {', '.join(TABLES)} files can be read as tables.")
    else:
        read = read_csv if path.suffix.lower() == ".csv" else read_parquet
        try:
            table = read(
                read_bytes(path, {}, folder=path.parent),
                place,
                _wanted(columns),
                limit=MAX_TOTAL_BYTES,
            )
        except DataError as error:
            place.error("unreadable_file", error.message)
        except Unusable as error:
            place.error(error.kind, error.message)

    return _encode(table, columns, findings)


def read_frame_like(frame: Any, columns: Columns) -> LikeTable:
    """Return the features of a data frame, such as one of pandas; as :func:`read_table_like` does
    for a file.

    Args:
        frame: anything with ``columns``, and ``frame[name].to_numpy()``.
        columns: how cells become features.

    Raises:
        DataError: it is no data frame.
    """
    findings = Findings()
    place = Place(findings, "", "data frame")
    wanted = _wanted(columns)
    try:
        names = list(frame.columns)
        roles = wanted.find_roles([str(name) for name in names], place)
        given = (
            []
            if roles is None
            else [np.asarray(frame[names[index]].to_numpy()) for index in roles.features]
        )
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        allowed = "a data frame, with columns and frame[name].to_numpy()"
        got = type(frame).__qualname__
        raise DataError(
            f"expected {allowed}, got {got}.", key="frame", allowed=allowed, got=got
        ) from error

    if roles is None:
        return _encode(None, columns, findings)

    rows = len(given[0])
    cells = Cells(np.empty((rows, len(given)), dtype=np.float32), range(rows), [])
    for position, (name, values) in enumerate(zip(roles.feature_names, given, strict=True)):
        with np.errstate(
            over="ignore"
        ):  # values beyond 32-bit floats become infinite, which is checked later
            if values.dtype.kind in "buif" and name not in wanted.as_text:
                cells.values[:, position] = values
            else:
                texts = [text_of(value) for value in values.tolist()]
                cells.values[:, position] = feature_of_texts(texts, name, cells, wanted)

    return _encode(check_table(place, roles, cells), columns, findings)


def _wanted(columns: Columns) -> Wanted:
    known = set(columns.names)

    def expected(names: Collection[str]) -> int:
        return len(known.intersection(map(safe_name, names)))

    return Wanted(
        find_roles=lambda header, place: _find_roles(header, place, columns),
        expected=expected,
        as_text=frozenset(column.name for column in columns.columns if column.kind == "category"),
        only_known=True,
    )


def _find_roles(header: Sequence[str], place: Place, columns: Columns) -> Roles | None:
    """Return the columns of a header that are features; None, with the problem added, if some are
    missing or extra.
    """
    names = header_names(header, place)
    if names is None:
        return None

    present = set(names)
    known = set(columns.names)
    missing = [name for name in columns.names if name not in present]
    if missing:
        what = counted(len(missing), "column is", "columns are")
        place.error(
            "missing_column", f"{what} missing, which the data in training had: {listed(missing)}."
        )

    ignored = set(columns.unused)
    extra = [name for name in names if name not in known and name not in ignored]
    if extra:
        what = counted(len(extra), "column is", "columns are")
        place.error(
            "extra_column", f"{what} there that the data in training did not have: {listed(extra)}."
        )

    if missing or extra:
        return None

    return Roles(names, None, tuple(index for index, name in enumerate(names) if name in known))


def _encode(table: Table | None, columns: Columns, findings: Findings) -> LikeTable:
    if table is None:
        return LikeTable(None, (), findings.problems)

    cells: dict[str, np.ndarray | Texts] = {}
    for position, name in enumerate(table.roles.feature_names):
        values = table.cells.values[:, position]
        if name in table.cells.texts:
            codes = np.where(np.isnan(values), -1, values).astype(np.int64)
            cells[name] = Texts(codes, tuple(table.cells.texts[name].codes))
        else:
            cells[name] = values

    encoded = columns.encode(cells)
    for name, count in encoded.missing.items():
        message = (
            f"Column {show(name)} has {counted(count, 'empty cell')}, replaced as in training."
        )
        table.place.warning("missing_value", message)

    for name, count in encoded.unseen.items():
        what = counted(count, "cell", "cells")
        message = f"Column {show(name)} has {what} with a category that no training example had: all their features are 0."
        table.place.warning("unseen_category", message)

    return LikeTable(encoded.x, table.cells.lines, findings.problems)
