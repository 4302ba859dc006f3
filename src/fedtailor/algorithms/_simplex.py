"""Convex quadratic programs over the probability simplex: many mixtures of least variance at once.

Everything is computed in float64. The matrices of a stack do not influence each other. A constant
factor of a matrix changes nothing. If several mixtures are equally good, the result lies in the
middle of them, whatever the order of the rows.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedtailor.toolkit import gaussian

_MOST_STEPS = 50
"""Newton steps at most; 10 to 20 are enough in practice."""
_TOLERANCE = 1e-14
"""Distance from the minimum at which steps stop, in units of the smallest diagonal entry that is
not 0."""
_TO_BOUNDARY = 0.995
"""Part of the way to the nearest bound at which a step ends."""
_RIDGE = 1e-15
"""Relative increase of the diagonal of a Newton matrix, so that rounding does not make it
indefinite."""
_NEGATIVE = 1e-13
"""Eigenvalues this much below zero, relative to the largest diagonal entry, are rounding errors."""
_FAILED = 1e-9
"""A result that may be this far from the minimum, relative to the median of the diagonal, counts as
not found."""


def least_quadratic(matrices: Float[Tensor, "b m m"]) -> Float64[Tensor, "b m"]:
    """Return ``argmin_a a^T P a`` over ``a >= 0, sum(a) = 1`` for every matrix P of a stack.

    The matrices must be symmetric and positive semi-definite up to rounding (see
    :func:`nearest_psd`). A row is NaN if its matrix is not finite, or if its minimum was not found.

    A primal-dual interior point method on ``b_j = a_j / c_j`` with ``c_j = P_jj^(-1/2)`` and ``Q_jk
    = c_j P_jk c_k``, so that rows of any size can be mixed: Newton steps on ``Q b - l c - s = 0``,
    ``sum_j c_j b_j = 1``, ``b_j s_j = t``, where s > 0 and Mehrotra's predictor and corrector drive
    t to 0. In the end ``sum_j b_j s_j`` bounds the distance of ``a^T P a / 2`` from its minimum.

    Reference: Mehrotra 1992, "On the implementation of a primal-dual interior point method", SIAM
    Journal on Optimization 2; Nocedal and Wright 2006, Numerical Optimization, section 16.6.
    """
    matrices = matrices.double()
    p = gaussian.finite_or(matrices, torch.eye(matrices.shape[-1], dtype=torch.float64))

    # Q and c, whose rows have about the same size
    diagonal = p.diagonal(dim1=1, dim2=2)
    unit = torch.where(diagonal > 0, diagonal, torch.inf).amin(1, keepdim=True)
    unit = torch.where(torch.isinf(unit), 1.0, unit)
    cost = (unit / torch.maximum(diagonal, unit)).sqrt()
    q = p / unit[:, :, None] * cost[:, :, None] * cost[:, None, :]

    # the start: equal weights, and a dual that is positive
    b = (1.0 / cost.sum(1, keepdim=True)).expand(cost.shape).clone()
    slope = _product(q, b)
    s = torch.maximum(slope, slope.abs().mean(1, keepdim=True))
    level = torch.zeros_like(unit)

    for _ in range(_MOST_STEPS):
        away = (b * (s + (_product(q, b) - level * cost - s).abs())).sum(1)
        left = (away > _TOLERANCE).nonzero()[:, 0]
        if not len(left):
            break
        b[left], s[left], level[left] = _step(q[left], cost[left], b[left], s[left], level[left])

    weights = b * cost
    weights = weights / weights.sum(1, keepdim=True)

    # a program that did not converge has no result
    usual = torch.maximum(diagonal.median(1).values, unit[:, 0])
    is_near = optimality_gap(matrices, weights) <= _FAILED * usual
    is_solved = gaussian.all_finite(matrices)[:, 0, 0] & is_near
    return torch.where(is_solved[:, None], weights, torch.nan)


def optimality_gap(
    matrices: Float[Tensor, "b m m"], weights: Float[Tensor, "b m"]
) -> Float64[Tensor, "b"]:
    """Return a bound of how far ``a^T P a`` is above its minimum over the simplex.

    P is positive semi-definite. ``2 (a^T P a - min_j (P a)_j)``: 0 exactly where a meets the
    optimality conditions.

    Reference: Jaggi 2013, "Revisiting Frank-Wolfe: projection-free sparse convex optimization",
    ICML.
    """
    a = weights.double()
    slope = _product(matrices.double(), a)
    return 2.0 * ((a * slope).sum(1) - slope.amin(1))


def nearest_psd(matrices: Float[Tensor, "b m m"]) -> Float64[Tensor, "b m m"]:
    """Return the nearest positive semi-definite matrices: negative eigenvalues become 0.

    A symmetric matrix without negative eigenvalues, up to rounding, comes back untouched. So does a
    matrix that is not finite.

    Reference: Higham 1988, "Computing a nearest symmetric positive semidefinite matrix", Linear
    Algebra and its Applications 103.
    """
    matrices = matrices.double()
    identity = torch.eye(matrices.shape[-1], dtype=torch.float64)
    symmetric = gaussian.finite_or((matrices + matrices.mT) / 2, identity)

    # a factorization is cheaper than eigenvalues, and seldom fails
    largest = symmetric.diagonal(dim1=1, dim2=2).amax(1).clamp_min(0.0)[:, None, None]
    indefinite = torch.linalg.cholesky_ex(symmetric + _NEGATIVE * largest * identity).info > 0
    if not bool(indefinite.any()):
        return matrices

    result = matrices.clone()
    values, vectors = torch.linalg.eigh(symmetric[indefinite])
    result[indefinite] = (vectors * values.clamp_min(0.0)[:, None, :]) @ vectors.mT
    return result


def _step(
    q: Tensor, cost: Tensor, b: Tensor, s: Tensor, level: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a predictor-corrector step, unless the step is not finite.

    The change of b is computed as a multiple of sqrt(b). Its Newton matrix is ``sqrt(b) Q sqrt(b) +
    diag(s)``, whose entries are bounded.
    """
    # the Newton matrix, and what the constraints lack
    root = b.sqrt()
    newton = root[:, :, None] * q * root[:, None, :]
    newton.diagonal(dim1=1, dim2=2).add_(s).mul_(1.0 + _RIDGE)
    factor, failed = torch.linalg.cholesky_ex(newton)
    dual = _product(q, b) - level * cost - s
    primal = 1.0 - (cost * b).sum(1, keepdim=True)

    def direction(aim: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Solve for changes after which the constraints hold and ``b s`` has changed by ``aim``."""
        sides = torch.stack([root * cost, root * (aim / b - dual)], 2)
        along, rest = (root[:, :, None] * torch.cholesky_solve(sides, factor)).unbind(2)
        change = (primal - (cost * rest).sum(1, keepdim=True)) / (cost * along).sum(1, keepdim=True)
        move = rest + change * along
        return move, (aim - s * move) / b, change

    # predictor: how far would a step towards t = 0 come?
    move, slack, _ = direction(-b * s)
    length = _within(b, move, s, slack)
    mean = (b * s).mean(1, keepdim=True)
    reached = ((b + length * move) * (s + length * slack)).mean(1, keepdim=True)
    center = (reached / mean).clamp(0.0, 1.0) ** 3 * mean

    # corrector: a step towards t = center, with the second-order term of the predictor
    move, slack, change = direction(center - b * s - move * slack)
    length = _TO_BOUNDARY * _within(b, move, s, slack)

    # a step that is not finite is not taken; the program then counts as not solved
    finite = torch.isfinite(torch.cat([move, slack, change], 1)).all(1, keepdim=True)
    usable = (failed == 0)[:, None] & finite
    return (
        torch.where(usable, b + length * move, b),
        torch.where(usable, s + length * slack, s),
        torch.where(usable, level + length * change, level),
    )


def _within(b: Tensor, move: Tensor, s: Tensor, slack: Tensor) -> Tensor:
    """Return the length (b, 1), at most 1, of the longest step after which nothing is negative."""
    blocking = torch.maximum((-move / b).amax(1, keepdim=True), (-slack / s).amax(1, keepdim=True))
    return 1.0 / blocking.clamp_min(1.0)


def _product(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of every matrix (b, m, m) with its vector (b, m)."""
    return (matrices @ vectors[:, :, None])[:, :, 0]
