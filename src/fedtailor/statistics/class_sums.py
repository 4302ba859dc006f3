"""Sums over examples by class, and the Gaussians that follow from them.

Sums of clients add up to those of their pool, so that every statistic made from them is the same
whoever has which examples. They are accumulated in float64; a message rounds them once. A symmetric
matrix (d, d) is packed: its upper triangle row by row, (d (d + 1) / 2,).

Under ``torch.func.vmap`` the sums are made client by client, by the same products of the same
shapes, so that they have the same bits as alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import unroll
from fedtailor.statistics import gaussian

Squares = Literal["none", "diagonal", "pooled", "by_class"]
"""Which second moments: none, squares of the features (classes, d), their products over all
examples (packed,), or by class (classes, packed)."""

_ROWS = 4096
"""Examples that are in memory in float64 at once."""
_COLUMNS = 320
"""Width of a block of a product: blocks below the diagonal are left out, which saves almost half
of the work."""


class ClassSums(NamedTuple):
    """Sums over labeled features."""

    counts: Float[Tensor, "classes"]
    """Number of examples by class."""
    sums: Float[Tensor, "classes d"]
    """Sum of the features by class."""
    squares: Float[Tensor, "..."]
    """Second moments, see :data:`Squares`; (0,) for none."""

    def means(self) -> Float64[Tensor, "classes d"]:
        """Return the mean of every class; 0 for a class without examples."""
        return self.sums.double() / self.counts.double().clamp_min(1.0)[:, None]

    def within_covariance(self) -> Float64[Tensor, "d d"]:
        """Return the covariance about the means of the classes, which all classes share.

        Divided by the number of examples, n. From pooled second moments.
        """
        # sum_i x_i x_i^T - sum_c n_c mean_c mean_c^T
        between = self.sums.double().mT @ self.means()
        total = self.counts.double().sum().clamp_min(1.0)
        return (unpack(self.squares.double(), self.sums.shape[1]) - between) / total

    def covariance_by_class(self) -> Float64[Tensor, "classes d d"]:
        """Return the covariance of every class, divided by n_c. From second moments by class."""
        means = self.means()
        divisor = self.counts.double().clamp_min(1.0)[:, None, None]
        moments = unpack(self.squares.double(), self.sums.shape[1]) / divisor
        return moments - means[:, :, None] * means[:, None, :]

    def variance_by_class(self) -> Float64[Tensor, "classes d"]:
        """Return the variance of every feature by class, divided by n_c.

        From squares of the features. Rounding never makes it negative.
        """
        moments = self.squares.double() / self.counts.double().clamp_min(1.0)[:, None]
        return (moments - self.means() ** 2).clamp_min(0.0)


def squares_shape(squares: Squares, num_classes: int, d: int) -> tuple[int, ...]:
    """Return the shape of second moments.

    Example:
        >>> squares_shape("pooled", 10, 3), squares_shape("by_class", 10, 3)
        ((6,), (10, 6))
    """
    packed = d * (d + 1) // 2
    shapes = {
        "none": (0,),
        "diagonal": (num_classes, d),
        "pooled": (packed,),
        "by_class": (num_classes, packed),
    }
    return shapes[squares]


def add_up(examples: ExampleSet, num_classes: int, squares: Squares) -> ClassSums:
    """Return the sums over a table of features, in float64.

    Args:
        examples: a table of features, such as ``cached_features`` returns. Rows of weight 0 are
            left out; all others count the same.
        num_classes: number of classes.
        squares: which second moments.
    """
    columns = (examples.x, examples.y, examples.weight)
    parts = _ClassSums.apply(num_classes, squares, *columns)  # type: ignore[no-untyped-call]
    return ClassSums(*parts)


class _ClassSums(torch.autograd.Function):
    """``add_up`` as a function that PyTorch hands stacked tensors under ``vmap``."""

    @staticmethod
    def forward(
        num_classes: int, squares: Squares, z: Tensor, labels: Tensor, weight: Tensor
    ) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return tuple(_sums_of(num_classes, squares, z, labels, weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], num_classes: int, squares: Squares, *columns: Tensor
    ) -> tuple[Any, Any]:
        # The rows that count differ by client, and with them the shapes of products.
        unrolled = [
            unroll(column, dim, info.batch_size)
            for column, dim in zip(columns, in_dims[2:], strict=True)
        ]
        clients = [
            _sums_of(num_classes, squares, *client) for client in zip(*unrolled, strict=True)
        ]
        stacked = tuple(torch.stack(parts) for parts in zip(*clients, strict=True))
        return stacked, (0,) * len(stacked)


def _sums_of(
    num_classes: int, squares: Squares, z: Tensor, labels: Tensor, weight: Tensor
) -> ClassSums:
    is_present = weight > 0
    if not bool(is_present.all()):
        z = z[is_present]
        labels = labels[is_present]

    d = z.shape[1]
    counts = torch.bincount(labels, minlength=num_classes).double()
    sums = z.new_zeros((num_classes, d), dtype=torch.float64)
    shape = (d, d) if squares == "pooled" else squares_shape(squares, num_classes, d)
    second = z.new_zeros(shape, dtype=torch.float64)

    for start in range(0, len(z), _ROWS):
        block = z[start : start + _ROWS].double()
        classes = labels[start : start + _ROWS]
        sums.index_add_(0, classes, block)
        if squares == "diagonal":
            second.index_add_(0, classes, block.square())
        elif squares == "pooled":
            _add_products(second, block)

    if squares == "pooled":
        second = pack(second)
    elif squares == "by_class":
        second = torch.stack([_products(z[labels == label]) for label in range(num_classes)])

    return ClassSums(counts, sums, second)


def _products(z: Tensor) -> Tensor:
    """Return the packed sum of the outer products of rows (n, d)."""
    total = z.new_zeros((z.shape[1], z.shape[1]), dtype=torch.float64)
    for start in range(0, len(z), _ROWS):
        _add_products(total, z[start : start + _ROWS].double())
    return pack(total)


def _add_products(total: Tensor, block: Tensor) -> None:
    """Add the outer products of rows (n, d) to the upper triangle of a matrix, in place."""
    for start in range(0, block.shape[1], _COLUMNS):
        stop = start + _COLUMNS
        total[start:stop, start:].addmm_(block[:, start:stop].mT, block[:, start:])


@lru_cache(maxsize=4)
def _upper(d: int, device: torch.device) -> Tensor:
    """Return the positions of the upper triangle in a matrix whose rows follow one another."""
    positions: Tensor = torch.arange(d * d, device=device).reshape(d, d)
    return positions[torch.ones(d, d, dtype=torch.bool, device=device).triu()]


def pack(matrix: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch packed"]:
    """Return the upper triangle of symmetric matrices; the lower one is not read."""
    d = matrix.shape[-1]
    return matrix.flatten(-2).index_select(-1, _upper(d, matrix.device))


def unpack(packed: Float[Tensor, "*batch packed"], d: int) -> Float[Tensor, "*batch d d"]:
    """Return the symmetric matrices that were packed.

    Example:
        >>> unpack(torch.tensor([1.0, 2.0, 3.0]), 2)
        tensor([[1., 2.],
                [2., 3.]])
    """
    flat = packed.new_zeros((*packed.shape[:-1], d * d))
    flat[..., _upper(d, packed.device)] = packed
    return gaussian.symmetric(flat.reshape(*packed.shape[:-1], d, d))


def shrunk(
    covariance: Float[Tensor, "*batch d d"],
    count: Float[Tensor, "*batch"],
    shrinkage: float | Literal["oas"],
) -> Float64[Tensor, "*batch d d"]:
    """Return a covariance pulled towards its mean variance.

    By a share, or by what :func:`gaussian.oas_amount` finds for ``count`` examples. Without any
    variance it is the identity.
    """
    amount = gaussian.oas_amount(covariance, count) if shrinkage == "oas" else shrinkage
    matrix = gaussian.shrink(covariance, amount)
    has_variance = matrix.diagonal(dim1=-2, dim2=-1).sum(-1) > 0
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.where(has_variance[..., None, None], matrix, identity)
