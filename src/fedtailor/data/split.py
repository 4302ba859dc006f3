"""The split of each client's examples, and its record: what is written beside a run, to be compared later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast, get_origin, get_type_hints

import numpy as np

from fedtailor.core.errors import DataError


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
    """Options of the split with the seed that was used; no folder, which differs between machines."""
    new_clients: int
    client_names: list[str]
    conditions: list[str]
    """What was done to each client's examples in a run; a new client comes once per condition; empty: nothing."""
    clients: list[ClientRecord]


_TYPES = {name: get_origin(kind) or kind for name, kind in get_type_hints(SplitRecord).items()}


def split_digest(clients: list[ClientRecord], new_clients: int, conditions: Sequence[str] = ()) -> str:
    """Return the SHA-256 of who has which example for what, in which condition; the same on every machine."""
    content = {"clients": clients, "new_clients": new_clients, **({"conditions": conditions} if conditions else {})}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def to_records(rows: list[ClientRows]) -> list[ClientRecord]:
    """Return positions as lists."""
    return [cast(ClientRecord, {part: values.tolist() for part, values in each._asdict().items()}) for each in rows]


def read_split(path: Path) -> SplitRecord:
    """Read a split that was written as JSON, and check its digest.

    Raises:
        DataError: the file is missing or no split, or its positions are not those of its digest.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _check_entries(path, record)
        digest = split_digest(record["clients"], record["new_clients"], record["conditions"])
    except OSError as error:
        raise _refuse(path, "a file that can be read", error.strerror or str(error)) from error
    except RecursionError as error:
        raise _refuse(path, "a split in JSON", "brackets nested too deeply") from error
    except json.JSONDecodeError as error:
        got = f"what is not JSON (line {error.lineno}, column {error.colno})"
        raise _refuse(path, "a split in JSON", got) from error
    except ValueError as error:  # bytes that are not UTF-8, a number of thousands of digits
        raise _refuse(path, "a split in JSON", "what is not JSON") from error
    if digest != record["split_sha256"]:
        raise _refuse(path, f"positions with the digest {record['split_sha256']}", digest)
    return cast(SplitRecord, record)


def _check_entries(path: Path, record: Any) -> None:
    """Check that a record has all entries, each of its type; what is in lists is not looked at."""
    if type(record) is not dict:
        raise _refuse(path, "a split in JSON", "no object with named entries")
    absent = [name for name in _TYPES if name not in record]
    if absent:
        raise _refuse(path, f"a split in JSON with the entries {', '.join(_TYPES)}", f"no {', '.join(absent)}")
    wrong = [name for name, needed in _TYPES.items() if type(record[name]) is not needed]  # True would pass as 1
    if wrong:
        raise _refuse(path, "a split in JSON", f"an entry of the wrong type: {', '.join(wrong)}")


def _refuse(path: Path, allowed: str, got: str) -> DataError:
    return DataError(f"{path}: expected {allowed}, got {got}.", path=str(path), allowed=allowed, got=got)
