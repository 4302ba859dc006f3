"""Convex quadratic programs over the probability simplex: many mixtures of least variance at once.

Everything is computed in float64. The matrices of a stack do not influence each other. A constant
factor of a matrix changes nothing. If several mixtures are equally good, the result lies in the
middle of them, for any order of the rows.
"""

from __future__ import annotations

from typing import NamedTuple

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


class _Programs(NamedTuple):
    """Programs in scaled unknowns b: minimize ``b^T Q b`` over ``b >= 0, sum_j c_j b_j = 1``."""

    q: Tensor  # (programs, m, m)
    cost: Tensor  # c, (programs, m)

    def select(self, programs: Tensor) -> _Programs:
        """Return some of the programs, given by their numbers."""
        return _Programs(self.q[programs], self.cost[programs])


class _Iterate(NamedTuple):
    """Where the method stands: unknowns b > 0, duals s > 0 of b >= 0, and the dual l of the sum."""

    b: Tensor  # (programs, m)
    s: Tensor  # (programs, m)
    level: Tensor  # l, (programs, 1)


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

    # the unit of a program: its smallest diagonal entry that is not 0
    diagonal = p.diagonal(dim1=1, dim2=2)  # (b, m)
    unit = torch.where(diagonal > 0, diagonal, torch.inf).amin(1, keepdim=True)
    unit = torch.where(torch.isinf(unit), 1.0, unit)

    # Q and c, whose rows have about the same size
    cost = (unit / torch.maximum(diagonal, unit)).sqrt()
    q = p / unit[:, :, None] * cost[:, :, None] * cost[:, None, :]
    programs = _Programs(q, cost)

    iterate = _start(programs)
    for _ in range(_MOST_STEPS):
        unsolved = (_distance_from_minimum(programs, iterate) > _TOLERANCE).nonzero()[:, 0]
        if not len(unsolved):
            break

        # programs that are solved stay as they are
        current = _Iterate(*(part[unsolved] for part in iterate))
        stepped = _step(programs.select(unsolved), current)
        for part, new_part in zip(iterate, stepped, strict=True):
            part[unsolved] = new_part

    weights = iterate.b * cost
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
    largest = symmetric.diagonal(dim1=1, dim2=2).amax(1)
    tolerance = _NEGATIVE * largest.clamp_min(0.0)[:, None, None]
    failed = torch.linalg.cholesky_ex(symmetric + tolerance * identity).info
    indefinite = failed > 0
    if not bool(indefinite.any()):
        return matrices

    values, vectors = torch.linalg.eigh(symmetric[indefinite])
    not_negative = values.clamp_min(0.0)[:, None, :]
    result = matrices.clone()
    result[indefinite] = (vectors * not_negative) @ vectors.mT
    return result


def _start(programs: _Programs) -> _Iterate:
    """Return equal unknowns that meet the constraint, and duals that are positive."""
    q, cost = programs
    b = (1.0 / cost.sum(1, keepdim=True)).expand(cost.shape).clone()

    slope = _product(q, b)
    mean_size = slope.abs().mean(1, keepdim=True)
    s = torch.maximum(slope, mean_size)
    return _Iterate(b, s, torch.zeros_like(mean_size))


def _distance_from_minimum(programs: _Programs, iterate: _Iterate) -> Tensor:
    """Return a bound (programs,): what complementarity and the dual equation lack."""
    b, s, level = iterate
    dual_gap = _product(programs.q, b) - level * programs.cost - s
    return (b * (s + dual_gap.abs())).sum(1)


def _step(programs: _Programs, iterate: _Iterate) -> _Iterate:
    """Take a predictor-corrector step, unless the step is not finite."""
    b, s, _ = iterate
    system = _NewtonSystem(programs, iterate)
    products = b * s

    # predictor: how far would a step towards t = 0 come?
    predictor = system.solve(-products)
    length = _longest_step(iterate, predictor)
    mean = products.mean(1, keepdim=True)
    reached_b = b + length * predictor.b
    reached_s = s + length * predictor.s
    reached = (reached_b * reached_s).mean(1, keepdim=True)
    center = (reached / mean).clamp(0.0, 1.0) ** 3 * mean

    # corrector: a step towards t = center, with the second-order term of the predictor
    corrector = system.solve(center - products - predictor.b * predictor.s)
    length = _TO_BOUNDARY * _longest_step(iterate, corrector)

    # a step that is not finite is not taken; the program then counts as not solved
    is_finite = torch.isfinite(torch.cat(corrector, 1)).all(1, keepdim=True)
    usable = system.is_factored & is_finite
    parts = []
    for part, change in zip(iterate, corrector, strict=True):
        parts.append(torch.where(usable, part + length * change, part))

    return _Iterate(*parts)


class _NewtonSystem:
    """The linear equations of a Newton step, factored once for predictor and corrector.

    The change of b is computed as a multiple of sqrt(b). Its matrix is ``sqrt(b) Q sqrt(b) +
    diag(s)``, whose entries are bounded.
    """

    def __init__(self, programs: _Programs, iterate: _Iterate) -> None:
        q, self.cost = programs
        self.b, self.s, level = iterate
        self.root = self.b.sqrt()

        matrix = self.root[:, :, None] * q * self.root[:, None, :]
        matrix.diagonal(dim1=1, dim2=2).add_(self.s).mul_(1.0 + _RIDGE)
        self.factor, failed = torch.linalg.cholesky_ex(matrix)
        self.is_factored = (failed == 0)[:, None]  # (programs, 1)

        # what the two linear equations lack: Q b - l c - s = 0 and sum_j c_j b_j = 1
        self.dual_gap = _product(q, self.b) - level * self.cost - self.s
        self.primal_gap = 1.0 - (self.cost * self.b).sum(1, keepdim=True)

    def solve(self, aim: Tensor) -> _Iterate:
        """Return changes that close both gaps and change ``b s`` by ``aim``, to first order."""
        # per unit of the change of l, and without a change of l
        sides = [self.root * self.cost, self.root * (aim / self.b - self.dual_gap)]
        solution = torch.cholesky_solve(torch.stack(sides, 2), self.factor)  # (programs, m, 2)
        per_level, without_level = (self.root[:, :, None] * solution).unbind(2)

        # the change of l that closes the primal gap
        missing = self.primal_gap - (self.cost * without_level).sum(1, keepdim=True)
        level = missing / (self.cost * per_level).sum(1, keepdim=True)

        b = without_level + level * per_level
        s = (aim - self.s * b) / self.b
        return _Iterate(b, s, level)


def _longest_step(iterate: _Iterate, change: _Iterate) -> Tensor:
    """Return the length (programs, 1), at most 1, of the longest step that leaves b, s >= 0."""
    b_shrinks = (-change.b / iterate.b).amax(1, keepdim=True)
    s_shrinks = (-change.s / iterate.s).amax(1, keepdim=True)
    fastest = torch.maximum(b_shrinks, s_shrinks)
    return 1.0 / fastest.clamp_min(1.0)


def _product(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of every matrix (b, m, m) with its vector (b, m)."""
    return (matrices @ vectors[:, :, None])[:, :, 0]
