"""Weights for a mixture of clients' heads, from bias and variance of their features.

Xu, Tong, Huang 2023, "Personalized federated learning with feature alignment and classifier
collaboration", ICLR, estimate the error of a mixture of heads on a client's data from two
statistics of every client's features.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.optimize import nnls
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import gaussian, tree

_SMALLEST_WEIGHT = 1e-3
"""Smaller weights are dropped."""
_AT_ONCE = 50
"""Heads that join a mixture's candidates at once."""
_LEAST_VARIANCE = 1e-8
"""Relative to the median variance; heads of equal clients without variance count equally so."""
_TIE = 1e-12
"""Heads that change the error of a mixture by less are left out, relative to the median error of a
single head."""


class FeatureStatistics(NamedTuple):
    """Statistics that estimate a mixture's error; p_c: share of class c, m_c: its mean feature."""

    variance: Float[Tensor, "*clients"]
    """``V = (1 / n) sum_c (p_c E_c |z|^2 - p_c^2 |m_c|^2)``."""
    prior_means: Float[Tensor, "*clients classes d"]
    """``H[c] = p_c m_c``."""


def feature_statistics(moments: gaussian.ClassMoments, dtype: torch.dtype) -> FeatureStatistics:
    """Return the statistics of one client, computed in float64; zeros without examples.

    The variance is ``(1 / n) [tr(scatter) / n + sum_c p_c (1 - p_c) |m_c|^2]`` here: no term of it
    is negative.
    """
    n = moments.counts.sum().clamp_min(1.0)
    shares = moments.counts / n  # p_c, (classes,)

    # V, from the spread within classes and the spread of their means
    within = moments.scatter.trace() / n
    between = (shares * (1.0 - shares) * moments.means.square().sum(1)).sum()
    variance = (within + between) / n

    # H
    prior_means = shares[:, None] * moments.means
    return FeatureStatistics(variance.to(dtype), prior_means.to(dtype))


def mixing_weights(statistics: FeatureStatistics) -> Float64[Tensor, "m m"]:
    """Return for every client i (row) the weights of all clients' heads.

    They are ``argmin_a a^T P_i a`` over the simplex, where ``P_i[j, k] = V_j [j = k] + sum_c
    (H_i[c] - H_j[c]) . (H_i[c] - H_k[c])`` estimates the errors of mixtures on client i. Weights
    below 0.001 are dropped. A client whose weights cannot be found keeps its own head.

    The error is ``|sum_j a_j (sqrt(V_j) e_j, H_j) - (0, H_i)|^2``. A basis of the vectors of all
    heads, the same for every client, makes them short.
    """
    statistics = ft.to_host(statistics, "mixtures of heads, by SciPy")
    variance = statistics.variance.double().clamp_min(0.0)
    variance = variance.clamp_min(_LEAST_VARIANCE * variance.median())
    means = statistics.prior_means.double().flatten(1)

    basis, heads = torch.linalg.qr(torch.cat([variance.sqrt().diag(), means.mT]))
    targets = means @ basis[len(means) :]
    errors = torch.cdist(targets, heads.mT)

    weights = np.eye(len(means))
    if not torch.isfinite(errors).all():
        return torch.from_numpy(weights)

    points = heads.mT.contiguous().numpy()
    for client, target in enumerate(targets.numpy()):
        with contextlib.suppress(RuntimeError):
            weights[client] = _best_mixture(points, target, errors[client].numpy())

    weights[weights < _SMALLEST_WEIGHT] = 0.0
    return torch.from_numpy(weights / weights.sum(1, keepdims=True))


def mixed(values: tree.Tree, weights: Float64[Tensor, "m m"]) -> tree.Tree:
    """Return ``sum_j weights[i, j] values[j]`` for every client i; leaves (m, ...)."""

    def mix(leaf: Tensor) -> Tensor:
        sums: Tensor = torch.tensordot(weights.to(leaf.device), leaf.double(), 1)
        return sums.to(leaf.dtype)

    return tree.map(mix, values)


def _best_mixture(
    heads: Float64[np.ndarray, "m r"],
    target: Float64[np.ndarray, "r"],
    errors: Float64[np.ndarray, "m"],
) -> Float64[np.ndarray, "m"]:
    """Return the weights of the mixture of heads that is nearest to the target.

    ``argmin_a |a @ gaps|^2`` over the simplex is ``x / sum(x)`` for the x >= 0 of least
    ``|x @ gaps|^2 + (1 - sum(x))^2``. Most weights are 0, so x is sought among the heads of least
    error first, and again while others would lower the error of the mixture.

    Raises:
        RuntimeError: it cannot be found.
    """
    weights = np.zeros(len(heads))
    scale = np.median(errors) or 1.0
    candidates = errors.argsort(kind="stable")[:_AT_ONCE]

    while True:
        gaps = heads[candidates] - target
        sides = np.vstack([gaps.T / scale, np.ones(len(candidates))])
        aim = np.append(np.zeros(len(sides) - 1), 1.0)
        sizes = np.linalg.norm(sides, axis=0)  # may differ by many powers of ten
        solution = nnls(sides / sizes, aim)[0] / sizes
        weights[candidates] = solution / solution.sum()

        # half the slopes of the error, up to a term that heads share
        slopes = heads @ (weights[candidates] @ gaps)
        lowers = slopes < slopes @ weights - _TIE * scale**2
        lowers[candidates] = False
        if not lowers.any():
            return weights

        others = np.flatnonzero(lowers)
        best = slopes[others].argsort(kind="stable")[:_AT_ONCE]
        candidates = np.append(candidates, others[best])
