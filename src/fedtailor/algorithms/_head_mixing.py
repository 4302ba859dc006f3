"""Weights for a mixture of clients' heads, from bias and variance of their features.

Xu, Tong, Huang 2023, "Personalized federated learning with feature alignment and classifier
collaboration", ICLR, estimate the error of a mixture of heads on a client's data from two
statistics of every client's features.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

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


class HeadErrors(NamedTuple):
    """The estimated errors ``a^T P_i a`` of mixtures a of m clients' heads, on every client i.

    ``P_i[j, k] = V_j [j = k] + sum_c (H_i[c] - H_j[c]) . (H_i[c] - H_k[c])``: all of it follows
    from one Gram matrix of H.
    """

    gram: Float64[Tensor, "m m"]
    """The inner products of all prior means H."""
    variance: Float64[Tensor, "m"]
    """V of all clients."""

    @classmethod
    def of(cls, statistics: FeatureStatistics) -> HeadErrors:
        """Return the errors that follow from the statistics of all clients."""
        flat = statistics.prior_means.double().flatten(1)
        # rounding may make a sum of squares negative
        return cls(flat @ flat.mT, statistics.variance.double().clamp_min(0.0))

    def of_single_heads(self) -> Tensor:
        """Return for every client (row) the error of every head: the diagonal of P_i."""
        norms = self.gram.diagonal()
        return norms[:, None] - 2.0 * self.gram + norms + self.variance

    def matrices(self, clients: Tensor, candidates: Tensor) -> Float64[Tensor, "b k k"]:
        """Return P_i of some clients (b,), for mixtures of each one's candidates (b, k) alone."""
        # H_i . H_i, H_i . H_j and H_j . H_k
        norms = self.gram.diagonal()[clients]  # (b,)
        products = self.gram[clients[:, None], candidates]  # (b, k)
        among = self.gram[candidates[:, :, None], candidates[:, None, :]]  # (b, k, k)

        # (H_i - H_j) . (H_i - H_k)
        bias = norms[:, None, None] - products[:, :, None] - products[:, None, :] + among
        return bias + torch.diag_embed(self.variance[candidates])

    def slopes(self, clients: Tensor, weights: Tensor) -> Float64[Tensor, "b m"]:
        """Return ``P_i a`` for the weights a (b, m) of some clients i (b,): half the slopes."""
        # H_i . H_i - H_i . sum_k a_k H_k is the same for every head j
        products = self.gram[clients]  # H_i . H_j, (b, m)
        along = (products * weights).sum(1, keepdim=True)
        constant = self.gram.diagonal()[clients, None] - along
        return self.variance * weights + constant - products + weights @ self.gram


def mixing_weights(statistics: FeatureStatistics) -> Float64[Tensor, "m m"]:
    """Return for every client i (row) the weights of all clients' heads.

    They are ``argmin_a a^T P_i a`` over the simplex, see :class:`HeadErrors`. Weights below 0.001
    are dropped. A client whose weights cannot be found keeps its own head.
    """
    weights = best_mixtures(HeadErrors.of(statistics))

    # NaN compares as smaller, and is dropped
    weights = torch.where(weights >= _SMALLEST_WEIGHT, weights, 0.0)

    only_own_head = torch.eye(len(weights), dtype=torch.float64)
    total = weights.sum(1, keepdim=True)
    return torch.where(total > 0, weights / total, only_own_head)


def mixed(values: tree.Tree, weights: Float64[Tensor, "m m"]) -> tree.Tree:
    """Return ``sum_j weights[i, j] values[j]`` for every client i; leaves (m, ...)."""

    def mix(leaf: Tensor) -> Tensor:
        sums: Tensor = torch.tensordot(weights, leaf.double(), 1)
        return sums.to(leaf.dtype)

    return tree.map(mix, values)


def best_mixtures(errors: HeadErrors) -> Float64[Tensor, "m m"]:
    """Return the weights for every client (row); NaN where they cannot be found.

    A program over m clients takes m^3 operations, and most weights of large cohorts are 0. So a
    mixture is sought among the candidates whose heads err least on their own. While others would
    lower its error, they take the places of those that are not in the mixture, and it is sought
    again. If there are none, it is the best mixture of all clients.
    """
    m = len(errors.gram)
    weights = torch.empty(m, m, dtype=torch.float64)

    # the clients whose mixture is still sought, and in which order others are their candidates
    clients = torch.arange(m)  # (b,)
    order = errors.of_single_heads()  # (b, m), lowest first
    tie = _TIE * order.median(1, keepdim=True).values

    for attempt in itertools.count():
        candidates = _first_candidates(order, attempt)
        mixtures = _mixtures_among(errors, clients, candidates)
        slopes = errors.slopes(clients, mixtures)
        is_finite = torch.isfinite(slopes).all(1, keepdim=True)
        weights[clients] = torch.where(is_finite, mixtures, torch.nan)

        # heads outside that would lower the error, or do not raise it
        is_candidate = torch.zeros_like(slopes, dtype=torch.bool).scatter_(1, candidates, True)
        level = (mixtures * slopes).sum(1, keepdim=True)
        would_lower = (slopes <= level + tie[clients]) & ~is_candidate
        is_incomplete = would_lower.any(1)
        if not is_incomplete.any():
            break

        # again where there are such heads; who is in the mixture stays a candidate
        clients = clients[is_incomplete]
        order = torch.where(mixtures > _TIE, -torch.inf, slopes)[is_incomplete]

    return weights


def _first_candidates(order: Tensor, attempt: int) -> Tensor:
    """Return the candidates (b, k) that come first in the order (b, m), ascending by number.

    There are more in later attempts.
    """
    m = order.shape[1]
    places = _CANDIDATES * 2 ** (attempt // _ATTEMPTS)
    count = m if m <= 2 * places else places

    first = order.argsort(dim=1, stable=True)[:, :count]
    return first.sort(dim=1).values


def _mixtures_among(errors: HeadErrors, clients: Tensor, candidates: Tensor) -> Tensor:
    """Return the best mixtures (b, m) of each client's candidates (b, k); 0 for other heads."""
    at_once = max(1, _AT_ONCE // candidates.shape[1] ** 2)
    mixtures = []
    for start in range(0, len(clients), at_once):
        part = slice(start, start + at_once)
        matrices = errors.matrices(clients[part], candidates[part])
        mixtures.append(least_quadratic(nearest_psd(matrices)))

    weights = torch.zeros(len(clients), len(errors.gram), dtype=torch.float64)
    return weights.scatter_(1, candidates, torch.cat(mixtures))
