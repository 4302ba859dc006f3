"""Random slicing as in pFedVEM: each type of examples is cut into one block per client that holds
the type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtailor.data.partitions.base import Partition


def cut_points(size: int, blocks: int, generator: np.random.Generator) -> np.ndarray:
    """Return ``blocks`` - 1 different points, uniform in 1 to ``size`` - 1 and sorted."""
    return np.sort(generator.choice(size - 1, blocks - 1, replace=False)) + 1


def cuts_of(
    sizes: Sequence[int], blocks: int, generator: np.random.Generator, *, shared: bool
) -> list[np.ndarray]:
    """Return the points that cut types of the given sizes into ``blocks`` blocks each.

    ``shared`` points are drawn for the smallest type and scaled for larger ones, so that no block
    is empty.
    """
    if not shared:
        return [cut_points(size, blocks, generator) for size in sizes]
    points = cut_points(min(sizes), blocks, generator)
    return [points * size // min(sizes) for size in sizes]


def give_blocks(
    pools: Sequence[np.ndarray],
    cuts: Sequence[np.ndarray],
    takers: Sequence[Sequence[int]],
    clients: int,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    """Shuffle each pool, cut it, and give the blocks to its takers, the last block first as in
    pFedVEM's release.

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
    return [np.concatenate(each) for each in parts]


def count_groups(partition: Partition, clients: int, group: int, reason: str) -> int:
    """Return the number of groups of ``group`` clients; refuse an incomplete last group."""
    if clients % group:
        raise partition.impossible(
            f"a number of clients that {group} divides, {reason}", f"{clients} clients"
        )
    return clients // group


def check_sizes(
    partition: Partition, pools: Sequence[np.ndarray], blocks: Sequence[int], names: Sequence[str]
) -> None:
    """Refuse a type with fewer examples than clients that hold it."""
    for pool, needed, name in zip(pools, blocks, names, strict=True):
        if len(pool) < needed:
            allowed = f"at least {needed} examples of {name}, one for each client that holds it"
            raise partition.impossible(allowed, str(len(pool)))
