"""Partition and split of examples of which some belong together, such as those of a patient."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.options import DataOptions
from fedtailor.data.partitions.base import Partition
from fedtailor.data.split import ClientRows

Side = Literal["train", "val", "test"]

_SIDES: tuple[Side, ...] = ("train", "val", "test")


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
    members = _members(units)
    typical = _typical_examples(units, annotations.labels)
    try:
        parts = partition.divide(annotations.take(typical), clients=clients, seed=seed)
    except DataError as error:
        message = f"{error.message} A group (data.group) counts as one example."
        raise DataError(message, key=error.key, allowed=error.allowed, got=error.got) from error

    return [np.concatenate([members[unit] for unit in part]) for part in parts]


def _units(partition: Partition, annotations: Annotations, groups: np.ndarray) -> np.ndarray:
    """Return the number of what is divided (rows,), from 0: groups, or groups within a domain."""
    keys = groups[None]
    if partition.by_domain and annotations.domains is not None:
        keys = np.stack([groups, annotations.domains])
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)


def _members(units: np.ndarray) -> list[np.ndarray]:
    """Return the positions of every unit, in ascending order."""
    order = np.argsort(units, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(units[order])) + 1)


def _typical_examples(units: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for every unit (units,) the first example of its most frequent label, of the smallest
    if several are.
    """
    pairs, first, counts = np.unique(
        np.stack([units, labels]), axis=1, return_index=True, return_counts=True
    )
    order = np.lexsort((pairs[1], -counts, pairs[0]))
    is_first = np.diff(pairs[0][order], prepend=-1) > 0
    typical: np.ndarray = first[order][is_first]
    return typical


def split_by_groups(
    positions: np.ndarray,
    groups: np.ndarray,
    options: DataOptions,
    seed: int,
    sides: dict[int, Side],
    num_official_train: int = 0,
    generator: np.random.RandomState | None = None,
) -> ClientRows:
    """Split one client's examples as :func:`fedtailor.data.division.split_client` does, but by
    whole groups.

    Groups are shuffled. The first ones are for testing, as many as come closest to the share asked
    for; of the kept training examples, the last ones are for validation. A client with one group
    has it for training.

    Args:
        positions: the client's examples (n,).
        groups: number of the group of every example of the data set.
        options: the ``[data]`` section.
        seed: seed of the shuffle.
        sides: the side of every group that an earlier client has too, where it stays; this client's
            are added.
        num_official_train: number of examples in the official training part.
        generator: see ``split_client``.
    """
    own, place = np.unique(groups[positions], return_inverse=True)
    rank = np.empty_like(own)
    rank[np.random.RandomState(seed % 2**32).permutation(len(own))] = np.arange(len(own))
    ordered = positions[np.argsort(rank[place], kind="stable")]
    is_test = np.zeros(len(ordered), dtype=bool)

    if options.test == "given":
        is_test = ordered >= num_official_train
    elif options.test in ("auto", "own"):
        num_test = len(ordered) - math.floor((1 - options.test_share) * len(ordered))
        is_test = np.isin(groups[ordered], _take(groups[ordered], num_test, sides, "test"))

    train = ordered[~is_test]
    num_kept = options.num_kept(len(train))
    if generator is not None:
        train = train[generator.permutation(len(train))]
        generator.permutation(len(train) - num_kept)  # as in split_client

    kept = train[:num_kept]
    num_val = math.floor(options.val_fraction * len(kept))
    is_val = np.isin(groups[kept], _take(groups[kept][::-1], num_val, sides, "val"))
    rows = ClientRows(kept[~is_val], kept[is_val], ordered[is_test])
    for side in _SIDES:
        for group in np.unique(groups[getattr(rows, side)]).tolist():
            sides.setdefault(group, side)

    return rows


def _take(groups: np.ndarray, wanted: int, sides: Mapping[int, Side], side: Side) -> list[int]:
    """Return the groups for a side: those that are on it, and the first free ones that come closest
    to ``wanted``.

    At least one group is left for training.

    Args:
        groups: the group of every example (n,), in order.
        wanted: number of examples for the side.
        sides: the sides of groups that are not free.
        side: the side.
    """
    sizes = Counter(groups.tolist())  # in the order of appearance
    fixed = [group for group in sizes if sides.get(group) == side]
    free = [group for group in sizes if group not in sides]
    ends = np.cumsum([sum(sizes[group] for group in fixed), *(sizes[group] for group in free)])
    number = int(np.argmin(np.abs(ends - wanted)))
    if len(fixed) + number == len(sizes):
        number = max(number - 1, 0)
    return [*fixed, *free[:number]]


def check_groups_together(rows: Sequence[ClientRows], groups: np.ndarray, *, key: str) -> None:
    """Check that the examples of a group are all for training, all for validation, or all for
    testing.

    Raises:
        DataError: a group is on two sides; the message counts them.
    """
    sides = {
        name: np.unique(groups[np.concatenate([getattr(each, name) for each in rows])])
        for name in rows[0]._fields
    }
    for one, other in (("train", "test"), ("train", "val"), ("val", "test")):
        both = np.intersect1d(sides[one], sides[other])
        if len(both):
            words = {"train": "training", "val": "validation", "test": "test"}
            message = (
                f"{len(both)} groups of data.group have examples in {words[one]} and in {words[other]}, but a group "
                "must stay on one side."
            )
            raise DataError(
                message, key=key, allowed="each group on one side", got=f"{len(both)} on two"
            )
