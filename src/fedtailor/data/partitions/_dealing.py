"""Helpers of several partitions: group examples, and hand them out."""

from __future__ import annotations

import numpy as np


def positions_by_value(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the values that occur, sorted, and the positions of each in ascending order.

    Args:
        values: (rows,), whole numbers.
    """
    order = np.argsort(values, kind="stable")
    present, starts = np.unique(values[order], return_index=True)
    return present, np.split(order, starts[1:])


def hand_out(
    pools: list[np.ndarray], classes: np.ndarray, owners: np.ndarray, clients: int
) -> list[np.ndarray]:
    """Give owner ``owners[i]`` the next unused position of the pool ``classes[i]``, for every i.

    Args:
        pools: positions of each class, in the order in which they are used.
        classes: (n,), index of the pool of each example that is handed out.
        owners: (n,), the client that gets it.
        clients: number of clients.
    """
    counts = np.bincount(classes, minlength=len(pools))
    given = np.empty(len(classes), dtype=np.int64)
    used = [pool[:count] for pool, count in zip(pools, counts, strict=True)]
    given[np.argsort(classes, kind="stable")] = np.concatenate(used)
    sizes = np.bincount(owners, minlength=clients)
    return np.split(given[np.argsort(owners, kind="stable")], np.cumsum(sizes)[:-1])
