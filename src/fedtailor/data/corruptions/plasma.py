"""Plasma fractals: random landscapes made by the diamond-square method, for fog."""

from __future__ import annotations

import numpy as np

_FIRST_AMPLITUDE = 100.0


def num_draws(side: int) -> int:
    """Return the number of random numbers in a fractal: one per point of ``side`` x ``side``,
    without the first.
    """
    return side * side - 1


def plasma(uniform: np.ndarray, decay: float) -> np.ndarray:
    """Return fractals on a torus, one for each row of random numbers, by the diamond-square method.

    Starting from one corner of height 0, points halfway between known ones get the mean of their
    four neighbors plus noise in [-w^2, w^2); ``w`` starts at 100 and is divided by ``decay`` after
    each level. Squares come first, then the points between columns, then those between rows
    (Fournier et al. 1982, Communications of the ACM).

    Args:
        uniform: (n, side^2 - 1), float64 in [0, 1); ``side`` is a power of two, at least 2.
        decay: larger values give smoother fractals.

    Returns:
        (n, side, side), float64: the lowest point of each is 0, the highest 1.
    """
    count = len(uniform)
    side = int(np.sqrt(uniform.shape[1] + 1))
    grid = np.zeros((count, side, side))
    noise = 2.0 * uniform - 1.0
    used = 0  # random numbers of each fractal
    step = side
    amplitude = _FIRST_AMPLITUDE

    while step >= 2:
        half = step // 2
        cells = side // step
        waves = amplitude**2 * noise[:, used : used + 3 * cells**2].reshape(count, 3, cells, cells)
        corners = grid[:, ::step, ::step]
        columns = corners + np.roll(corners, -1, axis=2)  # sums of two neighboring corners
        rows = corners + np.roll(corners, -1, axis=1)
        centers = (columns + np.roll(columns, -1, axis=1)) / 4 + waves[:, 0]
        grid[:, half::step, half::step] = centers
        grid[:, ::step, half::step] = (columns + centers + np.roll(centers, 1, axis=1)) / 4 + waves[
            :, 1
        ]
        grid[:, half::step, ::step] = (rows + centers + np.roll(centers, 1, axis=2)) / 4 + waves[
            :, 2
        ]
        used += 3 * cells**2
        step = half
        amplitude /= decay

    grid -= grid.min(axis=(1, 2), keepdims=True)
    grid /= grid.max(axis=(1, 2), keepdims=True)
    return grid
