"""Partition of examples of which some belong together, such as those of a patient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition
from fedtailor.data.split import ClientPositions

Side = Literal["train", "val", "test"]

SIDES: Mapping[Side, str] = {"train": "training", "val": "validation", "test": "test"}
"""The sides of a split, and what they are for."""


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


def choose_groups(
    groups: np.ndarray, count: int, sides: Mapping[int, Side], side: Side
) -> list[int]:
    """Return the groups for a side: those that are on it, and the first free ones.

    They come closest to ``count`` examples, and at least one group is left for training.

    Args:
        groups: the group of every example (n,), in order.
        count: number of examples for the side.
        sides: the sides of groups that are not free.
        side: the side.
    """
    # Groups in the order of appearance.
    sizes = Counter(groups.tolist())
    fixed = [group for group in sizes if sides.get(group) == side]
    free = [group for group in sizes if group not in sides]
    # How many examples the side has with each number of free groups.
    ends = np.cumsum([sum(sizes[group] for group in fixed), *(sizes[group] for group in free)])
    number = int(np.argmin(np.abs(ends - count)))

    # Something must be left for training.
    if len(fixed) + number == len(sizes):
        number = max(number - 1, 0)
    return [*fixed, *free[:number]]


def check_groups_together(
    positions: Sequence[ClientPositions], groups: np.ndarray, *, key: str
) -> None:
    """Check that the examples of a group are all on one side.

    Raises:
        DataError: a group is on two sides; the message counts them.
    """
    for one, other in combinations(SIDES, 2):
        first = np.concatenate([getattr(client, one) for client in positions])
        second = np.concatenate([getattr(client, other) for client in positions])
        both = np.intersect1d(groups[first], groups[second])
        if len(both):
            where = f"examples in {SIDES[one]} and in {SIDES[other]}"
            raise DataError(
                f"{len(both)} groups of data.group have {where}, but must stay on one side.",
                key=key,
                allowed="each group on one side",
                got=f"{len(both)} on two",
            )
