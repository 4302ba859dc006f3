"""The encoding of a table as it was read: medians and categories of the training rows, and the features of all rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.columns import MISSING, Column, Columns, RawTable, Texts
from fedtailor.data.dataset import Dataset
from fedtailor.data.split import ClientRows

_CHUNK = 2**22  # cells of which the medians are computed at once
_SHOWN = 5
"""Columns that a note names; more are counted."""


class _Fitted(NamedTuple):
    columns: Columns
    left_out: tuple[str, ...]
    """Columns without a value in the training rows."""


def encode_table(dataset: Dataset, known: Sequence[ClientRows]) -> tuple[Dataset, list[str]]:
    """Return a data set with the features of all rows, and notes; other data sets are returned as they are.

    A table of numbers without empty cells keeps its array.

    Args:
        dataset: the data set as it was read.
        known: the examples of all clients that are not new; medians and categories are those of their training rows.

    Raises:
        DataError: there are no training rows, or no column has a value in them.
    """
    raw = dataset.raw
    if raw is None:
        return dataset, []
    rows = np.sort(np.concatenate([each.train for each in known]))
    is_plain = not any(column.texts for column in raw.columns) and not np.isnan(dataset.x).any()
    if len(rows) == 0:
        if is_plain:
            return dataclasses.replace(dataset, raw=None), []
        raise _refuse(dataset, "no client that is not new has training examples")
    fitted = fit_columns(dataset.x, raw, rows)
    if fitted is None:
        raise _refuse(dataset, "no column has a value in the training examples")
    if is_plain:
        return dataclasses.replace(dataset, raw=None, columns=fitted.columns), []
    cells = {
        column.name: _cells(dataset.x[:, place], column.texts)
        for place, column in enumerate(raw.columns)
        if column.name not in fitted.left_out
    }
    encoded = fitted.columns.encode(cells)
    notes = []
    if fitted.left_out:
        shown = _listed([repr(name) for name in fitted.left_out])
        notes.append(f"Left out, because no training example has a value: {shown}.")
    if encoded.unseen:
        shown = _listed([f"{name!r} {count}" for name, count in encoded.unseen.items()])
        notes.append(
            f"Cells with a category that no training example has, by column: {shown}. All their features are 0."
        )
    return dataclasses.replace(dataset, x=encoded.x, raw=None, columns=fitted.columns), notes


def encode_like(dataset: Dataset, columns: Columns) -> np.ndarray:
    """Return the features (rows, features) of a table as read, with the columns of other data.

    Args:
        dataset: with ``raw``.
        columns: of the data in training.

    Raises:
        DataError: columns are missing or extra, or hold text in place of numbers or numbers in place of text.
    """
    assert dataset.raw is not None
    present = [column.name for column in dataset.raw.columns]
    missing = [name for name in columns.names if name not in present]
    extra = [name for name in present if name not in columns.names and name not in columns.unused]
    if missing:
        message = f"table '{dataset.name}' lacks columns that the data in training had: {_listed(missing)}."
        raise DataError(message, key="data", allowed=list(columns.names), got=present)
    if extra:
        message = f"table '{dataset.name}' has columns that the data in training did not have: {_listed(extra)}."
        raise DataError(message, key="data", allowed=list(columns.names), got=present)
    cells = {column.name: _cells(dataset.x[:, place], column.texts) for place, column in enumerate(dataset.raw.columns)}
    return columns.encode(cells).x


def fit_columns(x: np.ndarray, raw: RawTable, rows: np.ndarray) -> _Fitted | None:
    """Return how the cells of the columns become features; None if no column has a value in ``rows``.

    Args:
        x: a table as it was read (rows, columns), see :class:`fedtailor.data.dataset.Dataset`.
        raw: its columns.
        rows: the training rows.
    """
    fills = _medians(x, rows)
    columns = []
    left_out = []
    for place, (name, texts) in enumerate(raw.columns):
        if np.isnan(fills[place]):
            left_out.append(name)
        elif texts:
            codes = x[rows, place]
            found = np.unique(codes[~np.isnan(codes)]).astype(np.int64)
            categories = {texts[code] for code in found}
            if np.isnan(codes).any():
                categories.add(MISSING)
            columns.append(Column(name, "category", tuple(sorted(categories)), MISSING))
        else:
            columns.append(Column(name, "number", fill=float(fills[place])))
    if not columns:
        return None
    return _Fitted(Columns(tuple(columns), (*raw.unused, *left_out)), tuple(left_out))


def _medians(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the median of every column (columns,) without empty cells, as float32; NaN if all are empty."""
    width = x.shape[1]
    result = np.full(width, np.nan, dtype=np.float32)
    step = max(_CHUNK // len(rows), 1)
    for start in range(0, width, step):
        ordered = np.sort(x[rows, start : start + step], axis=0)  # NaN last
        counts = len(rows) - np.isnan(ordered).sum(axis=0)
        filled = np.flatnonzero(counts)
        lower = ordered[(counts[filled] - 1) // 2, filled].astype(np.float64)
        upper = ordered[counts[filled] // 2, filled].astype(np.float64)
        result[start + filled] = (lower + upper) / 2
    return result


def _cells(values: np.ndarray, texts: tuple[str, ...]) -> np.ndarray | Texts:
    """Return a column as read (rows,) in the form that ``Columns.encode`` takes."""
    if not texts:
        return values
    return Texts(np.where(np.isnan(values), -1, values).astype(np.int64), texts)


def _listed(shown: list[str]) -> str:
    if len(shown) > _SHOWN:
        return f"{', '.join(shown[:_SHOWN])} and {len(shown) - _SHOWN} more"
    return ", ".join(shown)


def _refuse(dataset: Dataset, why: str) -> DataError:
    message = f"data set '{dataset.name}': {why}, so empty cells and categories have no values to learn from."
    return DataError(message, key="data.path", allowed="training examples with values", got="none")
