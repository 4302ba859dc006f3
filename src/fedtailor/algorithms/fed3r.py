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

Messages: up, once, ``counts`` (C,), ``sums`` (C, d) and ``squares`` (the upper triangle of
sum x x^T), from which A and B follow; down ``head``.

Deviations (P: paper):
* P sums A and B while clients come one after the other; here all of them come in one exchange.
* P's random features and its fine-tuning afterwards are left out.
* A class without examples at any client is never predicted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from fedtailor import toolkit as ft
from fedtailor.algorithms._closed_form import ClosedForm, Linear, check_means_only, log_known
from fedtailor.toolkit import class_sums


@dataclass(frozen=True, kw_only=True)
class Fed3R(ClosedForm):
    """Ridge regression in one exchange."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {},
        "afl": {"normalized": False},
    }

    ridge: ft.PositiveFloat = 0.01
    """What is added to the diagonal of the second moments (lambda)."""
    normalized: bool = True
    """Whether the weights of every class get norm 1."""
    means_only: bool = False
    """Whether no second moments are sent: of features, only class means count then, and variances
    are equal. ``privacy.unit = "example"`` turns it on where noise would hide second moments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_means_only(self.means_only, self.feature_clip)

    @property
    def sent_squares(self) -> class_sums.Squares:
        """The second moments that clients send."""
        return "none" if self.means_only else self.squares

    def of_means(self) -> Self:
        """Return the method without second moments."""
        return dataclasses.replace(self, means_only=True)

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
        identity = torch.eye(d + 1, dtype=second.dtype, device=second.device)
        solution = torch.linalg.solve(second + self.ridge * identity, targets).mT

        weight = solution[:, :d]
        bias = solution[:, d]
        if self.normalized:
            norm = weight.norm(dim=1)
            norm = torch.where(norm > 0, norm, 1.0)
            weight = weight / norm[:, None]
            bias = bias / norm
        return Linear(weight, bias + log_known(sums.counts))
