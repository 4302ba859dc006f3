"""Weights for a mixture of clients' heads, from bias and variance of their features.

Xu, Tong, Huang 2023, "Personalized federated learning with feature alignment and classifier
collaboration", ICLR, estimate the error of a mixture of heads on a client's data from two
statistics of every client's features.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._simplex import least_quadratic, nearest_psd
from fedtailor.toolkit import gaussian, tree

_SMALLEST_WEIGHT = 1e-3
"""Smaller weights are dropped."""
_AT_ONCE = 2**24
"""Entries of matrices that are held at once, to bound memory."""
_CANDIDATES = 64
"""Clients among whose heads a mixture is sought. In a cohort of at most twice as many, it is sought
among all."""
_ATTEMPTS = 4
"""How often it is sought among so many, until there are twice as many candidates."""
_TIE = 1e-9
"""Clients whose heads change the error by less count as equally good, relative to the median error
of a single head."""


class FeatureStatistics(NamedTuple):
    """Statistics that estimate a mixture's error; p_c: share of class c, m_c: its mean feature."""

    variance: Float[Tensor, "*clients"]
    """``V = (1 / n) sum_c (p_c E_c |z|^2 - p_c^2 |m_c|^2)``."""
    prior_means: Float[Tensor, "*clients classes d"]
    """``H[c] = p_c m_c``."""


def measured(
    task: ft.Task, body: ft.Params, data: ft.ExampleSet, *, key: ft.Key
) -> tuple[ft.ExampleSet, gaussian.ClassMoments]:
    """Return the features of all examples as a table, and their moments."""
    features = ft.cached_features(task, body, data, key=key)
    return features, gaussian.class_moments(
        features.x, features.labels(), features.weight, task.num_classes
    )


def feature_statistics(moments: gaussian.ClassMoments, dtype: torch.dtype) -> FeatureStatistics:
    """Return the statistics of one client, computed in float64; zeros without examples.

    The variance is ``(1 / n) [tr(scatter) / n + sum_c p_c (1 - p_c) |m_c|^2]`` here: no term of it
    is negative.
    """
    n = moments.counts.sum().clamp_min(1.0)
    shares = moments.counts / n
    between = (shares * (1.0 - shares) * moments.means.square().sum(1)).sum()
    variance = (moments.scatter.trace() / n + between) / n
    prior_means = shares[:, None] * moments.means
    return FeatureStatistics(variance.to(dtype), prior_means.to(dtype))


def mixing_weights(statistics: FeatureStatistics) -> Float64[Tensor, "m m"]:
    """Return for every client i (row) the weights of all clients' heads.

    They are ``argmin_a a^T P_i a`` over the simplex. ``P_i[j, k] = V_j [j = k] + sum_c (H_i[c] -
    H_j[c]) . (H_i[c] - H_k[c])``, all from one Gram matrix of H. Weights below 0.001 are dropped. A
    client whose weights cannot be found keeps its own head.
    """
    flat = statistics.prior_means.double().flatten(1)
    gram = flat @ flat.mT

    # rounding may make a sum of squares negative
    variance = statistics.variance.double().clamp_min(0.0)
    weights = _best_mixtures(gram, variance)

    # NaN compares as smaller, and is dropped
    weights = torch.where(weights >= _SMALLEST_WEIGHT, weights, 0.0)
    total = weights.sum(1, keepdim=True)
    return torch.where(total > 0, weights / total, torch.eye(len(gram), dtype=torch.float64))


def mixed(values: tree.Tree, weights: Float64[Tensor, "m m"]) -> tree.Tree:
    """Return ``sum_j weights[i, j] values[j]`` for every client i; leaves (m, ...)."""
    return tree.map(lambda leaf: torch.tensordot(weights, leaf.double(), 1).to(leaf.dtype), values)


def error_matrices(
    gram: Float64[Tensor, "m m"],
    variance: Float64[Tensor, "m"],
    clients: Int[Tensor, "block"],
    candidates: Int[Tensor, "block k"],
) -> Float64[Tensor, "block k k"]:
    """Return the rows and columns of some clients' P_i that belong to the candidates of each.

    Args:
        gram: the inner products of all prior means.
        variance: V of all clients.
        clients: whose matrices they are.
        candidates: clients whose heads may be mixed, for each of them.
    """
    products = gram[clients[:, None], candidates]
    norms = gram.diagonal()[clients]
    among = gram[candidates[:, :, None], candidates[:, None, :]]
    bias = norms[:, None, None] - products[:, :, None] - products[:, None, :] + among
    return bias + torch.diag_embed(variance[candidates])


def _best_mixtures(
    gram: Float64[Tensor, "m m"], variance: Float64[Tensor, "m"]
) -> Float64[Tensor, "m m"]:
    """Return the weights for every client (row); NaN where they cannot be found.

    A program over m clients takes m^3 operations, and most weights of large cohorts are 0. So a
    mixture is sought among the candidates whose heads err least on their own. While others would
    lower its error, they take the places of those that are not in the mixture, and it is sought
    again. If there are none, it is the best mixture of all clients.
    """
    m = len(gram)
    errors = _single_errors(gram, variance)
    tie = _TIE * errors.median(1, keepdim=True).values
    weights = torch.empty(m, m, dtype=torch.float64)
    clients = torch.arange(m)
    order = errors

    for attempt in itertools.count():
        places = _CANDIDATES * 2 ** (attempt // _ATTEMPTS)
        candidates = _lowest(order, m if m <= 2 * places else places)
        mixtures = _weights_among(gram, variance, clients, candidates)
        slopes = _slopes(gram, variance, clients, mixtures)
        is_finite = torch.isfinite(slopes).all(1, keepdim=True)
        weights[clients] = torch.where(is_finite, mixtures, torch.nan)

        # clients outside that would lower the error, or do not raise it
        is_candidate = torch.zeros_like(slopes, dtype=torch.bool).scatter_(1, candidates, True)
        level = (mixtures * slopes).sum(1, keepdim=True)
        would_lower = (slopes <= level + tie[clients]) & ~is_candidate
        incomplete = would_lower.any(1)
        if not incomplete.any():
            break

        # again for the others; who is in the mixture stays a candidate
        clients = clients[incomplete]
        order = torch.where(mixtures > _TIE, -torch.inf, slopes)[incomplete]

    return weights


def _single_errors(
    gram: Float64[Tensor, "m m"], variance: Float64[Tensor, "m"]
) -> Float64[Tensor, "m m"]:
    """Return for every client i (row) the estimated error of every head: the diagonal of P_i."""
    norms = gram.diagonal()
    return norms[:, None] - 2.0 * gram + norms + variance


def _lowest(values: Float64[Tensor, "b m"], count: int) -> Int[Tensor, "b k"]:
    """Return the places of the lowest values of every row, in the order of the places."""
    places: Tensor = values.argsort(dim=1, stable=True)[:, :count].sort(dim=1).values
    return places


def _weights_among(
    gram: Float64[Tensor, "m m"],
    variance: Float64[Tensor, "m"],
    clients: Int[Tensor, "b"],
    candidates: Int[Tensor, "b k"],
) -> Float64[Tensor, "b m"]:
    """Return the weights of the best mixtures of candidates' heads; 0 for the other clients."""
    at_once = max(1, _AT_ONCE // candidates.shape[1] ** 2)
    mixtures = []
    for start in range(0, len(clients), at_once):
        part = slice(start, start + at_once)
        matrices = error_matrices(gram, variance, clients[part], candidates[part])
        mixtures.append(least_quadratic(nearest_psd(matrices)))

    weights = torch.zeros(len(clients), len(gram), dtype=torch.float64)
    return weights.scatter_(1, candidates, torch.cat(mixtures))


def _slopes(
    gram: Float64[Tensor, "m m"],
    variance: Float64[Tensor, "m"],
    clients: Int[Tensor, "b"],
    weights: Float64[Tensor, "b m"],
) -> Float64[Tensor, "b m"]:
    """Return ``P_i a`` for the weights a of some clients i: half the slope of their errors."""
    products = gram[clients]
    constant = gram.diagonal()[clients, None] - (products * weights).sum(1, keepdim=True)
    return variance * weights + constant - products + weights @ gram
