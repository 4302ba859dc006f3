"""The counts of FedCR's first setting: classes around a circle, equal sizes, one example at a time."""

from __future__ import annotations

import numpy as np

_MAX_TRIES = 20
"""Tries, per example, to find one that another client can give away before the whole is given up."""


def deal_cycle(sizes: list[int], k: int, clients: int, each: int, generator: np.random.Generator) -> np.ndarray | None:
    """Return how many examples of its j-th class every client gets, (clients, k); None if it cannot be done.

    Client i may have the classes (i + j) mod C, j < k. The client with fewest examples (a random one among equals)
    gets one of its class of which it has fewest, among those with examples left; without any left, it takes
    one of a shared class from a random other client, which then is the one to be served.

    Args:
        sizes: examples of each of the C classes.
        k: classes of a client.
        clients: how many clients.
        each: examples that every client gets.
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
    """Return whether there is any such division, by the largest flow from classes to clients.

    Clients whose first class is the same are one node, since they may have the same classes.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    num_classes = len(sizes)
    groups = np.arange(min(num_classes, clients))
    members = (clients - 1 - groups) // num_classes + 1
    starts = np.repeat(groups, k)
    classes = (starts + np.tile(np.arange(k), len(groups))) % num_classes
    source, sink = num_classes + len(groups), num_classes + len(groups) + 1
    tails = np.concatenate([np.full(num_classes, source), classes, num_classes + groups])
    heads = np.concatenate([np.arange(num_classes), num_classes + starts, np.full(len(groups), sink)])
    capacities = np.concatenate([np.array(sizes), np.array(sizes)[classes], members * each])
    graph = coo_array((capacities.astype(np.int32), (tails, heads)), shape=(sink + 1, sink + 1)).tocsr()
    return bool(maximum_flow(graph, source, sink).flow_value == each * clients)


class _Table:
    """Who has how many so far. Clients that wait have fewest; all others have one more."""

    def __init__(self, sizes: list[int], k: int, clients: int, tries: int, generator: np.random.Generator) -> None:
        self.left = list(sizes)
        self.held = [[0] * k for _ in range(clients)]
        self.waiting: list[int] = []
        self.is_waiting: list[bool] = []
        self.tries_left = tries
        self.random = generator.random

    def serve(self, client: int) -> None:
        """Give a client one example, and whoever has to give one away for it another."""
        while not self._take_unused(client):
            victim = self._take_from_another(client)
            if victim is None:
                return
            if self.is_waiting[victim]:  # it has fewest of all now: it is served, and waits on
                client = victim
                continue
            self.is_waiting[victim] = True  # it is again among those with fewest, at a random place
            place = int(self.random() * (len(self.waiting) + 1))
            self.waiting.append(victim)
            self.waiting[place], self.waiting[-1] = victim, self.waiting[place]
            return

    def _take_unused(self, client: int) -> bool:
        """Give a client an unused example of the class of which it has fewest; False if there is none."""
        own, num_classes = self.held[client], len(self.left)
        chosen = -1
        for slot, count in enumerate(own):
            if self.left[(client + slot) % num_classes] and (chosen < 0 or count < own[chosen]):
                chosen = slot
        if chosen < 0:
            return False
        own[chosen] += 1
        self.left[(client + chosen) % num_classes] -= 1
        return True

    def _take_from_another(self, client: int) -> int | None:
        """Move one example of a shared class from a random other client; return it, None if no try is left."""
        own, num_classes = self.held[client], len(self.left)
        k, clients = len(own), len(self.held)
        width = min(2 * k - 1, num_classes)  # clients that share a class start at most k - 1 places away
        layers = -(-clients // num_classes)
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
