"""Splits in files: our own ``split.json``, and folders of ``client_*.npz`` as pFedFDA's release
writes them.

The release (McLaughlin and Su, NeurIPS 2024, https://github.com/cj-mclaughlin/pFedFDA) writes one
NumPy archive per client, ``client_0.npz`` and so on, with two arrays ``train`` and ``test``:
positions in the official training part followed by the official test part, as in
:class:`~fedtailor.data.dataset.Dataset`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.core.reading import read_file
from fedtailor.core.whole_folder import whole_folder
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import TestPolicy
from fedtailor.data.own.findings import Unusable, show
from fedtailor.data.own.npz import read_archive
from fedtailor.data.split import ClientRows, SplitRecord, read_split

MAX_SPLIT_BYTES = 128 * 2**20
"""Most bytes of a ``split.json``: enough for about fifteen million positions."""

MAX_FILES = 100_000
"""Most entries in a folder of ``client_*.npz`` files."""

_ARRAYS = ("train", "test")
_NAME = re.compile(r"client_(0|[1-9][0-9]{0,5})\.npz")


class LoadedSplit(NamedTuple):
    """The clients' examples according to a file."""

    rows: list[ClientRows]
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
    if os.path.isdir(path):  # Path.is_dir raises if a parent folder cannot be entered
        note = (
            f"{path}: client_*.npz files do not name the data that they divide, so nothing checks that they divide "
            f"'{dataset.name}'."
        )

        return LoadedSplit(
            rows=_read_folder(path, len(dataset.y)),
            num_new=0,
            client_names=(),
            test="given",
            conditions=None,
            notes=[note],
        )

    _check_size(path, MAX_SPLIT_BYTES)
    record = read_split(path)
    if record["data_sha256"] != dataset.digest:
        raise _other_data(path, record, dataset)
    if not record["clients"]:
        raise _refuse(path, "at least one client", "none")

    rows = [
        _from_json(path, client, each, len(dataset.y))
        for client, each in enumerate(record["clients"])
    ]
    num_new = record["new_clients"]
    conditions = record["conditions"]
    if not 0 <= num_new < len(rows):
        raise _refuse(path, f"new_clients from 0 to {len(rows) - 1}", show(num_new))
    if any(type(condition) is not str for condition in conditions):
        raise _refuse(path, "conditions to be texts", show(conditions))

    return LoadedSplit(
        rows=rows,
        num_new=num_new,
        client_names=_client_names(path, record["client_names"], len(rows)),
        test=_policy(path, record["options"]),
        conditions=tuple(conditions),
        notes=[],
    )


def write_npz_split(
    folder: Path, rows: Sequence[ClientRows], *, num_new: int = 0, test: TestPolicy = "own"
) -> None:
    """Write a folder of ``client_*.npz`` that the release of pFedFDA can read; it appears whole.

    Args:
        folder: the folder to make.
        rows: the clients' examples.
        num_new: how many of the last clients are new.
        test: how test examples were chosen.

    Raises:
        ConfigError: the split has something that the format cannot hold.
        DataError: the folder exists and is not empty; it is never overwritten.
        RunError: the folder cannot be written.
    """
    lost = []
    if num_new:
        lost.append(f"new clients (there are {num_new})")
    if any(len(each.val) for each in rows):
        lost.append("validation examples")
    if test not in ("own", "given"):
        lost.append(f"test examples that clients share (data.test = '{test}')")

    if lost:
        message = f"'{folder}': a folder of client_*.npz cannot hold {' and '.join(lost)}; a file split.json can."
        raise ConfigError(
            message,
            key="out",
            path=str(folder),
            allowed="a name that ends in .json",
            got=str(folder),
        )

    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if folder.is_symlink() or not is_free:
        raise _refuse(folder, "a folder that does not exist, or is empty", "one that exists")

    try:
        with whole_folder(folder) as unfinished:
            for client, each in enumerate(rows):
                np.savez(unfinished / f"client_{client}.npz", train=each.train, test=each.test)
    except OSError as reason:
        raise RunError(
            f"cannot write '{folder}': {reason.strerror or reason}.", path=str(folder)
        ) from reason


def _client_names(path: Path, names: list[Any], num_clients: int) -> tuple[str, ...]:
    """Return the clients' names if there are none, or a different one for every client."""
    if any(type(name) is not str for name in names) or len(names) not in (0, num_clients):
        raise _refuse(path, f"client_names to be {num_clients} texts or none", show(names))

    empty = next((client for client, name in enumerate(names) if not name.strip()), None)
    if empty is not None:
        raise _refuse(
            path, "client_names that are not empty", f"{show(names[empty])} for client {empty}"
        )

    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise _refuse(path, "different client_names", f"{show(twice[0])} more than once")

    return tuple(names)


def _policy(path: Path, options: dict[str, Any]) -> TestPolicy:
    """Return how test examples were chosen."""
    allowed = get_args(TestPolicy)
    test = options.get("test")
    if test not in allowed:
        raise _refuse(path, f"options.test to be one of {', '.join(allowed)}", show(test))
    return cast(TestPolicy, test)


def _read_folder(folder: Path, num_rows: int) -> list[ClientRows]:
    """Return the clients in the order of their numbers: 2 before 10."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_FILES + 1)]
    except OSError as error:
        raise _refuse(folder, "a folder that can be read", error.strerror or str(error)) from error

    if len(names) > MAX_FILES:
        raise _refuse(folder, f"at most {MAX_FILES} files", "more")

    found = sorted(name for name in names if name.startswith("client_") and name.endswith(".npz"))
    wrong = next((name for name in found if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise _refuse(
            folder / wrong,
            "a name such as client_0.npz, with a number without leading zeros",
            show(wrong),
        )

    numbers = {int(name[len("client_") : -len(".npz")]) for name in found}
    if not numbers:
        raise _refuse(folder, "files client_0.npz, client_1.npz and so on", "none")

    absent = next((number for number in range(len(numbers)) if number not in numbers), None)
    if absent is not None:
        raise _refuse(
            folder, f"client_{absent}.npz, as there is client_{max(numbers)}.npz", "no such file"
        )

    return [
        _read_client(folder / f"client_{number}.npz", num_rows) for number in range(len(numbers))
    ]


def _read_client(path: Path, num_rows: int) -> ClientRows:
    limit = (
        64 * num_rows + 2**16
    )  # two arrays of at most all rows, 8 bytes each, and their headers: four times that
    _check_size(path, limit)
    try:
        arrays, names = read_archive(read_file(path, limit=limit), _ARRAYS, limit=limit)
    except Unusable as error:
        raise DataError(
            f"{path}: {error.message}", key="data.split", path=str(path), got=error.kind
        ) from error

    if sorted(names) != sorted(_ARRAYS):
        raise _refuse(
            path, "the arrays 'train' and 'test'", ", ".join(map(show, names[:5])) or "none"
        )

    return ClientRows(
        train=_check_positions(f"{path}: train", path, arrays["train"], num_rows),
        val=np.zeros(0, np.int64),
        test=_check_positions(f"{path}: test", path, arrays["test"], num_rows),
    )


def _from_json(path: Path, client: int, record: Any, num_rows: int) -> ClientRows:
    """Return the positions of a client from its JSON, which may have any form."""
    if type(record) is not dict or set(record) != set(ClientRows._fields):
        raise _refuse(
            path, f"client {client} to have {', '.join(ClientRows._fields)}", show(record)
        )

    parts = []
    for name in ClientRows._fields:
        values = record[name]
        if type(values) is not list or any(
            type(value) is not int for value in values
        ):  # True would pass as 1
            raise _refuse(
                path, f"{name} of client {client} to be a list of whole numbers", show(values)
            )

        too_large = any(abs(value) >> 62 for value in values)
        positions = np.array(values, dtype=object if too_large else np.int64)
        parts.append(
            _check_positions(f"{path}: {name} of client {client}", path, positions, num_rows)
        )

    return ClientRows(*parts)


def _check_positions(where: str, path: Path, values: np.ndarray, num_rows: int) -> np.ndarray:
    """Return positions (n,) as int64 if all are rows of the data set."""
    allowed = f"positions from 0 to {num_rows - 1}"
    if values.size == 0 and values.ndim == 1:
        return np.zeros(0, np.int64)  # NumPy gives an empty list the type float64

    got = ""
    if values.ndim != 1 or values.dtype.kind not in "iuO":
        got = f"type {values.dtype} of shape {values.shape}"
    else:
        wrong = np.flatnonzero((values < 0) | (values >= num_rows))
        if len(wrong):
            got = f"{values[wrong[0]]} at index {wrong[0]}"

    if got:
        raise DataError(
            f"{where}: expected {allowed}, got {got}.",
            key="data.split",
            path=str(path),
            allowed=allowed,
            got=got,
        )

    return values.astype(np.int64)


def _check_size(path: Path, limit: int) -> None:
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise _refuse(
            path, "a file that can be read", getattr(error, "strerror", "") or str(error)
        ) from error

    if not path.is_file():
        raise _refuse(path, "a regular file", "something else")
    if size > limit:
        raise _refuse(path, f"at most {limit} bytes", f"{size} bytes")


def _other_data(path: Path, record: SplitRecord, dataset: Dataset) -> DataError:
    digest = show(record["data_sha256"])
    return DataError(
        f"{path}: the split is of data set {show(record['dataset'])} with the digest {digest}, but data set "
        f"'{dataset.name}' has the digest '{dataset.digest}'. Its positions would select other examples. Use the data "
        "that was divided, read with the same options, or divide this data again.",
        key="data.split",
        path=str(path),
        allowed=dataset.digest,
        got=digest,
    )


def _refuse(path: Path, allowed: str, got: str) -> DataError:
    return DataError(
        f"{path}: expected {allowed}, got {got}.",
        key="data.split",
        path=str(path),
        allowed=allowed,
        got=got,
    )
