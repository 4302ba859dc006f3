"""Diagonal Gaussians: their divergence, and the product of the Gaussians of each class.

A product of Gaussian experts is a Gaussian: precisions add, and so do means times precisions.
Hinton 2002, "Training products of experts by minimizing contrastive divergence", Neural
Computation. Everything runs under ``torch.func.vmap``: nothing branches on data.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Real
from torch import Tensor

_LEAST_IN_LOGARITHM = 1e-8  # deviations below this do not make a logarithm infinite


class ClassProducts(NamedTuple):
    """One product of Gaussians per class; products are multiplied by adding their fields."""

    precision: Float64[Tensor, "classes d"]
    """Sum of the precisions 1 / std^2; 0 for a class without any Gaussian."""
    weighted_mean: Float64[Tensor, "classes d"]
    """Sum of the means, each times its precision."""
    counts: Float64[Tensor, "classes"]
    """Total weight of the Gaussians of a class."""

    def mean(self) -> Float64[Tensor, "classes d"]:
        """Return the means of the products; 0 for a class without any Gaussian."""
        return self.weighted_mean / torch.where(self.precision > 0, self.precision, 1.0)

    def std(self) -> Float64[Tensor, "classes d"]:
        """Return the deviations of the products; infinite for a class without any Gaussian."""
        return self.precision.rsqrt()


def kl(
    mean_q: Float[Tensor, "*batch d"],
    std_q: Float[Tensor, "*batch d"],
    mean_p: Float[Tensor, "*batch d"],
    std_p: Float[Tensor, "*batch d"],
) -> Float[Tensor, "*batch"]:
    """Return the divergence KL(q || p) of diagonal Gaussians, summed over the last axis.

    ``sum_j [log(std_p / std_q) + (std_q^2 + (mean_q - mean_p)^2) / (2 std_p^2) - 1/2]``. Only
    inside the logarithms, deviations are at least 1e-8.
    """
    # Small deviations: the logarithm is bounded, the quotient is not.
    log_ratio = (
        std_p.clamp_min(_LEAST_IN_LOGARITHM).log() - std_q.clamp_min(_LEAST_IN_LOGARITHM).log()
    )
    spread = (std_q**2 + (mean_q - mean_p) ** 2) / (2.0 * std_p**2)
    return (log_ratio + spread - 0.5).sum(-1)


def class_products(
    mean: Float[Tensor, "n d"],
    std: Float[Tensor, "n d"],
    labels: Int[Tensor, "n"],
    weight: Real[Tensor, "n"],
    num_classes: int,
) -> ClassProducts:
    """Multiply the Gaussians of every class, without any prior, in float64.

    Rows of weight 0 are ignored: they may hold any finite means, any deviations and any labels. A
    weight of 2 counts a Gaussian twice.
    """
    # Which class every Gaussian belongs to, times its weight: (n, classes).
    row_weight = weight.double()
    present = (row_weight > 0)[:, None]
    is_class = labels[:, None] == torch.arange(num_classes, device=labels.device)
    member = is_class.double() * row_weight[:, None]

    # A deviation of a padding row may be 0; its precision must stay finite.
    precision = torch.where(present, std.double(), 1.0) ** -2
    weighted_mean = mean.double() * precision
    return ClassProducts(member.mT @ precision, member.mT @ weighted_mean, member.sum(0))
