"""Class means in a run folder: the mean features of every client's training examples, by class, in
one file. No torch.

The safetensors file holds ``clients`` (n,), the numbers of the clients, ``counts`` (n, classes),
how many training examples each of them has, and by client ``means/NUMBER`` (present classes, d),
one row for every class that it has examples of, in the order of the classes. The number d of
features may differ by client, because models may.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors.numpy import save

from fedtailor.core.reading import damaged
from fedtailor.experiment.arrays import to_arrays

if TYPE_CHECKING:
    from fedtailor.core.class_means import ClassMeans


class ClientMeans(NamedTuple):
    """The class means of one client."""

    means: np.ndarray  # (classes, d)
    """Mean features of every class, float32; NaN for a class without examples."""
    counts: np.ndarray  # (classes,)
    """Training examples of every class."""


def to_file(found: Mapping[int, ClassMeans], num_classes: int) -> bytes:
    """Return the class means of clients as a file."""
    counts = np.zeros((len(found), num_classes), np.int64)
    means = {}
    for row, (client, each) in enumerate(found.items()):
        counts[row] = each.counts.numpy()
        means[f"means/{client}"] = np.ascontiguousarray(each.means.numpy()[counts[row] > 0])
    return save({"clients": np.array(list(found), np.int64), "counts": counts, **means})


def from_file(raw: bytes, path: Path) -> dict[int, ClientMeans]:
    """Return the class means by client.

    Args:
        raw: the content of the file.
        path: the file, for messages.

    Raises:
        DataError: the content is damaged.
    """
    tensors = to_arrays(raw, path)
    clients = tensors.pop("clients", np.empty(0))
    counts = tensors.pop("counts", np.empty(0))
    if (clients.ndim, counts.ndim) != (1, 2) or len(clients) != len(counts):
        raise damaged(path, "it does not say how many examples of every class which clients have")
    if clients.dtype != np.int64 or counts.dtype != np.int64 or (counts < 0).any():
        raise damaged(path, "numbers of clients or examples are not whole")
    if tensors.keys() != {f"means/{client}" for client in clients}:
        raise damaged(path, "clients and means do not belong together")

    return {
        int(client): _with_absent(tensors[f"means/{client}"], own, path)
        for client, own in zip(clients, counts, strict=True)
    }


def _with_absent(rows: np.ndarray, counts: np.ndarray, path: Path) -> ClientMeans:
    """Return the class means of a client from those of the classes that it has."""
    present = counts > 0
    if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != present.sum():
        raise damaged(path, "means and numbers of examples do not belong together")
    means = np.full((len(counts), rows.shape[1]), np.nan, np.float32)
    means[present] = rows
    return ClientMeans(means, counts)
