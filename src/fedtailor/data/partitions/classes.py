"""Partitions in which every client holds k classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedtailor.core.options import Range
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions._cycle import deal_cycle
from fedtailor.data.partitions._dealing import hand_out, positions_by_value
from fedtailor.data.partitions.base import Partition


@dataclass(frozen=True, kw_only=True)
class Classes(Partition):
    """Every client holds ``k`` classes; the clients that hold a class share it evenly.

    Classes are dealt from shuffled packs of all classes, so that the numbers of clients that hold a
    class differ by at most one.
    """

    name = "classes"

    k: Annotated[int, Range(ge=1)]
    """Classes of a client."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Deal the classes, then cut each class evenly among its holders."""
        generator = np.random.RandomState(seed % 2**32)
        present, by_class = positions_by_value(annotations.labels)
        _check_k(self, self.k, len(present))
        if self.k * clients < len(present):
            allowed = f"k x clients >= {len(present)}, so that every class is held by some client"
            raise self.impossible(allowed, f"{self.k} x {clients}")

        holders: dict[int, list[int]] = {each: [] for each in present.tolist()}
        for client, hand in enumerate(self._deal(present, clients, generator)):
            for each in hand:
                holders[each].append(client)

        pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for (each, takers), positions in zip(holders.items(), by_class, strict=True):
            if len(positions) < len(takers):
                allowed = f"at least {len(takers)} examples of class {each}, one for each client that holds it"
                raise self.impossible(allowed, str(len(positions)))

            order = generator.permutation(positions)
            for client, piece in zip(takers, np.array_split(order, len(takers)), strict=True):
                pieces[client].append(piece)

        return [np.concatenate(parts) for parts in pieces]

    def _deal(
        self, present: np.ndarray, clients: int, generator: np.random.RandomState
    ) -> list[list[int]]:
        """Return ``k`` different classes for each client."""
        pack: list[int] = []
        hands = []
        for _ in range(clients):
            hand = pack[: self.k]
            pack = pack[self.k :]
            if len(hand) < self.k:
                fresh = generator.permutation(present).tolist()
                fresh.sort(
                    key=lambda each, held=tuple(hand): each in held
                )  # stable: classes not in hand come first
                missing = self.k - len(hand)
                hand = hand + fresh[:missing]
                pack = fresh[missing:]

            hands.append(hand)

        return hands


@dataclass(frozen=True, kw_only=True)
class CyclicClasses(Partition):
    """Client i holds the ``k`` classes from the i-th on, around the circle of classes; all clients
    have equal sizes.

    FedCR's first setting (Zhang et al. 2023, ICML; ``non-iid_1``), as released: one example at a
    time goes to the client with the fewest examples, from the class of which it has the fewest; if
    all its classes are used up, it takes an example from another client. Sizes are exactly equal; a
    remainder of the examples is left over. FedCR's experiments use ``k`` 5, and 15 for CIFAR-100.
    """

    name = "cyclic_classes"
    hands_out_all = False

    k: Annotated[int, Range(ge=1)] = 5
    """Classes of a client."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Decide how many examples of each class a client gets, then hand out shuffled examples."""
        generator = np.random.default_rng([seed])
        _, by_class = positions_by_value(annotations.labels)
        num_classes = len(by_class)
        _check_k(self, self.k, num_classes)
        if self.k + clients - 1 < num_classes:
            allowed = (
                f"k + clients - 1 >= {num_classes}, so that every class is held by some client"
            )
            raise self.impossible(allowed, f"{self.k} + {clients} - 1")

        each = len(annotations.labels) // clients
        held = deal_cycle(
            [len(positions) for positions in by_class], self.k, clients, each, generator
        )
        if held is None:
            sizes = ", ".join(str(len(positions)) for positions in by_class[:20])
            if num_classes > 20:
                sizes += " and more"

            raise self.impossible(
                f"classes whose sizes allow {each} examples for every client", sizes
            )

        owners, slots = np.nonzero(held)
        counts = held[owners, slots]
        pools = [generator.permutation(positions) for positions in by_class]
        classes = np.repeat((owners + slots) % num_classes, counts)

        return hand_out(pools, classes, np.repeat(owners, counts), clients)


def _check_k(partition: Partition, k: int, num_classes: int) -> None:
    """Refuse more classes per client than there are."""
    if k > num_classes:
        raise partition.impossible(
            f"k <= {num_classes}, the number of classes with examples", f"k={k}"
        )
