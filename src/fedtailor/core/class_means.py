"""Mean features by class, of the examples of one client."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Real
from torch import Tensor


class ClassMeans(NamedTuple):
    """The mean of the features of every class, and how many examples it is of."""

    means: Float[Tensor, "classes d"]
    """0 for a class without examples."""
    counts: Float64[Tensor, "classes"]
    """Total weight of every class."""


def class_means(
    z: Float[Tensor, "n d"], labels: Int[Tensor, "n"], weight: Real[Tensor, "n"], num_classes: int
) -> ClassMeans:
    """Compute class means in float64; runs under ``torch.func.vmap``.

    Rows of weight 0 are ignored: they may hold any finite numbers, and any integers as labels.
    """
    member = (
        labels[:, None] == torch.arange(num_classes, device=labels.device)
    ).double()  # (n, classes)
    weighted = member * weight.double()[:, None]
    counts = weighted.sum(0)
    means = (weighted.mT @ z.double()) / torch.where(counts > 0, counts, 1.0)[:, None]
    return ClassMeans(means, counts)
