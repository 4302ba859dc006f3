"""The encoding of a table: its cells become features as the training rows say."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from fedtailor.core.errors import DataError, joined
from fedtailor.core.text import listed
from fedtailor.data.column_summaries import merge_summaries, summarize
from fedtailor.data.columns import Columns, Texts
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientPositions


def encode_table(
    dataset: Dataset, clients: Sequence[ClientPositions], options: DataOptions
) -> tuple[Dataset, list[str]]:
    """Return a data set with the features of all rows, and notes.

    A table of numbers without empty cells keeps its array.

    Args:
        dataset: a table as it was read.
        clients: the examples of all clients that are not new. Medians and categories are merged
            from those of the training rows of each, as real sites would do it; see
            :mod:`fedtailor.data.column_summaries`.
        options: say what becomes of numbers and of empty cells.

    Raises:
        DataError: there are no training rows, or no column has a value in them.
    """
    raw = dataset.raw
    assert raw is not None

    # Without text and empty cells, the cells are the features already.
    is_plain = not any(column.texts for column in raw.columns) and not np.isnan(dataset.x).any()
    if not any(len(client.train) for client in clients):
        if is_plain:
            return dataclasses.replace(dataset, raw=None), []
        raise _refuse(dataset, "no client that is not new has training examples")

    # Client by client, so that a simulation has the bits of real sites.
    summaries = [summarize(dataset.x, raw, client.train) for client in clients]
    names = [str(client) for client in range(len(clients))]
    indicates = options.missing == "indicator"
    columns, left_out = merge_summaries(summaries, names, indicates_missing=indicates)
    if columns is None:
        raise _refuse(dataset, "no column has a value in the training examples")

    if options.numbers != "standard":
        columns = _with_knots(columns, dataset, clients, options)
        is_plain = False
    if is_plain:
        return dataclasses.replace(dataset, raw=None, columns=columns), []

    encoded = columns.encode(_cells_of(dataset))
    notes = []
    if left_out:
        notes.append(f"Left out, because no training example has a value: {listed(left_out)}.")

    if encoded.unseen:
        counts = joined(f"{name!r} {count}" for name, count in encoded.unseen.items())
        notes.append(f"Cells with a category that training has not, by column: {counts}.")

    return dataclasses.replace(dataset, x=encoded.x, raw=None, columns=columns), notes


def _with_knots(
    columns: Columns, dataset: Dataset, clients: Sequence[ClientPositions], options: DataOptions
) -> Columns:
    """Return columns with knots from the training rows of all clients."""
    from fedtailor.data.quantiles import Counts, Request, count_cells, with_knots

    raw = dataset.raw
    assert raw is not None

    # Counts add up, so those of all rows together are the sum of those of the clients.
    positions = np.concatenate([client.train for client in clients])

    def ask(exchange: int, request: Request) -> dict[str, list[Counts]]:
        counts = count_cells(dataset.x, raw, positions, exchange, request)
        return {name: [counts[name]] for name in counts}

    return with_knots(columns, options.numbers, ask)


def encode_like(dataset: Dataset, columns: Columns) -> np.ndarray:
    """Return the features (rows, features) of a table as read, with the columns of other data.

    Args:
        dataset: with ``raw``, read like the data in training.
        columns: of the data in training.
    """
    categories = {column.name for column in columns.columns if column.kind == "category"}
    return columns.encode(_cells_of(dataset, categories)).x


def _cells_of(dataset: Dataset, categories: Container[str] = ()) -> dict[str, np.ndarray | Texts]:
    """Return the columns of a table as read, in the form that ``Columns.encode`` takes.

    Args:
        dataset: the table.
        categories: names of columns that hold categories elsewhere.
    """
    assert dataset.raw is not None
    cells: dict[str, np.ndarray | Texts] = {}
    for index, column in enumerate(dataset.raw.columns):
        values = dataset.x[:, index]
        # A column of categories has no texts if all of its cells are empty here.
        is_empty = column.name in categories and np.isnan(values).all()
        if column.texts or is_empty:
            codes = np.where(np.isnan(values), -1, values).astype(np.int64)
            cells[column.name] = Texts(codes, column.texts)
        else:
            cells[column.name] = values

    return cells


def _refuse(dataset: Dataset, why: str) -> DataError:
    message = f"data set '{dataset.name}': {why}, to learn fillings and categories from."
    return DataError(message, key="data.path", allowed="training examples with values", got="none")
