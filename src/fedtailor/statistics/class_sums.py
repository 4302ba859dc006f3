"""Sums over examples by class, and the Gaussians that follow from them.

Sums of clients add up to those of their pool, so that every statistic made from them is the same
whoever has which examples. They are accumulated in float64; a message rounds them once. A symmetric
matrix (d, d) is packed: its upper triangle row by row, (d (d + 1) / 2,).

Under ``torch.func.vmap`` the sums are made client by client, by the same products of the same
shapes, so that they have the same bits as alone.
"""

from __future__ import annotations

from functools import lru_cache, reduce
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

_HIDDEN = 0.2
"""Mean eigenvalue of a scatter, over the level of its noise, below which a multiple of the identity
classifies better. Like the floor, it was found on synthetic Gaussians of 32 to 128 dimensions."""
_FLOOR = 0.5
"""Smallest eigenvalue of a noisy scatter over the level of its noise."""
_ROWS = 4096
"""Examples that are in memory in float64 at once."""
_COLUMNS = 160
"""Rows of the matrix of products that are made at once, from their first diagonal element on: what
is left of it is left out, which saves almost half of the work."""


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


class SumsNoise(NamedTuple):
    """Standard deviations of the noise on every number of class sums."""

    counts: float
    sums: float
    squares: float
    """On the diagonal of products; off it, by the root of 2 less. 0 for none."""


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


def add_up(
    examples: ExampleSet,
    num_classes: int,
    squares: Squares,
    dtype: torch.dtype = torch.float64,
) -> ClassSums:
    """Return the sums over a table of features, in float64.

    Args:
        examples: a table of features, such as ``cached_features`` returns. Rows of weight 0 are
            left out; all others count the same.
        num_classes: number of classes.
        squares: which second moments.
        dtype: of products of features, which are rounded once: those of a message are made in its
            type, because in float64 they would take longer to write than to add up.
    """
    columns = (examples.x, examples.y, examples.weight)
    parts = _ClassSums.apply(num_classes, squares, dtype, *columns)  # type: ignore[no-untyped-call]
    return ClassSums(*parts)


class _ClassSums(torch.autograd.Function):
    """``add_up`` as a function that PyTorch hands stacked tensors under ``vmap``."""

    @staticmethod
    def forward(
        num_classes: int,
        squares: Squares,
        dtype: torch.dtype,
        z: Tensor,
        labels: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return tuple(_sums_of(num_classes, squares, dtype, z, labels, weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        num_classes: int,
        squares: Squares,
        dtype: torch.dtype,
        *columns: Tensor,
    ) -> tuple[Any, Any]:
        # The rows that count differ by client, and with them the shapes of products.
        clients = unroll(columns, in_dims[3:], info.batch_size)
        sums = [_sums_of(num_classes, squares, dtype, *client) for client in clients]
        stacked = tuple(torch.stack(parts) for parts in zip(*sums, strict=True))
        return stacked, (0,) * len(stacked)


def _sums_of(
    num_classes: int,
    squares: Squares,
    dtype: torch.dtype,
    z: Tensor,
    labels: Tensor,
    weight: Tensor,
) -> ClassSums:
    is_present = weight > 0
    if not bool(is_present.all()):
        z = z[is_present]
        labels = labels[is_present]

    d = z.shape[1]
    counts = torch.bincount(labels, minlength=num_classes).double()
    sums = z.new_zeros((num_classes, d), dtype=torch.float64)
    by_class = z.new_zeros((num_classes, d if squares == "diagonal" else 0), dtype=torch.float64)

    blocks = zip(torch.split(z, _ROWS), torch.split(labels, _ROWS), strict=True)
    for rows, classes in blocks:
        values = rows.double()
        sums.index_add_(0, classes, values)
        if squares == "diagonal":
            by_class.index_add_(0, classes, values.square())

    if squares == "pooled":
        return ClassSums(counts, sums, _products(z, dtype))
    if squares == "by_class":
        products = [_products(z[labels == label], dtype) for label in range(num_classes)]
        return ClassSums(counts, sums, torch.stack(products))
    return ClassSums(counts, sums, by_class if squares == "diagonal" else by_class[0])


def _products(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the upper triangle of the sum of outer products of rows (n, d), rounded once."""
    d = z.shape[1]
    values = z.double() if len(z) <= _ROWS else z
    packed = z.new_empty(d * (d + 1) // 2, dtype=dtype)
    filled = 0

    # A strip of the matrix from its first diagonal element on; each is packed while in the cache.
    for start in range(0, d, _COLUMNS):
        columns = values[:, start:]
        parts = [_products_with_first(rows.double()) for rows in torch.split(columns, _ROWS)]
        strip = reduce(torch.add, parts)

        upper = _upper(*strip.shape, strip.device)
        part = packed[filled : filled + len(upper)]
        torch.index_select(strip.flatten().to(dtype), 0, upper, out=part)
        filled += len(upper)

    return packed


def _products_with_first(columns: Tensor) -> Tensor:
    """Return the sums of products of the first columns with all of (n, d)."""
    if columns.device.type != "cpu":
        return columns[:, :_COLUMNS].mT @ columns

    # The library of NumPy multiplies float64 as fast on all processors; that of PyTorch takes 1.15
    # times as long on some.
    values = columns.numpy()
    return torch.from_numpy(values[:, :_COLUMNS].T @ values)


@lru_cache(maxsize=32)
def _upper(rows: int, columns: int, device: torch.device) -> Tensor:
    """Return the positions on and above the diagonal of a matrix whose rows follow one another."""
    positions: Tensor = torch.arange(rows * columns, device=device).reshape(rows, columns)
    return positions.int()[torch.ones(rows, columns, dtype=torch.bool, device=device).triu()]


def unpack(packed: Float[Tensor, "*batch packed"], d: int) -> Float[Tensor, "*batch d d"]:
    """Return the symmetric matrices that were packed.

    Example:
        >>> unpack(torch.tensor([1.0, 2.0, 3.0]), 2)
        tensor([[1., 2.],
                [2., 3.]])
    """
    flat = packed.new_zeros((*packed.shape[:-1], d * d))
    flat[..., _upper(d, d, packed.device)] = packed
    return gaussian.symmetric(flat.reshape(*packed.shape[:-1], d, d))


def _pack(matrices: Tensor) -> Tensor:
    """Return the upper triangles of matrices (..., d, d)."""
    d = matrices.shape[-1]
    return matrices.flatten(-2)[..., _upper(d, d, matrices.device)]


def repaired(sums: ClassSums, noise: SumsNoise, most_norm: float) -> ClassSums:
    """Return noisy sums as some that examples could have, in float64.

    Counts are at least as large as their noise, and 1; means of features have a norm of at most
    ``most_norm``. The scatter about the means of the classes gets back what their noise takes from
    it on average. Then it is made positive definite: its eigenvalues are at least half the level of
    the noise, which is the deviation on its diagonal times the root of its size. Where the mean
    eigenvalue is far below that level, nothing is known of directions, and the scatter becomes a
    multiple of the identity: only means distinguish the classes then.

    Args:
        sums: of all clients.
        noise: on these sums.
        most_norm: bound of the norm of features.
    """
    counts = sums.counts.double().clamp_min(max(noise.counts, 1.0))
    means = sums.sums.double() / counts[:, None]
    means = means * (most_norm / means.norm(dim=1).clamp_min(most_norm))[:, None]
    clean = ClassSums(counts, counts[:, None] * means, sums.squares.double())
    if noise.squares == 0:
        return clean

    # Noise on a sum makes its mean longer, by its variance over the count in every direction.
    excess = noise.sums**2 / counts
    weighted = counts[:, None] * means
    d = means.shape[1]
    if sums.squares.shape == sums.sums.shape:
        between = weighted * means
        variances = clean.squares - between + excess[:, None]
        return clean._replace(squares=_above_noise(variances, noise.squares) + between)

    between = weighted.mT @ means
    if sums.squares.dim() == 2:
        between = weighted[:, :, None] * means[:, None, :]
    else:
        excess = excess.sum()

    values, vectors = torch.linalg.eigh(unpack(clean.squares, d) - between)
    values = _above_noise(values + excess[..., None], noise.squares * d**0.5)
    scatter = (vectors * values[..., None, :]) @ vectors.mT
    return clean._replace(squares=_pack(scatter + between))


def hides_squares(
    noise: SumsNoise, squares: Squares, num_examples: int, d: int, most_norm: float
) -> bool:
    """Return whether noise hides second moments, whatever the features are.

    No scatter of n examples has a mean eigenvalue above n R^2 / d. Where that is far below the
    level of the noise, :func:`repaired` makes a multiple of the identity of it.

    Args:
        noise: on the sums.
        squares: which second moments.
        num_examples: of all clients (n).
        d: number of features.
        most_norm: bound of the norm of features (R).

    Example:
        >>> noise = SumsNoise(counts=4.0, sums=1.2, squares=2.0)
        >>> [hides_squares(noise, "pooled", 10_000, d, most_norm=1.0) for d in (512, 1280)]
        [False, True]
    """
    level = noise.squares if squares == "diagonal" else noise.squares * d**0.5
    return num_examples * most_norm**2 / d < _HIDDEN * level


def with_equal_variances(sums: ClassSums, squares: Squares, most_norm: float) -> ClassSums:
    """Return counts and sums with the second moments that they have if no direction is special.

    The variance within classes is then the same everywhere, and as large as a bound of the norm
    allows: n R^2 is what the squares of all features add up to at most, and the means have their
    part of it.

    Args:
        sums: without second moments.
        squares: which ones are made.
        most_norm: bound of the norm of features (R).
    """
    means = sums.means()
    weighted = sums.counts.double()[:, None] * means
    d = means.shape[1]

    # What is left for the scatter of every class, in each direction.
    most = sums.counts.double() * most_norm**2
    smallest = torch.finfo(torch.float32).eps * most_norm**2
    variance = (most - (weighted * means).sum(1)).clamp_min(smallest) / d  # (classes,)

    if squares == "diagonal":
        return sums._replace(squares=variance[:, None] + weighted * means)

    identity = torch.eye(d, dtype=torch.float64, device=means.device)
    if squares == "by_class":
        products = weighted[:, :, None] * means[:, None, :]
        return sums._replace(squares=_pack(variance[:, None, None] * identity + products))
    return sums._replace(squares=_pack(variance.sum() * identity + weighted.mT @ means))


def _above_noise(variances: Tensor, level: float) -> Tensor:
    """Return variances (..., d) of at least half the noise, or their mean where noise hides all."""
    mean = variances.mean(-1, keepdim=True)
    common = mean.clamp_min(level / variances.shape[-1]).expand_as(variances)
    return torch.where(mean < _HIDDEN * level, common, variances.clamp_min(_FLOOR * level))


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
