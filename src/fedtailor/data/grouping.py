"""Partition of examples of which some belong together, such as those of a patient."""

from __future__ import annotations

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition


def count_units(partition: Partition, annotations: Annotations, groups: np.ndarray) -> int:
    """Return how many groups a partition divides, see :func:`divide_groups`."""
    return len(np.unique(_units(partition, annotations, groups)))


def divide_groups(
    partition: Partition, annotations: Annotations, groups: np.ndarray, *, clients: int, seed: int
) -> list[np.ndarray]:
    """Return the positions of each client's examples, so that each group is at one client.

    The partition divides groups as if each were one example with the group's most frequent label.
    If it divides by domain, the examples of a group in different domains are different groups.

    Args:
        partition: the partition.
        annotations: labels, subclasses and domains of the examples.
        groups: number of each example's group (rows,).
        clients: number of clients.
        seed: seed of the partition.

    Raises:
        DataError: there are fewer groups than clients, or the partition is impossible on this data.
    """
    units = _units(partition, annotations, groups)
    typical = annotations.take(_typical_examples(units, annotations.labels))
    try:
        parts = partition.divide(typical, clients=clients, seed=seed)
    except DataError as error:
        message = f"{error.message} A group (data.group) counts as one example."
        raise DataError(message, key=error.key, allowed=error.allowed, got=error.got) from error

    # The positions of every unit, in ascending order.
    order = np.argsort(units, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(units[order])) + 1)
    return [np.concatenate([members[unit] for unit in part]) for part in parts]


def _units(partition: Partition, annotations: Annotations, groups: np.ndarray) -> np.ndarray:
    """Return the number of what is divided (rows,), from 0: groups, or groups within a domain."""
    keys = groups[None]
    if partition.by_domain and annotations.domains is not None:
        keys = np.stack([groups, annotations.domains])
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)


def _typical_examples(units: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for every unit (units,) the first example of its most frequent label.

    If several are, it is the smallest of them.
    """
    pairs, first, counts = np.unique(
        np.stack([units, labels]), axis=1, return_index=True, return_counts=True
    )
    # By unit, most frequent label first, then smallest label.
    order = np.lexsort((pairs[1], -counts, pairs[0]))
    is_first = np.diff(pairs[0][order], prepend=-1) > 0
    typical: np.ndarray = first[order][is_first]
    return typical
