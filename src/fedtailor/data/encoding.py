"""The encoding of a table as it was read: medians and categories of the training rows, and the
features of all rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.column_summaries import merge_summaries, summarize
from fedtailor.data.columns import Columns, Texts
from fedtailor.data.dataset import Dataset
from fedtailor.data.split import ClientRows

_SHOWN = 5
"""Columns that a note names; more are counted."""


def encode_table(dataset: Dataset, known: Sequence[ClientRows]) -> tuple[Dataset, list[str]]:
    """Return a data set with the features of all rows, and notes; other data sets are returned as
    they are.

    A table of numbers without empty cells keeps its array.

    Args:
        dataset: the data set as it was read.
        known: the examples of all clients that are not new. Medians and categories are merged from
            those of the training rows of each (:mod:`fedtailor.data.column_summaries`), as real
            sites would do it.

    Raises:
        DataError: there are no training rows, or no column has a value in them.
    """
    raw = dataset.raw
    if raw is None:
        return dataset, []

    is_plain = not any(column.texts for column in raw.columns) and not np.isnan(dataset.x).any()
    if not any(len(each.train) for each in known):
        if is_plain:
            return dataclasses.replace(dataset, raw=None), []
        raise _refuse(dataset, "no client that is not new has training examples")

    summaries = [summarize(dataset.x, raw, each.train) for each in known]
    columns, left_out = merge_summaries(summaries, [str(client) for client in range(len(known))])
    if columns is None:
        raise _refuse(dataset, "no column has a value in the training examples")
    if is_plain:
        return dataclasses.replace(dataset, raw=None, columns=columns), []

    cells = {
        column.name: _cells(dataset.x[:, place], column.texts)
        for place, column in enumerate(raw.columns)
        if column.name not in left_out
    }
    encoded = columns.encode(cells)
    notes = []

    if left_out:
        shown = _listed([repr(name) for name in left_out])
        notes.append(f"Left out, because no training example has a value: {shown}.")

    if encoded.unseen:
        shown = _listed([f"{name!r} {count}" for name, count in encoded.unseen.items()])
        notes.append(
            f"Cells with a category that no training example has, by column: {shown}. All their features are 0."
        )

    return dataclasses.replace(dataset, x=encoded.x, raw=None, columns=columns), notes


def encode_like(dataset: Dataset, columns: Columns) -> np.ndarray:
    """Return the features (rows, features) of a table as read, with the columns of other data.

    Args:
        dataset: with ``raw``.
        columns: of the data in training.

    Raises:
        DataError: columns are missing or extra, or hold text in place of numbers or numbers in
            place of text.
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

    cells = {
        column.name: _cells(dataset.x[:, place], column.texts)
        for place, column in enumerate(dataset.raw.columns)
    }

    return columns.encode(cells).x


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
