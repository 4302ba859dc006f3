"""Weights for a mixture of clients' heads, from bias and variance of their features.

Xu, Tong, Huang 2023, "Personalized federated learning with feature alignment and classifier collaboration", ICLR,
estimate the error of a mixture of heads on a client's data from two statistics of every client's features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from fedtailor.algorithms._simplex import least_quadratic, nearest_psd
from fedtailor.toolkit import ExampleSet, Key, Params, Task, cached_features, gaussian, tree

_SMALLEST_WEIGHT = 1e-3
"""Smaller weights are dropped."""
_AT_ONCE = 2**24
"""Entries of matrices that are held at once, to bound memory."""


class FeatureStatistics(NamedTuple):
    """Statistics that estimate the error of a mixture, with p_c the share of class c and m_c its mean feature."""

    variance: Float[Tensor, "*clients"]
    """``V = (1 / n) sum_c (p_c E_c |z|^2 - p_c^2 |m_c|^2)``."""
    prior_means: Float[Tensor, "*clients classes d"]
    """``H[c] = p_c m_c``."""


def measured(task: Task, body: Params, data: ExampleSet, *, key: Key) -> tuple[ExampleSet, gaussian.ClassMoments]:
    """Return the features of all examples as a table, and their moments."""
    features = cached_features(task, body, data, key=key)
    return features, gaussian.class_moments(features.x, features.labels(), features.weight, task.num_classes)


def feature_statistics(moments: gaussian.ClassMoments, dtype: torch.dtype) -> FeatureStatistics:
    """Return the statistics of one client, computed in float64; zeros without examples.

    The variance is ``(1 / n) [tr(scatter) / n + sum_c p_c (1 - p_c) |m_c|^2]`` here: no term of it is negative.
    """
    n = moments.counts.sum().clamp_min(1.0)
    shares = moments.counts / n
    between = (shares * (1.0 - shares) * moments.means.square().sum(1)).sum()
    variance = (moments.scatter.trace() / n + between) / n
    prior_means = shares[:, None] * moments.means
    return FeatureStatistics(variance.to(dtype), prior_means.to(dtype))


def mixing_weights(statistics: FeatureStatistics) -> Float64[Tensor, "m m"]:
    """Return for every client i (row) the weights of all clients' heads: ``argmin_a a^T P_i a`` over the simplex.

    ``P_i[j, k] = V_j [j = k] + sum_c (H_i[c] - H_j[c]) . (H_i[c] - H_k[c])``, all from one Gram matrix of H. Weights
    below 0.001 are dropped. A client whose weights cannot be found keeps its own head.
    """
    flat = statistics.prior_means.double().flatten(1)
    gram = flat @ flat.mT
    variance = statistics.variance.double().clamp_min(0.0)  # rounding may make a sum of squares negative
    m = len(gram)
    found = []
    for clients in torch.split(torch.arange(m), max(1, _AT_ONCE // m**2)):
        matrices = error_matrices(gram, variance, clients)
        found.append(least_quadratic(nearest_psd(matrices)))
    weights = torch.cat(found)
    kept = torch.where(weights >= _SMALLEST_WEIGHT, weights, 0.0)  # NaN compares as smaller, and is dropped
    total = kept.sum(1, keepdim=True)
    return torch.where(total > 0, kept / total, torch.eye(m, dtype=torch.float64))


def mixed(values: tree.Tree, weights: Float64[Tensor, "m m"]) -> tree.Tree:
    """Return ``sum_j weights[i, j] values[j]`` for every client i, in the dtype of the values; leaves (m, ...)."""
    return tree.map(lambda leaf: torch.tensordot(weights, leaf.double(), 1).to(leaf.dtype), values)


def error_matrices(
    gram: Float64[Tensor, "m m"], variance: Float64[Tensor, "m"], clients: Int[Tensor, "block"]
) -> Float64[Tensor, "block m m"]:
    """Return the matrices P_i of some clients, from the inner products of all prior means."""
    own = gram[clients]
    norms = gram.diagonal()[clients]
    bias = norms[:, None, None] - own[:, :, None] - own[:, None, :] + gram
    return bias + torch.diag(variance)
