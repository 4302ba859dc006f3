"""The class counts of FedCR's first setting: classes around a circle, equal sizes, one example at a
time.
"""

from __future__ import annotations

import math

import numpy as np

_MAX_TRIES = 20
"""Average number of tries per example to find one that another client can give away, before giving
up."""


def deal_cycle(
    sizes: list[int], k: int, clients: int, each: int, generator: np.random.Generator
) -> np.ndarray | None:
    """Return how many examples of its j-th class every client gets, (clients, k); None if no
    division is found.

    Client i may have the classes (i + j) mod C, j < k. The client with the fewest examples (a
    random one among equals) gets an example from the class of which it has the fewest, among
    classes with examples left. If none is left, it takes an example of a shared class from a random
    other client, which is served next.

    Args:
        sizes: number of examples of each of the C classes.
        k: classes of a client.
        clients: number of clients.
        each: number of examples that every client gets.
        generator: source of random numbers.
    """
    if not _can_be_met(sizes, k, clients, each):
        return None

    table = _Table(sizes, k, clients, _MAX_TRIES * each * clients, generator)
    for _ in range(each):
        table.waiting = generator.permutation(clients).tolist()
        table.is_waiting = [True] * clients
        while table.waiting:
            client = table.waiting.pop()
            table.is_waiting[client] = False
            table.serve(client)
            if not table.tries_left:
                return None

    return np.array(table.held)


def _can_be_met(sizes: list[int], k: int, clients: int, each: int) -> bool:
    """Return whether such a division exists, from the maximum flow from classes to clients.

    Clients with the same first class are one node, since they may have the same classes.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    num_classes = len(sizes)
    groups = np.arange(min(num_classes, clients))
    members = (clients - 1 - groups) // num_classes + 1
    starts = np.repeat(groups, k)
    classes = (starts + np.tile(np.arange(k), len(groups))) % num_classes
    source = num_classes + len(groups)
    sink = source + 1
    tails = np.concatenate([np.full(num_classes, source), classes, num_classes + groups])
    heads = np.concatenate(
        [np.arange(num_classes), num_classes + starts, np.full(len(groups), sink)]
    )
    capacities = np.concatenate([np.array(sizes), np.array(sizes)[classes], members * each])
    graph = coo_array(
        (capacities.astype(np.int32), (tails, heads)), shape=(sink + 1, sink + 1)
    ).tocsr()

    return bool(maximum_flow(graph, source, sink).flow_value == each * clients)


class _Table:
    """The counts so far. Waiting clients have the fewest examples; all others have one more."""

    def __init__(
        self, sizes: list[int], k: int, clients: int, tries: int, generator: np.random.Generator
    ) -> None:
        self.left = list(sizes)
        self.held = [[0] * k for _ in range(clients)]
        self.waiting: list[int] = []
        self.is_waiting: list[bool] = []
        self.tries_left = tries
        self.random = generator.random

    def serve(self, client: int) -> None:
        """Give a client one example; a client that gives one away for it gets another."""
        while not self._take_unused(client):
            giver = self._take_from_another(client)
            if giver is None:
                return

            if self.is_waiting[
                giver
            ]:  # it now has the fewest of all: it is served next, and keeps waiting
                client = giver
                continue

            self.is_waiting[giver] = True  # it has the fewest again, and waits at a random place
            place = int(self.random() * (len(self.waiting) + 1))
            self.waiting.append(giver)
            self.waiting[place], self.waiting[-1] = self.waiting[-1], self.waiting[place]

            return

    def _take_unused(self, client: int) -> bool:
        """Give a client an unused example of the class of which it has the fewest; False if there
        is none.
        """
        own = self.held[client]
        num_classes = len(self.left)
        chosen = -1
        for slot, count in enumerate(own):
            if self.left[(client + slot) % num_classes] == 0:
                continue
            if chosen < 0 or count < own[chosen]:
                chosen = slot

        if chosen < 0:
            return False

        own[chosen] += 1
        self.left[(client + chosen) % num_classes] -= 1
        return True

    def _take_from_another(self, client: int) -> int | None:
        """Take an example of a shared class from a random other client; return that client, or None
        without success.
        """
        own = self.held[client]
        num_classes = len(self.left)
        k = len(own)
        clients = len(self.held)
        width = min(
            2 * k - 1, num_classes
        )  # clients that share a class start at most k - 1 places away
        layers = math.ceil(clients / num_classes)

        while self.tries_left:
            self.tries_left -= 1
            start = (client + int(self.random() * width) - (k - 1)) % num_classes
            other = start + num_classes * int(self.random() * layers)
            if other >= clients or other == client:
                continue

            lead = (other - client) % num_classes
            given = self.held[other]
            shared = [slot for slot in range(k) if given[slot] and (lead + slot) % num_classes < k]
            if shared:
                slot = shared[int(self.random() * len(shared))]
                given[slot] -= 1
                own[(lead + slot) % num_classes] += 1
                return other

        return None
