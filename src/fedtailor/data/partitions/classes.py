"""Partitions in which every client holds k classes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedtailor.core.options import PositiveInt
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition, hand_out, positions_by_value

_MAX_TRIES = 20
"""Tries per example, on average, to find one that another client can give away."""


@dataclass(frozen=True, kw_only=True)
class Classes(Partition):
    """Every client holds ``k`` classes; the clients that hold a class share it evenly.

    Classes are dealt from shuffled packs of all classes, so that the numbers of clients that hold a
    class differ by at most one.
    """

    name = "classes"

    k: PositiveInt
    """Classes of a client."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Deal the classes, then cut each class evenly among its holders."""
        generator = np.random.RandomState(seed % 2**32)
        labels, by_class = positions_by_value(annotations.labels)
        _check_k(self, self.k, len(labels))
        if self.k * clients < len(labels):
            allowed = f"k x clients >= {len(labels)}, so that every class is held by some client"
            raise self.impossible(allowed, f"{self.k} x {clients}")

        # Who holds each class.
        holders: dict[int, list[int]] = {label: [] for label in labels.tolist()}
        for client, hand in enumerate(self._deal(labels, clients, generator)):
            for label in hand:
                holders[label].append(client)

        needed = [len(takers) for takers in holders.values()]
        self.check_sizes(by_class, needed, [f"class {label}" for label in holders])

        # Equal pieces of each class, in random order.
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for takers, positions in zip(holders.values(), by_class, strict=True):
            pieces = np.array_split(generator.permutation(positions), len(takers))
            for client, piece in zip(takers, pieces, strict=True):
                parts[client].append(piece)

        return [np.concatenate(part) for part in parts]

    def _deal(
        self, labels: np.ndarray, clients: int, generator: np.random.RandomState
    ) -> list[list[int]]:
        """Return ``k`` different classes for each client."""
        # What is left of the last pack goes to the next client first.
        pack: list[int] = []
        hands = []
        for _ in range(clients):
            hand = pack[: self.k]
            pack = pack[self.k :]

            # The rest comes from a new pack, in which the classes in hand go to the bottom.
            absent = self.k - len(hand)
            if absent:
                new_pack = generator.permutation(labels).tolist()
                new_pack.sort(key=set(hand).__contains__)
                hand += new_pack[:absent]
                pack = new_pack[absent:]

            hands.append(hand)

        return hands


@dataclass(frozen=True, kw_only=True)
class CyclicClasses(Partition):
    """Client i holds the ``k`` classes from the i-th on, around the circle; sizes are equal.

    FedCR's first setting (Zhang et al. 2023, ICML; ``non-iid_1``), as released: one example at a
    time goes to the client with the fewest examples, from the class of which it has the fewest; if
    all its classes are used up, it takes an example from another client. Sizes are exactly equal; a
    remainder of the examples is left over. FedCR's experiments use ``k`` 5, and 15 for CIFAR-100.
    """

    name = "cyclic_classes"

    k: PositiveInt = 5
    """Classes of a client."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Decide how many examples of each class a client gets, then hand out shuffled ones."""
        generator = np.random.default_rng([seed])
        _, by_class = positions_by_value(annotations.labels)
        num_classes = len(by_class)
        _check_k(self, self.k, num_classes)
        if self.k + clients - 1 < num_classes:
            allowed = f"k + clients - 1 >= {num_classes}, so that some client holds every class"
            raise self.impossible(allowed, f"{self.k} + {clients} - 1")

        # How many examples of each of its classes every client gets: (clients, k).
        quota = len(annotations.labels) // clients
        sizes = [len(positions) for positions in by_class]
        counts = deal_cycle(sizes, self.k, clients, quota, generator)
        if counts is None:
            allowed = f"classes whose sizes allow {quota} examples for every client"
            more = " and more" if num_classes > 20 else ""
            raise self.impossible(allowed, ", ".join(map(str, sizes[:20])) + more)

        # One entry for every example that is handed out: its class and its owner.
        owners, slots = np.nonzero(counts)
        repeats = counts[owners, slots]
        classes = np.repeat((owners + slots) % num_classes, repeats)
        pools = [generator.permutation(positions) for positions in by_class]
        return hand_out(pools, classes, np.repeat(owners, repeats), clients)


def deal_cycle(
    sizes: list[int], k: int, clients: int, quota: int, generator: np.random.Generator
) -> np.ndarray | None:
    """Return how many examples of its j-th class every client gets, (clients, k).

    Client i may have the classes (i + j) mod C, j < k. The client with the fewest examples (a
    random one among equals) gets an example from the class of which it has the fewest, among
    classes with examples left. If none is left, it takes an example of a shared class from a random
    other client, which is served next.

    Args:
        sizes: number of examples of each of the C classes.
        k: classes of a client.
        clients: number of clients.
        quota: number of examples that every client gets.
        generator: source of random numbers.

    Returns:
        None if no division is found.
    """
    # In every turn each client gets one example, in a random order.
    deal = _CycleDeal(sizes, k, clients, _MAX_TRIES * quota * clients, generator)
    for _ in range(quota):
        deal.waiting = generator.permutation(clients).tolist()
        while deal.waiting:
            deal.serve(deal.waiting.pop())
            if not deal.tries_left:
                return None

    return np.array(deal.counts)


class _CycleDeal:
    """The counts so far. Waiting clients have the fewest examples; all others have one more."""

    def __init__(
        self, sizes: list[int], k: int, clients: int, tries: int, generator: np.random.Generator
    ) -> None:
        self.left = list(sizes)
        self.counts = [[0] * k for _ in range(clients)]
        self.waiting: list[int] = []
        self.tries_left = tries
        self.random = generator.random

    def serve(self, client: int) -> None:
        """Give a client one example; a client that gives one away for it gets another."""
        while not self._take_unused(client):
            giver = self._take_from_another(client)
            if giver is None:
                return

            # A waiting giver now has the fewest of all: it is served next, and keeps waiting.
            if giver in self.waiting:
                client = giver
                continue

            # Any other giver has the fewest again, and waits at a random place.
            position = int(self.random() * (len(self.waiting) + 1))
            self.waiting.append(giver)
            self.waiting[position], self.waiting[-1] = self.waiting[-1], self.waiting[position]
            return

    def _take_unused(self, client: int) -> bool:
        """Give a client an unused example of the class of which it has the fewest, if any."""
        counts = self.counts[client]
        num_classes = len(self.left)
        slots = [slot for slot in range(len(counts)) if self.left[(client + slot) % num_classes]]
        if not slots:
            return False

        # Among equals the first one.
        slot = min(slots, key=counts.__getitem__)
        counts[slot] += 1
        self.left[(client + slot) % num_classes] -= 1
        return True

    def _take_from_another(self, client: int) -> int | None:
        """Take an example of a shared class from a random other client, and return that client."""
        counts = self.counts[client]
        num_classes = len(self.left)
        clients = len(self.counts)
        k = len(counts)

        # Clients that share a class start at most k - 1 places away.
        width = min(2 * k - 1, num_classes)
        layers = math.ceil(clients / num_classes)
        while self.tries_left:
            self.tries_left -= 1
            start = (client + int(self.random() * width) - (k - 1)) % num_classes
            other = start + num_classes * int(self.random() * layers)
            if other >= clients or other == client:
                continue

            # Slot j of the other client is class j + lead of this one.
            lead = (other - client) % num_classes
            stock = self.counts[other]
            shared = [slot for slot in range(k) if stock[slot] and (lead + slot) % num_classes < k]
            # The other client may have no example of a shared class: another try.
            if shared:
                slot = shared[int(self.random() * len(shared))]
                stock[slot] -= 1
                counts[(lead + slot) % num_classes] += 1
                return other

        return None


def _check_k(partition: Partition, k: int, num_classes: int) -> None:
    if k > num_classes:
        allowed = f"k <= {num_classes}, the number of classes with examples"
        raise partition.impossible(allowed, f"k={k}")
