"""The split of each client's examples, and its record: what is written beside a run, to be compared later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

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
        digest = split_digest(record["clients"], record["new_clients"], record.get("conditions", ()))
        recorded = record["split_sha256"]
    except OSError as error:
        raise _refuse(path, "a file that can be read", error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refuse(path, "a split in JSON", f"{type(error).__name__}: {error}") from error
    if set(SplitRecord.__annotations__) - set(record):
        absent = ", ".join(sorted(set(SplitRecord.__annotations__) - set(record)))
        raise _refuse(path, f"the entries {', '.join(SplitRecord.__annotations__)}", f"no {absent}")
    if digest != recorded:
        raise _refuse(path, f"positions with the digest {recorded}", digest)
    return cast(SplitRecord, record)


def _refuse(path: Path, allowed: str, got: str) -> DataError:
    return DataError(f"{path}: expected {allowed}, got {got}.", path=str(path), allowed=allowed, got=got)
