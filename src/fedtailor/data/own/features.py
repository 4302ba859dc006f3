"""The features of all tables: one list of columns, and one code for each category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.columns import RawColumn
from fedtailor.data.own.cells import Table
from fedtailor.data.own.facts import ColumnNumbers, Feature, Names
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.names import counted, joined
from fedtailor.data.own.rules import (
    FEATURES,
    FILLED_CELLS,
    SIMILAR_NAMES,
    TEXT_FEATURES,
    check,
)


class Joined(NamedTuple):
    """The features of all tables."""

    x: np.ndarray
    """All rows (rows, features), float32: numbers, or positions in the texts of a column; NaN for
    empty cells."""
    columns: tuple[RawColumn, ...]


def join_features(
    names: Sequence[str], tables: Sequence[Table], findings: Findings, *, refuses_missing: bool
) -> Joined | None:
    """Join the features of tables with the same columns in any order.

    A column without a value in any table stays, as one of empty cells: another site may have values
    there. It is left out when the features are made, unless that site takes part.

    Returns:
        None, with the problems added, if they cannot be used.
    """
    features = [Feature(name, tables) for name in names]
    usable = [_check(feature) for feature in features]
    if not all(usable):
        return None

    rows = sum(len(table.lines) for table in tables)
    x = np.empty((rows, len(features)), dtype=np.float32)
    for place, feature in enumerate(features):
        x[:, place] = feature.values()

    num_empty = np.isnan(x).sum(axis=0)
    if refuses_missing and num_empty.any():
        _refuse_missing(x, features, tables)
        return None

    is_empty = num_empty == rows
    for feature, empty in zip(features, is_empty, strict=True):
        if empty:
            message = f"Column {feature.title} has no value in any table, and is left out."
            findings.add("empty_column", message)

    if is_empty.all():
        findings.add("no_features", "No column of features has any value.")
        return None

    used = [feature for feature, empty in zip(features, is_empty, strict=True) if not empty]
    _describe(used, num_empty[~is_empty], rows, findings)
    for feature in used:
        check(FEATURES, feature, tables[0].place)

    return Joined(x, tuple(RawColumn(feature.name, feature.categories) for feature in features))


def _check(feature: Feature) -> bool:
    """Return whether a column can be used; add what is wrong with its texts."""
    if not feature.is_text:
        return True

    table, line, _ = feature.first_text
    if not check(TEXT_FEATURES, feature, table.place, line):
        return False

    what = f"In column {feature.title}, the categories"
    return check(SIMILAR_NAMES, Names(what, feature.texts), table.place.findings.place)


def _refuse_missing(x: np.ndarray, features: Sequence[Feature], tables: Sequence[Table]) -> None:
    """Add an error for every column of a table with empty cells."""
    start = 0
    for table in tables:
        cells_of_table = x[start : start + len(table.lines)]
        start += len(table.lines)
        for place in np.flatnonzero(np.isnan(cells_of_table).any(axis=0)).tolist():
            cells = ColumnNumbers(features[place].name, cells_of_table[:, place], table.lines)
            check(FILLED_CELLS, cells, table.place)


def _describe(
    features: Sequence[Feature], num_empty: np.ndarray, rows: int, findings: Findings
) -> None:
    """Add notes on the number of columns, and on the empty cells by column."""
    texts = [feature for feature in features if feature.is_text]
    kinds = []
    if not texts:
        kinds.append(counted(len(features), "feature"))
    elif len(texts) < len(features):
        numbers = len(features) - len(texts)
        kinds.append(counted(numbers, "column of numbers", "columns of numbers"))

    if texts:
        kinds.append(counted(len(texts), "column of categories", "columns of categories"))

    note = f"{' and '.join(kinds)}, in the order of {features[0].tables[0].place.path}."
    if texts:
        sizes = joined(f"{feature.title} ({len(feature.categories)})" for feature in texts)
        note = f"{note} Categories: {sizes}."

    findings.note(note)
    empty = zip(features, num_empty.tolist(), strict=True)
    by_column = [f"{feature.title} {count}" for feature, count in empty if count]
    if by_column:
        cells = counted(int(num_empty.sum()), "empty cell")
        findings.note(
            f"{cells} in {rows} rows, by column: {joined(by_column)}. The median of the training "
            "examples of all sites replaces an empty number, and the category 'missing' an empty "
            "text."
        )
