"""The split of each client's examples, and its record, which is written beside a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast, get_origin, get_type_hints

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_object


class ClientPositions(NamedTuple):
    """Positions of one client's examples in the data set."""

    train: np.ndarray  # (n,), int64
    val: np.ndarray
    test: np.ndarray

    def num_test_groups(self, groups: np.ndarray | None) -> int:
        """Return how many groups the test examples are of; without groups, each is one.

        Args:
            groups: of every example of the data set (n,); None: there are none.
        """
        return len(self.test) if groups is None else len(np.unique(groups[self.test]))


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


def bare_split(
    dataset: str, names: Sequence[str], clients: list[ClientRecord], *, new_clients: int
) -> dict[str, Any]:
    """Return a split as JSON, without the digest of the data and the options that divided them.

    Args:
        dataset: its name.
        names: of the clients.
        clients: their examples.
        new_clients: how many of the last ones never take part in training.
    """
    return {
        "dataset": dataset,
        "split_sha256": split_digest(clients, new_clients),
        "new_clients": new_clients,
        "client_names": list(names),
        "conditions": [],
        "clients": clients,
    }


def to_records(positions: list[ClientPositions]) -> list[ClientRecord]:
    """Return the clients' positions as lists."""
    records = []
    for client in positions:
        parts = {side: part.tolist() for side, part in client._asdict().items()}
        records.append(cast(ClientRecord, parts))

    return records


def clients_of_run(record: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the number in the split, and the name, of every client of a run.

    With corruptions, a new client can appear several times: clean first, then once per condition.
    """
    count = len(record["clients"])
    names = record["client_names"] or list(map(str, range(count)))
    num_known = count - record["new_clients"]
    if len(record["conditions"]) <= count:
        return list(enumerate(names))

    clients = list(enumerate(names[:num_known]))
    variants = (len(record["conditions"]) - num_known) // record["new_clients"]
    for number in range(num_known, count):
        clients.append((number, names[number]))
        corrupted = record["conditions"][len(clients) : len(clients) + variants - 1]
        clients += [(number, f"{names[number]}-{condition}") for condition in corrupted]

    return clients


def read_split(path: Path) -> SplitRecord:
    """Read a split that was written as JSON, and check its digest.

    Raises:
        DataError: the file is missing or not a split, or its positions do not have its digest.
    """
    record = read_object(path)
    for name, kind in _TYPES.items():
        if type(record.get(name)) is not kind:  # True would pass as 1
            allowed = f"a split, with '{name}' of type {kind.__name__}"
            raise refuse_split(path, allowed, f"{record.get(name)!r:.80}")

    expected = record["split_sha256"]
    digest = split_digest(record["clients"], record["new_clients"], record["conditions"])
    if digest != expected:
        raise refuse_split(path, f"positions with the digest {expected!r:.80}", digest)

    return cast(SplitRecord, record)


def refuse_split(path: Path, allowed: str, got: str) -> DataError:
    """Return the error for a file that is not a split of the data."""
    message = f"{path}: expected {allowed}, got {got}."
    return DataError(message, key="data.split", path=path, allowed=allowed, got=got)
