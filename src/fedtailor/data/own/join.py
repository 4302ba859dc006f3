"""The features of the tables of all sites, joined: one list of columns, and one code for each
category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.columns import RawColumn, RawTable
from fedtailor.data.options import DataOptions
from fedtailor.data.own.findings import Findings, counted, has_errors, show
from fedtailor.data.own.names import MAX_LISTED
from fedtailor.data.own.table import Table, option_text, refuse_missing_values
from fedtailor.data.own.text_columns import TextColumn, check_text_column

_IDENTIFIER = re.compile(
    r"(patient|subject|participant|person)s?(id|no|nr|num|number|code)?|id|mrn|pid"
)


class Joined(NamedTuple):
    """The features of all tables."""

    x: list[np.ndarray]
    """For every table (rows, columns), float32: numbers, or positions in the texts of a column; NaN
    for empty cells."""
    raw: RawTable


def join_tables(tables: Sequence[Table], options: DataOptions, findings: Findings) -> Joined | None:
    """Return the features of tables with the same columns in any order; None, with the problems
    added, after an error.

    A column without a value in any table stays, as one of empty cells: another site may have values
    there. It is left out when the features are made, unless that site takes part.
    """
    names = tables[0].roles.feature_names
    if options.missing == "refuse":
        for table in tables:
            refuse_missing_values(table)

    texts = _texts(tables, names)
    if texts is None or has_errors(findings):
        return None

    x = [_ordered(table, names, texts) for table in tables]
    empty = [np.isnan(each).sum(axis=0) for each in x]
    counts = np.sum(empty, axis=0)
    is_empty = counts == sum(map(len, x))
    for place in np.flatnonzero(is_empty):
        message = f"Column {show(names[place])} has no value in any table, and is left out."
        findings.add("skipped", "empty_column", "", "", message)

    if is_empty.all():
        message = "No column of features has any value."
        findings.add("error", "no_features", "", "", message)
        return None

    used = np.flatnonzero(~is_empty)
    columns = tuple(RawColumn(names[place], texts.get(names[place], ())) for place in used)
    _describe(columns, counts[used], sum(map(len, x)), tables, findings)
    for column in columns:
        if _IDENTIFIER.fullmatch(re.sub(r"[\W_]+", "", column.name).lower()):
            option = option_text("group", column.name)
            message = (
                f"Column {show(column.name)} is a feature, although its name is that of an identifier. Remove it, or "
                f"if it says which rows belong together, such as those of a patient: {option}."
            )
            tables[0].place.warning("identifier", message)

    roles = tables[0].roles
    every = tuple(RawColumn(name, texts.get(name, ())) for name in names)
    return Joined(x, RawTable(every, tuple(name for name in roles.header if name not in names)))


def _texts(tables: Sequence[Table], names: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Return the sorted texts of every column of text; None, with the problems added, if one holds
    no categories.
    """
    texts = {}
    fine = True
    for name in names:
        if name not in tables[0].cells.texts:
            continue

        column = TextColumn(name, [(table.place, table.cells.texts[name]) for table in tables])
        fine &= check_text_column(column)
        texts[name] = tuple(sorted(column.texts))

    return texts if fine else None


def _ordered(table: Table, names: Sequence[str], texts: dict[str, tuple[str, ...]]) -> np.ndarray:
    """Return the features of a table (rows, columns) in the order of ``names``, with the codes of
    all tables.
    """
    own = table.roles.feature_names
    values = table.cells.values
    if own != tuple(names):
        position = {name: index for index, name in enumerate(own)}
        values = values[:, [position[name] for name in names]]

    if not texts:
        return values

    values = values.copy()
    for place, name in enumerate(names):
        if name not in texts:
            continue

        position = {text: code for code, text in enumerate(texts[name])}
        codes = np.array(
            [*(position[text] for text in table.cells.texts[name].codes), np.nan], dtype=np.float32
        )
        old = np.where(np.isnan(values[:, place]), -1, values[:, place]).astype(np.int64)
        values[:, place] = codes[old]

    return values


def _describe(
    columns: Sequence[RawColumn],
    empty: np.ndarray,
    rows: int,
    tables: Sequence[Table],
    findings: Findings,
) -> None:
    """Add notes on the number of columns, and on the empty cells by column."""
    order = f"in the order of {tables[0].place.path}"
    categories = [
        f"{show(column.name)} ({len(column.texts)})" for column in columns if column.texts
    ]
    if not categories:
        findings.notes.append(f"{counted(len(columns), 'feature')}, {order}.")
    else:
        shown = counted(len(categories), "column of categories", "columns of categories")
        if len(categories) < len(columns):
            numbers = counted(
                len(columns) - len(categories), "column of numbers", "columns of numbers"
            )
            shown = f"{numbers} and {shown}"

        findings.notes.append(f"{shown}, {order}. Categories: {_listed(categories)}.")

    found = [
        f"{show(columns[place].name)} {empty[place]}" for place in np.flatnonzero(empty).tolist()
    ]
    if found:
        findings.notes.append(
            f"{counted(int(empty.sum()), 'empty cell')} in {rows} rows, by column: {_listed(found)}. The median of the "
            "training examples of all sites replaces an empty number, and the category 'missing' an empty text."
        )


def _listed(shown: Sequence[str]) -> str:
    if len(shown) > MAX_LISTED:
        return f"{', '.join(shown[:MAX_LISTED])} and {len(shown) - MAX_LISTED} more columns"
    return ", ".join(shown)
