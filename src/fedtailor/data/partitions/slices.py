"""The partitions of pFedVEM: every client holds some labels or subclasses, whose examples are cut
at random places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedtailor.core.options import Range
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions._blocks import check_sizes, count_groups, cuts_of, give_blocks
from fedtailor.data.partitions._dealing import positions_by_value
from fedtailor.data.partitions.base import Partition


@dataclass(frozen=True, kw_only=True)
class LabelSlices(Partition):
    """Every client holds ``k`` labels; each label is cut at random places into one block per client
    that holds it.

    The label skew of pFedVEM (Zhu et al. 2023, CVPR, appendix A), as released: within each group of
    C / k clients, every client gets a different part of the C labels, so that all labels are held
    by equally many clients. If M clients hold a label of N examples, these are shuffled and cut at
    M - 1 different points drawn uniformly from 1 to N - 1. ``k`` must divide C, and C / k the
    number of clients. If labels differ in size, shared cut points are drawn for the smallest label
    and scaled for larger ones.
    """

    name = "label_slices"

    k: Annotated[int, Range(ge=0)] = 0
    """Labels of a client; 0: half of them."""
    shared_cuts: bool = True
    """One set of cut points for all labels, as released; otherwise separate cut points for each
    label, as in the text of the paper."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Permute the labels for each group of clients, then cut."""
        generator = np.random.default_rng([seed])
        present, pools = positions_by_value(annotations.labels)
        num_labels = len(present)
        k = self.k or max(num_labels // 2, 1)
        if num_labels % k:
            raise self.impossible(
                f"a k that divides {num_labels}, the number of classes with examples", f"k={k}"
            )

        group = num_labels // k
        blocks = count_groups(
            self, clients, group, f"since a client holds {k} of {num_labels} classes"
        )
        check_sizes(self, pools, [blocks] * num_labels, [f"class {each}" for each in present])
        takers = _deal(np.arange(num_labels), blocks, group, generator)
        cuts = cuts_of([len(pool) for pool in pools], blocks, generator, shared=self.shared_cuts)

        return give_blocks(pools, cuts, takers.T.tolist(), clients, generator)


@dataclass(frozen=True, kw_only=True)
class SubclassSlices(Partition):
    """Every client holds one random subclass of every label, cut at random places as in
    ``label_slices``.

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
        present, pools = positions_by_value(annotations.subclasses)
        families = self._families(annotations.labels[[pool[0] for pool in pools]])
        group = 1 if self.homogeneous else len(families[0])
        blocks = count_groups(self, clients, group, "the number of subclasses of a label")
        check_sizes(self, pools, [blocks] * len(pools), [f"subclass {each}" for each in present])
        takers = np.repeat(np.arange(blocks)[:, None], len(pools), axis=1)

        if not self.homogeneous:
            for family in families:
                takers[:, family] = _deal(np.arange(group), blocks, group, generator)

        sizes = [len(pool) for pool in pools]
        if self.equal:
            cuts = [np.arange(1, blocks) * size // blocks for size in sizes]
        else:
            cuts = cuts_of(sizes, blocks, generator, shared=self.shared_cuts)

        return give_blocks(pools, cuts, takers.T.tolist(), clients, generator)

    def _families(self, labels: np.ndarray) -> list[np.ndarray]:
        """Return the indices of the subclasses of each label, given the label of each subclass."""
        values, families = positions_by_value(labels)
        num_first = len(families[0])
        for value, family in zip(values, families, strict=True):
            if len(family) != num_first and not self.homogeneous:
                allowed = f"the same number of subclasses in every label, {num_first} as in label {values[0]}"
                raise self.impossible(allowed, f"{len(family)} in label {value}")
        return families


def _deal(types: np.ndarray, blocks: int, group: int, generator: np.random.Generator) -> np.ndarray:
    """Return the clients that take a block of each type, (blocks, types): a random part for each
    client of a group.

    The clients of group g are g * ``group`` and the following ones; the first takes the first types
    of a random order.
    """
    orders = generator.permuted(np.tile(types, (blocks, 1)), axis=1)
    members = np.arange(len(types)) // (len(types) // group)
    takers = np.empty_like(orders)
    np.put_along_axis(takers, orders, np.arange(blocks)[:, None] * group + members, axis=1)
    return takers
