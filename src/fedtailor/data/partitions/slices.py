"""The partitions of pFedVEM, in which labels or subclasses are cut at random places.

Each type of examples is cut into one block per client that holds the type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.core.options import NonNegativeInt
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition, positions_by_value


@dataclass(frozen=True, kw_only=True)
class LabelSlices(Partition):
    """Every client holds ``k`` labels; each label is cut at random places among its clients.

    The label skew of pFedVEM (Zhu et al. 2023, CVPR, appendix A), as released: within each group of
    C / k clients, every client gets a different part of the C labels, so that all labels are held
    by equally many clients. If M clients hold a label of N examples, these are shuffled and cut at
    M - 1 different points drawn uniformly from 1 to N - 1. ``k`` must divide C, and C / k the
    number of clients. If labels differ in size, shared cut points are drawn for the smallest label
    and scaled for larger ones.
    """

    name = "label_slices"

    k: NonNegativeInt = 0
    """Labels of a client; 0: half of them."""
    shared_cuts: bool = True
    """One set of cut points for all labels, as released; otherwise separate cut points for each
    label, as in the text of the paper."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Permute the labels for each group of clients, then cut."""
        generator = np.random.default_rng([seed])
        labels, pools = positions_by_value(annotations.labels)
        # A group of clients shares all labels: each client takes k of them.
        num_labels = len(labels)
        k = self.k or max(num_labels // 2, 1)
        if num_labels % k:
            allowed = f"a k that divides {num_labels}, the number of classes with examples"
            raise self.impossible(allowed, f"k={k}")

        group = num_labels // k
        reason = f"since a client holds {k} of {num_labels} classes"
        blocks = _count_groups(self, clients, group, reason)
        self.check_sizes(pools, [blocks] * num_labels, [f"class {label}" for label in labels])

        # Who gets a block of which label, and where labels are cut.
        takers = _deal(num_labels, blocks, group, generator)
        cuts = _cut_all([len(pool) for pool in pools], blocks, generator, shared=self.shared_cuts)
        return give_blocks(pools, cuts, takers.T.tolist(), clients, generator)


@dataclass(frozen=True, kw_only=True)
class SubclassSlices(Partition):
    """Every client holds one random subclass of every label, cut as in ``label_slices``.

    The concept drift of pFedVEM (Zhu et al. 2023, CVPR, appendix A), as released: within each group
    of J clients, where J is the number of subclasses of a label, every client gets a different
    subclass of every label. J is 5 for CIFAR-100 with 20 labels, 50 for SUN397 with 3. J must be
    the same for all labels, and divide the number of clients.
    """

    name = "subclass_slices"

    homogeneous: bool = False
    """Every client holds all subclasses (pFedVEM, Table 2): each is cut into one block per
    client."""
    equal: bool = False
    """Blocks whose sizes differ by at most one, instead of random cuts (pFedVEM, Table 3)."""
    shared_cuts: bool = True
    """One set of cut points for all subclasses, as released; otherwise separate cut points for
    each."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Permute the subclasses within every label for each group of clients, then cut."""
        if annotations.subclasses is None:
            raise self.impossible("subclasses", "a data set without them")

        generator = np.random.default_rng([seed])
        subclasses, pools = positions_by_value(annotations.subclasses)
        # The subclasses of each label; all examples of a subclass have the label of the first.
        families = self._families(annotations.labels[[pool[0] for pool in pools]])
        group = 1 if self.homogeneous else len(families[0])
        blocks = _count_groups(self, clients, group, "the number of subclasses of a label")
        names = [f"subclass {subclass}" for subclass in subclasses]
        self.check_sizes(pools, [blocks] * len(pools), names)

        # Block i goes to client i, unless the clients of a group share the subclasses.
        takers = np.repeat(np.arange(blocks)[:, None], len(pools), axis=1)
        if not self.homogeneous:
            for family in families:
                takers[:, family] = _deal(group, blocks, group, generator)

        # Where the subclasses are cut.
        sizes = [len(pool) for pool in pools]
        if self.equal:
            cuts = [np.arange(1, blocks) * size // blocks for size in sizes]
        else:
            cuts = _cut_all(sizes, blocks, generator, shared=self.shared_cuts)

        return give_blocks(pools, cuts, takers.T.tolist(), clients, generator)

    def _families(self, labels: np.ndarray) -> list[np.ndarray]:
        """Return the indices of the subclasses of each label, given the label of each subclass."""
        values, families = positions_by_value(labels)
        size = len(families[0])
        for value, family in zip(values, families, strict=True):
            if len(family) != size and not self.homogeneous:
                first = f"{size} as in label {values[0]}"
                allowed = f"the same number of subclasses in every label, {first}"
                raise self.impossible(allowed, f"{len(family)} in label {value}")

        return families


def give_blocks(
    pools: Sequence[np.ndarray],
    cuts: Sequence[np.ndarray],
    takers: Sequence[Sequence[int]],
    clients: int,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    """Shuffle each pool, cut it, and give its blocks away, the last first as in the release.

    Args:
        pools: positions of each type.
        cuts: cut points of each pool, one fewer than it has takers.
        takers: the clients that hold each type, in the order in which they get a block.
        clients: number of clients.
        generator: source of random numbers.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for pool, points, holders in zip(pools, cuts, takers, strict=True):
        blocks = np.split(generator.permutation(pool), points)
        for client in holders:
            parts[client].append(blocks.pop())

    return [np.concatenate(part) for part in parts]


def cut_points(size: int, blocks: int, generator: np.random.Generator) -> np.ndarray:
    """Return ``blocks`` - 1 different points, uniform in 1 to ``size`` - 1 and sorted."""
    return np.sort(generator.choice(size - 1, blocks - 1, replace=False)) + 1


def _cut_all(
    sizes: Sequence[int], blocks: int, generator: np.random.Generator, *, shared: bool
) -> list[np.ndarray]:
    """Return the points that cut types of the given sizes into ``blocks`` blocks each.

    Shared points are drawn for the smallest type and scaled for larger ones, so that no block is
    empty.
    """
    if not shared:
        return [cut_points(size, blocks, generator) for size in sizes]

    # Scaling up keeps different points different.
    smallest = min(sizes)
    points = cut_points(smallest, blocks, generator)
    return [points * size // smallest for size in sizes]


def _count_groups(partition: Partition, clients: int, group: int, reason: str) -> int:
    """Return the number of groups of ``group`` clients; refuse an incomplete last group."""
    if clients % group:
        allowed = f"a number of clients that {group} divides, {reason}"
        raise partition.impossible(allowed, f"{clients} clients")
    return clients // group


def _deal(types: int, blocks: int, group: int, generator: np.random.Generator) -> np.ndarray:
    """Return the clients that take a block of each type, (blocks, types).

    The clients of group g are g * ``group`` and the following ones. They share the types in a
    random order: the first client takes the first types.
    """
    # A random order of the types for each group, (blocks, types).
    orders = generator.permuted(np.tile(np.arange(types), (blocks, 1)), axis=1)
    members = np.arange(types) // (types // group)
    takers = np.empty_like(orders)
    np.put_along_axis(takers, orders, np.arange(blocks)[:, None] * group + members, axis=1)
    return takers
