"""The split of each client's examples, and its record, which is written beside a run for later
comparison.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast, get_origin, get_type_hints

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.reading import LARGEST_TEXT, UnreadableError, read_file


class ClientRows(NamedTuple):
    """Positions of one client's examples in the data set."""

    train: np.ndarray  # (n,), int64
    val: np.ndarray
    test: np.ndarray


class ClientRecord(TypedDict):
    """Positions of one client's examples, as JSON."""

    train: list[int]
    val: list[int]
    test: list[int]


class SplitRecord(TypedDict):
    """A split as JSON. Two runs had the same data when both digests are equal."""

    dataset: str
    data_sha256: str
    """Digest of images and labels (``Dataset.digest``)."""
    split_sha256: str
    """Digest of ``clients``, ``new_clients`` and ``conditions``."""
    options: dict[str, Any]
    """Options of the split with the seed that was used, without folders, which differ between
    machines."""
    new_clients: int
    client_names: list[str]
    conditions: list[str]
    """The condition of each client's examples in a run; a new client appears once per condition;
    empty: all clean."""
    clients: list[ClientRecord]


_TYPES = {name: get_origin(kind) or kind for name, kind in get_type_hints(SplitRecord).items()}


def split_digest(
    clients: list[ClientRecord], new_clients: int, conditions: Sequence[str] = ()
) -> str:
    """Return the SHA-256 of the clients' examples and conditions, the same on every machine."""
    content: dict[str, Any] = {"clients": clients, "new_clients": new_clients}
    if conditions:
        content["conditions"] = conditions
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def to_records(rows: list[ClientRows]) -> list[ClientRecord]:
    """Return the clients' positions as lists."""
    return [
        ClientRecord(train=each.train.tolist(), val=each.val.tolist(), test=each.test.tolist())
        for each in rows
    ]


def read_split(path: Path) -> SplitRecord:
    """Read a split that was written as JSON, and check its digest.

    Raises:
        DataError: the file is missing or not a split, or its positions do not have its digest.
    """
    try:
        record = json.loads(read_file(path, limit=LARGEST_TEXT).decode())
        _check_entries(path, record)
        digest = split_digest(record["clients"], record["new_clients"], record["conditions"])
    except UnreadableError as error:
        raise _refuse(
            path, "a file that can be read", getattr(error.__cause__, "strerror", "")
        ) from error
    except RecursionError as error:
        raise _refuse(path, "a split in JSON", "brackets nested too deeply") from error
    except json.JSONDecodeError as error:
        got = f"invalid JSON (line {error.lineno}, column {error.colno})"
        raise _refuse(path, "a split in JSON", got) from error
    except ValueError as error:  # bytes that are not UTF-8, or a number with thousands of digits
        raise _refuse(path, "a split in JSON", "invalid JSON") from error

    if digest != record["split_sha256"]:
        raise _refuse(path, f"positions with the digest {record['split_sha256']}", digest)
    return cast(SplitRecord, record)


def _check_entries(path: Path, record: Any) -> None:
    """Check that a record has all entries with their types; the contents of lists are not
    checked.
    """
    if type(record) is not dict:
        raise _refuse(path, "a split in JSON", "a value that is not an object")

    absent = [name for name in _TYPES if name not in record]
    if absent:
        raise _refuse(
            path, f"a split in JSON with the entries {', '.join(_TYPES)}", f"no {', '.join(absent)}"
        )

    wrong = [
        name for name, needed in _TYPES.items() if type(record[name]) is not needed
    ]  # True would pass as 1
    if wrong:
        raise _refuse(path, "a split in JSON", f"an entry of the wrong type: {', '.join(wrong)}")


def _refuse(path: Path, allowed: str, got: str) -> DataError:
    return DataError(
        f"{path}: expected {allowed}, got {got}.", path=str(path), allowed=allowed, got=got
    )
