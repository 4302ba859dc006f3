"""Tables to predict: equal cells give equal bits to those in training."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError, unknown_name
from fedtailor.core.text import counted, escaped, listed, quoted
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.columns import Columns, Texts
from fedtailor.data.own.cells import Cells, Rewrite, Table
from fedtailor.data.own.findings import MAX_TOTAL_BYTES, DataProblem, FindingPlace, Findings
from fedtailor.data.own.patterns import THOUSANDS_COMMA, category_in, matches
from fedtailor.data.own.table import TABLES, Sought, read_cells, read_header, read_table
from fedtailor.data.own.units import compare_with_training, quantiles_in_training


class TrainingTables(NamedTuple):
    """What is known of the tables that a model was trained on."""

    columns: Columns
    rules: CellRules | None = None
    """How cells were read; None: in the usual way."""
    std: np.ndarray = np.ones(1)
    """By which features are divided, see :class:`fedtailor.data.dataset.Normalization`."""


class LikeTable(NamedTuple):
    """A table with the features of the tables in training."""

    x: np.ndarray | None  # (rows, features), float32
    """None after an error."""
    lines: Sequence[int]
    """Line of every row in a CSV file, where the header is line 1; number of the row in a Parquet
    file, from 1, and in a data frame, from 0."""
    problems: list[DataProblem]
    """Errors, and a warning for every column with empty cells or unseen categories."""
    missing: Mapping[str, int] = {}
    """Empty cells by column, without columns that have none."""
    unseen: Mapping[str, int] = {}
    """Cells with a category that no training example had, in the same form."""
    keep: Mapping[str, Sequence[str]] = {}
    """The cells of the columns to keep as they stand in the file, by name in the order asked
    for."""


def read_table_like(path: Path, training: TrainingTables, keep: Sequence[str] = ()) -> LikeTable:
    """Return the features of a CSV or Parquet table.

    Its columns may be in any order. Those of ``columns.unused``, such as the label, may be there
    and are ignored. Others that are missing or extra are errors, but for those to keep.

    Args:
        path: the table.
        training: the tables that the model was trained on.
        keep: columns whose cells are returned beside the features, as they stand in the file.

    Raises:
        DataError: a column to keep is not there.

    Example:
        >>> from fedtailor.data.columns import Column
        >>> tables = TrainingTables(Columns((Column("age", "number"),)))
        >>> read_table_like(Path("missing.csv"), tables).problems[0].kind
        'unreadable_file'
    """
    place = FindingPlace(Findings(), "", escaped(path.name))
    if path.suffix.lower() not in TABLES:
        place.add("unknown_layout", f"Only {', '.join(TABLES)} files can be read as tables.")
        return LikeTable(None, (), place.findings.problems)

    keep = [escaped(name) for name in keep]
    sought = replace(_sought(training), keep=keep)
    table = read_table(path, place, sought, {}, limit=MAX_TOTAL_BYTES)
    if table is None:
        return LikeTable(None, (), place.findings.problems)

    like = _encode(table, training, ignored=keep)
    if like.x is None:
        return like

    # The cells to keep are as they stand in the file, but safe to print.
    kept_cells = {}
    for name in keep:
        if name not in table.columns:
            whose = f"'{place.path}'"
            raise unknown_name("column", name, table.names, of=whose, key="keep", kind=DataError)

        kept_cells[name] = [escaped(text) for text in table.kept[name]]

    return like._replace(keep=kept_cells)


def read_frame_like(frame: Any, training: TrainingTables) -> LikeTable:
    """Return the features of a data frame, such as one of pandas.

    Args:
        frame: anything with ``columns``, and ``frame[name].to_numpy()``.
        training: the tables that the model was trained on.

    Raises:
        DataError: it is not a data frame.
    """
    place = FindingPlace(Findings(), "", "data frame")
    texts = names_of_texts(training.columns)
    expected = set(training.columns.names)
    sought = _sought(training)

    def read(rewrite: Mapping[str, Rewrite], place: FindingPlace) -> Table:
        keys = list(frame.columns)
        cells = {}
        # Other columns are only needed by name: they may be ignored, or an error.
        for name, key in zip(read_header(map(str, keys), place), keys, strict=True):
            cells[name] = Cells()
            if name in expected:
                values = np.asarray(frame[key].to_numpy())
                cells[name] = Cells.of_values(
                    values, keeps_texts=name in texts, rewrite=rewrite.get(name)
                )

        return Table(place, cells, range(max(map(len, cells.values()), default=0)))

    try:
        table = read_cells(read, place, sought)
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        allowed = "a data frame, with columns and frame[name].to_numpy()"
        got = type(frame).__qualname__
        message = f"expected {allowed}, got {got}."
        raise DataError(message, key="frame", allowed=allowed, got=got) from error

    return _encode(table, training)


def _sought(training: TrainingTables) -> Sought:
    names = set(training.columns.names)
    texts = names_of_texts(training.columns)
    return Sought(
        is_expected=names.__contains__,
        keeps_texts=texts.__contains__,
        may_hold_numbers=names.difference(texts).__contains__,
        rules=training.rules or CellRules(),
    )


def names_of_texts(columns: Columns) -> set[str]:
    """Return the names of the columns of categories."""
    return {column.name for column in columns.columns if column.kind == "category"}


def _encode(table: Table, training: TrainingTables, ignored: Container[str] = ()) -> LikeTable:
    """Turn the cells of a table into features.

    Args:
        table: gets the problems.
        training: says how cells become features.
        ignored: columns that may be there though the data in training had none like them.
    """
    columns = training.columns
    place = table.place
    if not place.findings.has_errors:
        _check(table, columns, ignored)
    if place.findings.has_errors:
        return LikeTable(None, (), place.findings.problems)

    cells: dict[str, np.ndarray | Texts] = {}
    for column in columns.columns:
        column_cells = table.columns[column.name]
        if column.kind == "number":
            cells[column.name] = column_cells.numbers
        else:
            categories = tuple(category_in(text) for text in column_cells.texts)
            codes = [code if text else -1 for code, text in enumerate(categories)]
            cells[column.name] = Texts(
                np.array(codes, dtype=np.int64)[column_cells.codes], categories
            )

    # The plan of the training data makes the same features here, to the bit.
    encoded = columns.encode(cells)
    for name, count in encoded.missing.items():
        cells_in_words = counted(count, "empty cell")
        message = f"Column {quoted(name)} has {cells_in_words}, replaced as in training."
        place.add("missing_value", message, severity="warning")

    for name, count in encoded.unseen.items():
        cells_in_words = counted(count, "cell")
        message = (
            f"Column {quoted(name)} has {cells_in_words} with a category that training had not."
        )
        place.add("unseen_category", message)

    _check_rows_hold_values(table, cells)
    check_units([table], training)
    problems = place.findings.problems
    return LikeTable(encoded.x, table.lines, problems, encoded.missing, encoded.unseen)


def _check_rows_hold_values(table: Table, cells: Mapping[str, np.ndarray | Texts]) -> None:
    """Add the rows of which no feature is known: they all get the same prediction."""
    is_empty = np.ones(len(table.lines), dtype=bool)
    for values in cells.values():
        is_empty &= values.codes < 0 if isinstance(values, Texts) else np.isnan(values)

    rows = np.flatnonzero(is_empty)
    if not rows.size:
        return

    message = "The row has no value of any feature, so its prediction says nothing about it."
    if len(rows) > 1:
        message = (
            f"This row and {len(rows) - 1} more have no value of any feature, so their predictions "
            "say nothing about them."
        )

    table.place.add("no_values", message, table.lines[rows[0]])


def _check(table: Table, columns: Columns, ignored: Container[str]) -> None:
    """Add what is unlike the data in training in the columns of a table, and in their cells."""
    check_names(table, columns, ignored)
    table.check_types(columns.names)
    table.check_rows()
    check_texts(table, columns)

    numbers = [column.name for column in columns.columns if column.kind == "number"]
    table.check_numbers(name for name in numbers if name in table.columns)


def check_names(table: Table, columns: Columns, ignored: Container[str]) -> None:
    """Add the columns that a table lacks, or has besides those of the data in training.

    Args:
        table: gets the problems.
        columns: of the data in training.
        ignored: columns that may be there too.
    """
    known = {*columns.names, *columns.unused}
    missing = [name for name in columns.names if name not in table.columns]
    extra = [name for name in table.names if name not in known and name not in ignored]
    for kind, wrong, what in (
        ("missing_column", missing, "missing, which the data in training had"),
        ("extra_column", extra, "there that the data in training did not have"),
    ):
        if wrong:
            count = counted(len(wrong), "column is", "columns are")
            table.place.add(kind, f"{count} {what}: {listed(wrong)}.")


def check_units(tables: Sequence[Table], training: TrainingTables) -> None:
    """Add to the first table the columns that seem to be in another unit than in training."""
    for name, usual in quantiles_in_training(training.columns, training.std).items():
        cells = np.concatenate([table.columns[name].numbers for table in tables])
        for kind, message, _ in compare_with_training(name, cells, usual):
            tables[0].place.add(kind, message)


def check_texts(table: Table, columns: Columns) -> None:
    """Add the columns that hold text, and held numbers in training."""
    for column in columns.columns:
        if column.kind != "number" or column.name not in table.columns:
            continue

        at = table.columns[column.name].text_at
        what = "text in place of numbers"
        if at is not None and matches(THOUSANDS_COMMA, at.text):
            what = "numbers with a comma that may be a decimal point or separate thousands,"

        table.check_cells("not_a_number", column.name, what, at)
