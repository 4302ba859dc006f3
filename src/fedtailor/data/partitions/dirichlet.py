"""The Dirichlet partition: each class is shared in proportions drawn from a Dirichlet distribution
over clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedtailor.core.options import Range
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions._dealing import positions_by_value
from fedtailor.data.partitions.base import Partition, as_text

MAX_DRAWS = 50_000
"""Most draws of a Dirichlet partition."""
_FIRST_DRAWS = 20
_HOPELESS = 30
"""The draws stop early if each of the first ``_FIRST_DRAWS`` leaves more than ``_HOPELESS`` clients
with too few examples. With 11 such clients on average, independent of each other, only one draw in
50,000 succeeds."""


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each class is shared in proportions drawn from a symmetric Dirichlet distribution over
    clients.

    Clients that already hold an even share of all examples get nothing of further classes. All
    shares are drawn again until every client has ``min_size`` examples. The random stream is that
    of pFedFDA's released code (McLaughlin and Su 2024, NeurIPS): with seed 42 and ``min_size`` 62.5
    the result is its partition.
    """

    name = "dirichlet"

    alpha: Annotated[float, Range(gt=0)]
    """Concentration: clients differ more for smaller values."""
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
        partition: the partition that error messages name.
        by_class: positions of each class, in ascending order.
        clients: number of clients.
        alpha: concentration.
        min_size: least number of examples of a client.
        generator: source of random numbers, used in the order of the release.
        where: the examples that error messages name, such as `` of domain 2``.

    Raises:
        DataError: a client has too few examples in every draw.
    """
    rows = sum(map(len, by_class))
    if min_size * clients > rows:
        wanted = f"{as_text(min_size)} x {clients} = {as_text(min_size * clients)} examples{where}"
        raise partition.impossible(f"at least {wanted} for {clients} clients", str(rows))

    fewest_short = clients
    draws = 0
    while draws < MAX_DRAWS and (draws < _FIRST_DRAWS or fewest_short <= _HOPELESS):
        pieces, num_short = _draw_once(by_class, clients, alpha, min_size, generator)
        if not num_short:
            return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]

        fewest_short = min(fewest_short, num_short)
        draws += 1

    allowed = f"at least {as_text(min_size)} examples{where} for each of {clients} clients"
    got = f"fewer for at least {fewest_short} of them in each of {draws} draws"
    raise partition.impossible(allowed, f"{got}; raise alpha, or lower min_size or clients")


def _draw_once(
    by_class: list[np.ndarray],
    clients: int,
    alpha: float,
    min_size: float,
    generator: np.random.RandomState,
) -> tuple[list[list[np.ndarray]], int]:
    """Return the pieces of each class by client, and the number of clients with too few; no pieces
    if there are any.

    Random numbers are consumed in the released order: for every class a shuffle, then the
    proportions.
    """
    sizes = np.zeros(clients, dtype=np.int64)
    even_share = sum(map(len, by_class)) / clients
    orders = []
    cuts = []
    for positions in by_class:
        order = positions.copy()
        generator.shuffle(order)
        shares = generator.dirichlet(np.full(clients, alpha)) * (sizes < even_share)
        total = shares.sum()
        if (
            not total > 0
        ):  # all clients that drew a share are full, or alpha is so small that the draw is NaN
            return [], clients

        ends = (np.cumsum(shares / total) * len(order)).astype(np.int64)[:-1]
        sizes += np.diff(ends, prepend=0, append=len(order))
        orders.append(order)
        cuts.append(ends)

    num_short = int(np.count_nonzero(sizes < min_size))
    if num_short:
        return [], num_short

    return [np.split(order, ends) for order, ends in zip(orders, cuts, strict=True)], 0
