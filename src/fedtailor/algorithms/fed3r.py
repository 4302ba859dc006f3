"""Fed3R: ridge regression to the classes, from sums that clients send once.

Fani, Camoriano, Caputo and Ciccone 2024, "Accelerating heterogeneous federated learning with
closed-form classifiers", ICML. With the features z of every example, followed by a 1, and its class
y as a unit vector,

    A = sum z z^T,   B = sum z y^T,   W = (A + lambda I)^-1 B,

where lambda is ``ridge``; the sums are over all examples of all clients. The last row of W is the
bias. The weights of every class are then divided by their norm, and its bias by the same number
(``normalized``), so that frequent classes do not have longer weights.

Without normalization this is the analytic aggregation of AFL (He, Tong, Fang, Sun, Zeng, Li, Chen
and Zhuang 2025, "AFL: a single-round analytic approach for federated learning with pre-trained
models", CVPR), which gets there by solutions of single clients, and centralized ridge regression.

With ``ridge = "cross_validated"`` (preset ``tuned``) the server takes the ridge of a grid that has
the least generalized cross-validation error (Golub, Heath and Wahba 1979, "Generalized
cross-validation as a method for choosing a good ridge parameter", Technometrics 21 (2)),

    n |Y - Z W|^2 / (n - tr H)^2,   tr H = tr (A + lambda I)^-1 A,

for which the same sums suffice: the squares of the targets add up to the number n of examples. With
about as many examples as features, a small ridge fits nearly all of them, and predicts badly.

Messages: up, once, ``counts`` (C,), ``sums`` (C, d) and ``squares`` (the upper triangle of
sum x x^T), from which A and B follow; down ``head``.

Deviations (P: paper):
* P sums A and B while clients come one after the other; here all of them come in one exchange.
* P's random features and its fine-tuning afterwards are left out.
* A class without examples at any client is never predicted.
* P chooses lambda on held-out examples; ``cross_validated`` is this project's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._closed_form import Linear, SecondMoments, log_known
from fedtailor.toolkit import class_sums

_GRID = (-4.0, 4.0, 33)
"""Of ridges: powers of ten of the first and the last one, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class Fed3R(SecondMoments):
    """Ridge regression in one exchange."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {},
        "afl": {"normalized": False},
        "tuned": {"ridge": "cross_validated"},
    }

    ridge: Annotated[float | Literal["cross_validated"], ft.Range(gt=0)] = 0.01
    """What is added to the diagonal of the second moments (lambda); ``cross_validated``: found from
    the sums."""
    normalized: bool = True
    """Whether the weights of every class get norm 1."""

    def fit(self, sums: class_sums.ClassSums) -> Linear:
        """Solve the regression."""
        d = sums.sums.shape[1]
        of_ones = sums.sums.sum(0)  # (d,), the products of the features with the 1
        second = sums.squares.new_empty((d + 1, d + 1))
        second[:d, :d] = class_sums.unpack(sums.squares, d)
        second[:d, d] = of_ones
        second[d, :d] = of_ones
        second[d, d] = sums.counts.sum()

        targets = torch.cat([sums.sums, sums.counts[:, None]], dim=1).mT  # (d + 1, classes)
        if isinstance(self.ridge, str):
            ridge = cross_validated_ridge(second, targets)
        else:
            ridge = torch.tensor(self.ridge, dtype=torch.float64)

        identity = torch.eye(d + 1, dtype=second.dtype, device=second.device)
        solution = torch.linalg.solve(second + ridge * identity, targets).mT

        weight = solution[:, :d]
        bias = solution[:, d]
        if self.normalized:
            norm = weight.norm(dim=1)
            norm = torch.where(norm > 0, norm, 1.0)
            weight = weight / norm[:, None]
            bias = bias / norm
        return Linear(weight, bias + log_known(sums.counts))


def cross_validated_ridge(second: Tensor, targets: Tensor) -> Tensor:
    """Return the ridge of the least generalized cross-validation error, ().

    The grid is relative to the mean scatter of a feature around its mean. Ridges that are lost in
    the rounding of the sums are left out.

    Args:
        second: A (d + 1, d + 1), of features and a 1.
        targets: B (d + 1, classes), of unit vectors.
    """
    second = second.double()
    number = second[-1, -1]
    scatter = second.diagonal()[:-1] - second[-1, :-1].square() / number
    eigenvalues, vectors = torch.linalg.eigh(second)
    eigenvalues = eigenvalues.clamp(min=0.0)
    least = torch.finfo(torch.float32).eps * eigenvalues.max()
    factors = torch.logspace(*_GRID, dtype=second.dtype, device=second.device)
    ridges = (scatter.mean() * factors).clamp(min=least)

    # |Y - Z W|^2 = tr Y^T Y - 2 tr W^T B + tr W^T A W, a sum over eigenvectors.
    squares = (vectors.mT @ targets.double()).square().sum(1)
    inverses = 1.0 / (eigenvalues + ridges[:, None])
    explained = squares * (2.0 * inverses - eigenvalues * inverses.square())
    errors = number - explained.sum(1)
    freedom = number - (eigenvalues * inverses).sum(1)

    # Noise on sums can leave neither errors nor freedom; a large ridge trusts them least.
    is_known = (errors > 0) & (freedom > 0)
    scores = torch.where(is_known, errors / freedom.square(), torch.inf)
    best: Tensor = ridges[scores.argmin()] if is_known.any() else ridges[-1]
    return best
