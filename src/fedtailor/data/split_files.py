"""Splits read from files: our own ``split.json``, and folders of pFedFDA's release.

The release (McLaughlin and Su, NeurIPS 2024, https://github.com/cj-mclaughlin/pFedFDA) writes one
NumPy archive per client, ``client_0.npz`` and so on, with two arrays ``train`` and ``test``:
positions in the official training part followed by the official test part, as in
:class:`~fedtailor.data.dataset.Dataset`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_file
from fedtailor.core.text import listed, quoted
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import TestPolicy
from fedtailor.data.own.archives import read_archive
from fedtailor.data.own.findings import Unusable
from fedtailor.data.split import ClientPositions, SplitRecord, read_split, refuse_split

_ARRAYS = ("train", "test")
_NAME = re.compile(r"client_(0|[1-9][0-9]{0,5})\.npz")


class LoadedSplit(NamedTuple):
    """The clients' examples according to a file."""

    positions: list[ClientPositions]
    num_new: int
    """How many of the last clients are new."""
    client_names: tuple[str, ...]
    """Empty: clients have numbers only."""
    test: TestPolicy
    """How test examples were chosen."""
    conditions: tuple[str, ...] | None
    """The condition of each client's examples in a run, see
    :class:`~fedtailor.data.split.SplitRecord`; None: the format does not store it."""
    notes: list[str]
    """Sentences about what could not be checked."""


def read_split_file(path: Path, dataset: Dataset) -> LoadedSplit:
    """Read the clients' examples; whether an example is used twice is not checked here.

    A folder of ``client_*.npz`` has no new clients, no names and no validation examples. It stores
    neither the data set that it divides nor the condition of the examples.

    Args:
        path: ``split.json``, or a folder of ``client_*.npz``.
        dataset: the data set that is divided.

    Raises:
        DataError: the file is missing, damaged, not a split or a split of other data, or a position
            is out of range.
    """
    num_rows = len(dataset.y)
    if os.path.isdir(path):  # Path.is_dir raises if a parent folder cannot be entered
        note = f"{path}: nothing checks that client_*.npz files divide '{dataset.name}'."
        return LoadedSplit(_read_folder(path, num_rows), 0, (), "given", None, [note])

    record = read_split(path)
    if record["data_sha256"] != dataset.digest:
        raise _other_data(path, record, dataset)

    # A digest holds what was written together, not that it makes sense.
    positions = [_to_positions(path, client, num_rows) for client in record["clients"]]
    options = record["options"]
    if options.get("folds") and not options.get("fold"):
        allowed = "the split of one fold, such as fold-1/split.json"
        raise refuse_split(path, allowed, "that of all folds, which leaves nothing for training")

    num_new = record["new_clients"]
    names = record["client_names"]
    conditions = record["conditions"]
    test = options.get("test")
    policies = get_args(TestPolicy)
    are_texts = all(type(text) is str and text.strip() for text in [*names, *conditions])
    checks = [
        (0 <= num_new < len(positions), f"new_clients from 0 to {len(positions) - 1}", num_new),
        (test in policies, f"options.test to be one of {', '.join(policies)}", test),
        (are_texts, "texts that are not empty as client_names and conditions", names),
        (len(names) in (0, len(positions)), f"{len(positions)} client_names or none", names),
        (len(set(map(str, names))) == len(names), "different client_names", names),
    ]
    for is_right, allowed, got in checks:
        if not is_right:
            raise refuse_split(path, allowed, quoted(got))

    return LoadedSplit(
        positions=positions,
        num_new=num_new,
        client_names=tuple(names),
        test=cast(TestPolicy, test),
        conditions=tuple(conditions),
        notes=[],
    )


def _read_folder(folder: Path, num_rows: int) -> list[ClientPositions]:
    """Return the clients in the order of their numbers: 2 before 10."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith("client_")]
    except OSError as error:
        raise refuse_split(
            folder, "a folder that can be read", error.strerror or str(error)
        ) from error

    # A file that is absent, or has another number, would silently be another client.
    matches = [_NAME.fullmatch(name) for name in names if name.endswith(".npz")]
    numbers = {int(match[1]) for match in matches if match is not None}
    if not numbers or numbers != set(range(len(matches))):
        allowed = "files client_0.npz, client_1.npz and so on, without gaps"
        raise refuse_split(folder, allowed, listed(sorted(names)) or "none")

    return [_read_client(folder / f"client_{number}.npz", num_rows) for number in sorted(numbers)]


def _read_client(path: Path, num_rows: int) -> ClientPositions:
    # Two arrays of at most all rows, 8 bytes each, and their headers: four times that.
    limit = 64 * num_rows + 2**16
    try:
        arrays, names = read_archive(read_file(path, limit=limit), _ARRAYS, limit=limit)
    except Unusable as error:
        message = f"{path}: {error.message}"
        raise DataError(message, key="data.split", path=path, got=error.kind) from error

    if sorted(names) != sorted(_ARRAYS):
        raise refuse_split(path, "the arrays 'train' and 'test'", listed(names) or "none")

    return _to_positions(path, {"val": [], **arrays}, num_rows)


def _to_positions(path: Path, record: Any, num_rows: int) -> ClientPositions:
    """Return the positions of a client if all are in the data set; ``record`` may have any form."""
    allowed = f"clients with train, val, test: lists of positions from 0 to {num_rows - 1}"
    sides = []
    for side in ClientPositions._fields:
        try:
            values = np.asarray(record[side])
        except (TypeError, LookupError, ValueError) as error:
            raise refuse_split(path, allowed, quoted(record)) from error

        # NumPy gives an empty list the type float64.
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
            got = f"{side} of type {values.dtype} and shape {values.shape}"
            raise refuse_split(path, allowed, got)

        wrong = values[(values < 0) | (values >= num_rows)]
        if len(wrong):
            raise refuse_split(path, allowed, f"{wrong[0]} in {side}")

        sides.append(values.astype(np.int64))

    return ClientPositions(*sides)


def _other_data(path: Path, record: SplitRecord, dataset: Dataset) -> DataError:
    digest = quoted(record["data_sha256"])
    return DataError(
        f"{path}: the split is of data set {quoted(record['dataset'])} with the digest {digest}, "
        f"but data set '{dataset.name}' has '{dataset.digest}'. Use the data that was divided, "
        "read with the same options, or divide this data again.",
        key="data.split",
        path=path,
        allowed=dataset.digest,
        got=digest,
    )
