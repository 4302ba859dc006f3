"""Shares of each class drawn from a Dirichlet distribution over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedtailor.core.options import Range
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition, as_text
from fedtailor.data.partitions.dealing import positions_by_value

MAX_DRAWS = 50_000
"""Draws of a Dirichlet partition before it is given up."""
_FIRST_DRAWS, _HOPELESS = 20, 30
"""Given up early: each of so many first draws left more than so many clients with too few examples. Where on average
11 of them fall short, one draw in 50,000 succeeds if they do so independently."""


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each class is shared in proportions drawn from a symmetric Dirichlet distribution over clients.

    Clients that hold their even share of all examples already get nothing of further classes. The whole is
    drawn again until every client has ``min_size`` examples. The random stream is that of pFedFDA's released
    code (McLaughlin and Su 2024, NeurIPS): with seed 42 and ``min_size`` 62.5 the result is its partition.
    """

    name = "dirichlet"

    alpha: Annotated[float, Range(gt=0)]
    """Concentration: the smaller, the more the clients differ."""
    min_size: Annotated[float, Range(ge=0)] = 10.0
    """Least number of examples of a client."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Draw until every client has enough examples."""
        generator = np.random.RandomState(seed % 2**32)
        _, by_class = positions_by_value(annotations.labels)
        return draw_shares(self, by_class, clients, self.alpha, self.min_size, generator)


def draw_shares(
    partition: Partition,
    by_class: list[np.ndarray],
    clients: int,
    alpha: float,
    min_size: float,
    generator: np.random.RandomState,
    where: str = "",
) -> list[np.ndarray]:
    """Return the positions of each client, drawn until every client has ``min_size``.

    Args:
        partition: who asks, for errors.
        by_class: positions of each class, in ascending order.
        clients: how many clients.
        alpha: concentration.
        min_size: least number of examples of a client.
        generator: what random numbers are taken from, in the order of the release.
        where: of which examples, for errors, such as `` of domain 2``.

    Raises:
        DataError: some client always has too few.
    """
    rows = sum(map(len, by_class))
    if min_size * clients > rows:
        wanted = f"{as_text(min_size)} x {clients} = {as_text(min_size * clients)} examples{where}"
        raise partition.impossible(f"at least {wanted} for {clients} clients", str(rows))
    fewest_short, draws = clients, 0
    while draws < MAX_DRAWS and (draws < _FIRST_DRAWS or fewest_short <= _HOPELESS):
        pieces, num_short = _draw_once(by_class, clients, alpha, min_size, generator)
        if not num_short:
            return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
        fewest_short, draws = min(fewest_short, num_short), draws + 1
    allowed = f"at least {as_text(min_size)} examples{where} for each of {clients} clients"
    got = f"fewer for {fewest_short} or more of them in all of {draws} draws"
    raise partition.impossible(allowed, f"{got}; raise alpha, or lower min_size or clients")


def _draw_once(
    by_class: list[np.ndarray], clients: int, alpha: float, min_size: float, generator: np.random.RandomState
) -> tuple[list[list[np.ndarray]], int]:
    """Return the pieces of each class by client, and how many clients have too few; without pieces if any has.

    Random numbers are consumed in the released order: for every class a shuffle, then the proportions.
    """
    sizes = np.zeros(clients, dtype=np.int64)
    even_share = sum(map(len, by_class)) / clients
    orders, cuts = [], []
    for positions in by_class:
        order = positions.copy()
        generator.shuffle(order)
        shares = generator.dirichlet(np.full(clients, alpha)) * (sizes < even_share)
        total = shares.sum()
        if not total > 0:  # all clients that drew a share are full, or alpha is so small that the draw is NaN
            return [], clients
        ends = (np.cumsum(shares / total) * len(order)).astype(np.int64)[:-1]
        sizes += np.diff(ends, prepend=0, append=len(order))
        orders.append(order)
        cuts.append(ends)
    num_short = int(np.count_nonzero(sizes < min_size))
    return ([] if num_short else [np.split(order, ends) for order, ends in zip(orders, cuts, strict=True)]), num_short
