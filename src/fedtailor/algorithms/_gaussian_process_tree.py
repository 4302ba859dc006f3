"""A tree of binary Gaussian process classifiers, with Polya-Gamma augmentation.

Every split of the tree divides a group of classes in two. An example is in the left half with
probability sigmoid(f), for a function f ~ GP(0, k) of its features. Given omega_i ~ PG(1, f_i) the
likelihood is Gaussian (Polson, Scott and Windle 2013, "Bayesian inference for logistic models using
Polya-Gamma latent variables", JASA), so that Gibbs sampling alternates between

    f | omega ~ N(Sigma kappa, Sigma),   Sigma = (K^-1 + Omega)^-1,   kappa_i = +-1/2
    omega_i | f_i ~ PG(1, f_i)

A split takes the rows of the examples that it sees. Splits of few run together, filled up with rows
that they do not see: these are rows of an identity, with an omega of 0. Under ``torch.func.vmap``,
where no shape depends on data, all splits take all rows. Everything is in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor import toolkit as ft

_OUTPUT_SCALE = 8.0
"""The variance of f at every input, without the jitter: k(x, x)."""
_JITTER = 1e-3
"""Added to the variance of every example."""
_FEW = 32
"""Splits that see no more examples run together: their matrices take less time than their calls."""
_LLOYD_STEPS = 20
_TERMS = 20
"""Of the series of a Polya-Gamma variable; the mean of the others is added."""
_LEAST_PROBABILITY = 1e-12
_POINTS, _WEIGHTS = np.polynomial.hermite.hermgauss(20)
"""Points and weights of the Gauss-Hermite quadrature."""
_SIZES = "how many examples splits see"
"""Why numbers go to the host."""


class Tree(NamedTuple):
    """The splits of classes: 1 for those on either side (classes - 1, classes)."""

    left: Tensor
    right: Tensor

    def targets(self, labels: Tensor, counts: Tensor) -> Tensor:
        """Return kappa (splits, n): 1/2 on the left, -1/2 on the right, 0 for others.

        Args:
            labels: of the examples (n,).
            counts: 1 for the examples that count (n,).
        """
        return (self.left - self.right)[:, labels] * counts / 2

    def log_probabilities(self, left: Tensor) -> Tensor:
        """Return those of the classes (n, classes), from those of the left sides (splits, n).

        A class that is in no split has 0: that of certainty.
        """
        least = torch.finfo(left.dtype).tiny
        log_left = left.clamp(min=least).log()
        log_right = (1 - left).clamp(min=least).log()
        return log_left.mT @ self.left + log_right.mT @ self.right


def grow(means: Tensor, present: Tensor) -> Tree:
    """Divide the classes that have examples until each of them is alone.

    Args:
        means: of the features of every class (classes, d).
        present: whether a class has examples (classes,).
    """
    num_classes = len(present)
    numbers = torch.arange(num_classes)
    group = torch.where(present, 0, -1)
    left = []
    right = []
    for split in range(num_classes - 1):
        # the first group of more than one class; none if every class is alone
        members = group == numbers[:, None]  # (groups, classes)
        is_large = members.sum(1) > 1
        is_next = is_large & (is_large.cumsum(0) == 1)
        inside = (members & is_next[:, None]).any(0)

        second = second_of_two_means(means, inside)
        left.append(inside & ~second)
        right.append(second)
        group = torch.where(second, split + 1, group)

    return Tree(torch.stack(left).to(means.dtype), torch.stack(right).to(means.dtype))


def second_of_two_means(means: Tensor, inside: Tensor) -> Tensor:
    """Return which points are in the second of two clusters (classes,), by Lloyd's algorithm.

    It starts from the two points that are farthest apart, and these stay apart.
    """
    is_pair = inside[:, None] & inside & ~torch.eye(len(inside), dtype=torch.bool)
    gaps = torch.where(is_pair, (means[:, None] - means).square().sum(2), -1.0)
    places = torch.arange(gaps.numel()).reshape(gaps.shape)
    is_farthest = is_pair & (places == gaps.flatten().argmax())
    is_first = is_farthest.any(1)
    is_second = is_farthest.any(0)

    second = is_second
    for _ in range(_LLOYD_STEPS):
        before = second
        to_first = _distances(means, inside & ~second)
        to_second = _distances(means, second)
        second = inside & ~is_first & (is_second | (to_second < to_first))

        # Under ``vmap``, whether anything changes differs between clients.
        if not ft.is_transformed():
            is_changed = (second != before).any()
            if not ft.to_host(is_changed, "whether two means have moved"):
                break

    return second


def _distances(points: Tensor, members: Tensor) -> Tensor:
    """Return the squared distances of points (n,) from the mean of the members."""
    weight = members.to(points.dtype)
    center = weight @ points / weight.sum().clamp(min=1.0)
    return (points - center).square().sum(1)


class Group(NamedTuple):
    """Splits that run together, with the examples that they see."""

    splits: Tensor
    """Their numbers (g,)."""
    rows: Tensor
    """The places of the examples (g, n)."""
    kappa: Tensor
    """Of these: 1/2 on the left, -1/2 on the right, 0 for those that are not seen (g, n)."""
    pairs: Tensor
    """The numbers of the pairs of a split and an example that it sees, over all groups (g, n). A
    row that is not seen has the number of another pair, whose draws change nothing there."""


def group_splits(kappa: Tensor) -> list[Group]:
    """Return the splits that see examples; under ``vmap`` a group of all.

    Args:
        kappa: from :meth:`Tree.targets` (splits, n).
    """
    is_seen = kappa != 0
    if ft.is_transformed():
        groups = [list(range(len(kappa)))]
    else:
        sizes = ft.to_host(is_seen.sum(1), _SIZES).tolist()
        few = [split for split, size in enumerate(sizes) if 0 < size <= _FEW]
        many = [[split] for split, size in enumerate(sizes) if size > _FEW]
        groups = [few, *many] if few else many

    # How many pairs were seen before.
    pairs = (is_seen.flatten().long().cumsum(0) - 1).clamp(min=0).reshape(kappa.shape)
    result = []
    for group in groups:
        splits = torch.tensor(group)
        rows = places_of(is_seen[splits])
        of_rows = (kappa[splits].gather(1, rows), pairs[splits].gather(1, rows))
        result.append(Group(splits, rows, *of_rows))

    return result


def places_of(is_seen: Tensor) -> Tensor:
    """Return the places of seen examples, filled up with others (g, n); under ``vmap`` of all.

    Args:
        is_seen: by splits (g, all).
    """
    if ft.is_transformed():
        return torch.arange(is_seen.shape[1]).expand(is_seen.shape)

    most = int(ft.to_host(is_seen.sum(1).max(), _SIZES))
    return is_seen.byte().argsort(dim=1, descending=True, stable=True)[:, :most]


def directions(z: Tensor) -> Tensor:
    """Return features (n, d) normalized to length 1, in float64."""
    return F.normalize(z.double())


def kernel(u: Tensor, v: Tensor) -> Tensor:
    """Return 8 exp(-|u - v|^2 / 2) of directions (..., n, d) and others (..., m, d)."""
    norms = u.square().sum(-1)[..., :, None] + v.square().sum(-1)[..., None, :]
    squares = norms - 2.0 * u @ v.mT
    return _OUTPUT_SCALE * torch.exp(-squares.clamp(min=0.0) / 2)


def kernel_matrix(u: Tensor, is_seen: Tensor) -> Tensor:
    """Return K (g, n, n) of directions (g, n, d), with a diagonal that keeps it positive definite.

    Examples that are not seen (g, n) have the rows of an identity.
    """
    matrix = kernel(u, u) * is_seen[..., :, None] * is_seen[..., None, :]
    return matrix + torch.diag_embed(torch.where(is_seen, _JITTER, 1.0).to(u.dtype))


def polya_gamma(tilt: Tensor, exponentials: Tensor) -> Tensor:
    """Return PG(1, c) variables from exponential variables, by their series.

    It is sum_k g_k / ((k - 1/2)^2 + c^2 / (4 pi^2)) / (2 pi^2), over k = 1, 2, ...; of the terms
    after the last one, the mean is taken.

    Args:
        tilt: c (...).
        exponentials: g (..., terms).
    """
    numbers = torch.arange(exponentials.shape[-1], dtype=tilt.dtype) + 0.5
    terms = 1.0 / (numbers.square() + (tilt[..., None] / (2 * math.pi)).square())
    terms = terms / (2 * math.pi**2)

    # E PG(1, c) = tanh(c / 2) / (2 c)
    size = tilt.abs().clamp(min=1e-4)
    mean = torch.tanh(size / 2) / (2 * size)
    rest = (mean - terms.sum(-1)).clamp(min=0.0)
    return (terms * exponentials).sum(-1) + rest


class Draws(NamedTuple):
    """Random numbers of the pairs of a split and an example that it sees."""

    exponential: Tensor
    """Those of Polya-Gamma variables (pairs, chains, steps + 1, terms)."""
    prior: Tensor
    """Normal ones, for draws of the prior (pairs, chains, steps + 1)."""
    noise: Tensor
    """Normal ones, for what was observed (pairs, chains, steps)."""


def draw(kappa: Tensor, key: ft.Key, *, chains: int, steps: int) -> Draws:
    """Draw what Gibbs sampling needs at all splits (splits, n)."""
    if ft.is_transformed():
        pairs = kappa.numel()
    else:
        pairs = int(ft.to_host((kappa != 0).sum(), _SIZES))

    uniform = ft.uniform(key.fold("uniform"), (pairs, chains, steps + 1, _TERMS))
    normal = ft.normal(key.fold("normal"), (pairs, chains, 2 * steps + 1))
    exponential = uniform.double().neg_().log1p_().neg_()
    prior, noise = normal.double().tensor_split([steps + 1], dim=2)
    return Draws(exponential, prior, noise)


def sample_omega(u: Tensor, kappa: Tensor, draws: Draws) -> Tensor:
    """Return omega of splits (chains, g, n) after Gibbs sampling, each chain from the prior.

    Args:
        u: directions of the examples (g, n, d).
        kappa: 1/2, -1/2, or 0 for examples that a split does not see (g, n).
        draws: of these pairs, (g, n, ...) in place of (pairs, ...).
    """
    is_seen = kappa != 0
    matrix = kernel_matrix(u, is_seen)
    exponential = draws.exponential.movedim((2, 3), (1, 0))  # (steps + 1, chains, g, n, terms)
    standard = draws.prior.movedim((2, 3), (1, 0))  # (steps + 1, chains, g, n)
    noise = draws.noise.movedim((2, 3), (1, 0))  # (steps, chains, g, n)

    def next_omega(f: Tensor, step: int) -> Tensor:
        return torch.where(is_seen, polya_gamma(f, exponential[step]), 0.0)

    # Of each chain, draws of the prior to start from and for every step.
    prior = (_cholesky(matrix) @ standard[..., None])[..., 0]
    omega = next_omega(prior[0], 0)
    for step in range(len(noise)):
        # f | omega, from a draw of the prior and of what was observed
        f = prior[step + 1]
        root = omega.sqrt()
        gap = whitened(kappa, root) - root * f - noise[step]
        solved = torch.cholesky_solve(gap[..., None], factor_of(matrix, root))
        f = f + (matrix @ (root[..., None] * solved))[..., 0]
        omega = next_omega(f, step + 1)

    return omega


def whitened(kappa: Tensor, root: Tensor) -> Tensor:
    """Return kappa / sqrt(omega), 0 where omega is 0."""
    return torch.where(root > 0, kappa / root.clamp(min=1e-16), 0.0)


def factor_of(matrix: Tensor, root: Tensor) -> Tensor:
    """Return the Cholesky factor of I + sqrt(Omega) K sqrt(Omega), (..., n, n)."""
    scaled = root[..., :, None] * matrix * root[..., None, :]
    scaled.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return _cholesky(scaled)


def _cholesky(matrix: Tensor) -> Tensor:
    """Return the lower factor; a matrix that has none gives numbers of no use, but no error."""
    factor: Tensor = torch.linalg.cholesky_ex(matrix).L
    return factor


def predict_left(u: Tensor, kappa: Tensor, omega: Tensor, new: Tensor) -> Tensor:
    """Return the probability of the left sides of splits for new examples (g, m).

    f is Gaussian given omega; sigmoid(f) is integrated by quadrature, and averaged over chains.

    Args:
        u: directions of the known examples (g, n, d).
        kappa: of them (g, n).
        omega: of them (chains, g, n).
        new: directions of the new examples (g, m, d).
    """
    is_seen = kappa != 0
    cross = kernel(u, new) * is_seen[..., None]
    root = omega.sqrt()
    factor = factor_of(kernel_matrix(u, is_seen), root)

    # E f = k^T (K + Omega^-1)^-1 Omega^-1 kappa
    weights = torch.cholesky_solve(whitened(kappa, root)[..., None], factor)
    mean = (cross.mT @ (root[..., None] * weights))[..., 0]

    # Var f = k(x, x) - k^T (K + Omega^-1)^-1 k
    explained = torch.linalg.solve_triangular(factor, root[..., None] * cross, upper=False)
    variance = _OUTPUT_SCALE + _JITTER - explained.square().sum(-2)
    deviation = variance.clamp(min=1e-12).sqrt()

    points = torch.from_numpy(_POINTS).to(mean.device)
    shares = torch.from_numpy(_WEIGHTS / math.sqrt(math.pi)).to(mean.device)
    values = mean[..., None] + math.sqrt(2.0) * deviation[..., None] * points
    probability = torch.sigmoid(values) @ shares
    return probability.mean(0)


def judged_half(labels: Tensor, counts: Tensor, key: ft.Key) -> Tensor:
    """Return 1 for a random half of every class, rounded down (n,), and 0 for the rest."""
    words = ft.row_words(key, counts)
    is_same = (labels[:, None] == labels) & (counts > 0)
    rank = (is_same & (words < words[:, None])).sum(1)
    size = is_same.sum(1)
    return ((rank < size // 2) & (counts > 0)).to(torch.float64)


def half_loss(
    z: Tensor,
    labels: Tensor,
    counts: Tensor,
    tree: Tree,
    key: ft.Key,
    *,
    chains: int,
    steps: int,
) -> Tensor:
    """Return the negative log-probability of half of the examples, given the other half, ().

    It is the sum over all splits of the mean over the half of those that the split sees.
    Gradients go through the kernel; omega is a constant.
    """
    judged = judged_half(labels, counts, key.fold("half"))
    known = tree.targets(labels, counts.to(torch.float64) - judged)
    wanted = tree.targets(labels, judged)

    u = directions(z)
    draws = draw(known, key.fold("omega"), chains=chains, steps=steps)
    loss = torch.zeros((), dtype=u.dtype)
    for group in group_splits(known):
        omega = _sample_group(u.detach(), group, draws)
        loss = loss + _loss_of_group(u, group, omega, wanted[group.splits])

    return loss


def _loss_of_group(u: Tensor, group: Group, omega: Tensor, wanted: Tensor) -> Tensor:
    """Return the loss of the splits of a group, ().

    Args:
        u: directions of all examples (n, d).
        group: with the known examples.
        omega: of these (chains, g, known).
        wanted: positive for examples that are on the left, negative on the right, 0 for those that
            are not judged (g, n).
    """
    asked = places_of(wanted != 0)
    side = wanted.gather(1, asked)
    left = predict_left(u[group.rows], group.kappa, omega, u[asked])

    probability = torch.where(side > 0, left, 1.0 - left)
    losses = -probability.clamp(min=_LEAST_PROBABILITY).log() * (side != 0)
    sizes = (side != 0).sum(1).clamp(min=1)
    return (losses.sum(1) / sizes).sum()


def _sample_group(u: Tensor, group: Group, draws: Draws) -> Tensor:
    """Return omega of the splits of a group (chains, g, n), from the draws of all pairs."""
    own = Draws(*(drawn[group.pairs] for drawn in draws))
    return sample_omega(u[group.rows], group.kappa, own)


def sample_splits(u: Tensor, kappa: Tensor, key: ft.Key, *, chains: int, steps: int) -> Tensor:
    """Return omega of all splits (n, chains, splits), 0 for examples that a split does not see.

    Args:
        u: directions of the examples (n, d).
        kappa: from :meth:`Tree.targets` (splits, n).
        key: of the random numbers.
        chains: of Gibbs sampling.
        steps: of each.
    """
    draws = draw(kappa, key, chains=chains, steps=steps)
    omega = torch.zeros(*kappa.shape, chains, dtype=u.dtype)
    for group in group_splits(kappa):
        sampled = _sample_group(u, group, draws)
        omega = omega.index_put((group.splits[:, None], group.rows), sampled.movedim(0, 2))
    return omega.permute(1, 2, 0)


def predict_splits(u: Tensor, kappa: Tensor, omega: Tensor, new: Tensor) -> Tensor:
    """Return the probability of the left sides of all splits for new examples (splits, m).

    It is a half at a split that sees no example.

    Args:
        u: directions of the known examples (n, d).
        kappa: from :meth:`Tree.targets` (splits, n).
        omega: from :func:`sample_splits` (n, chains, splits).
        new: directions of the new examples (m, d).
    """
    left = torch.full((len(kappa), len(new)), 0.5, dtype=u.dtype)
    for group in group_splits(kappa):
        omega_of_group = omega.movedim(0, 2)[:, group.splits[:, None], group.rows]
        found = predict_left(
            u[group.rows], group.kappa, omega_of_group, new.expand(len(group.splits), *new.shape)
        )
        left = left.index_copy(0, group.splits, found)
    return left
