"""Gaussian class models: a mean per class, one covariance for all, and their linear classifier.

Everything is computed and returned in float64, whatever the type of the inputs. All functions run
under ``torch.func.vmap``: nothing branches on data. Statistics that are not finite never raise an
error in a batched factorization; the result is NaN for their client alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int, Real
from torch import Tensor

from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import Params, Task
from fedtailor.training.blocks import cached_features

_SMALLEST_DEVIATION = 1e-12
"""Replaces the standard deviation of a constant feature in a correlation."""


class ClassMoments(NamedTuple):
    """Means, counts and within-class scatter of labeled features."""

    means: Float64[Tensor, "classes d"]
    """Mean of every class; 0 for a class without examples."""
    counts: Float64[Tensor, "classes"]
    """Total weight of every class."""
    scatter: Float64[Tensor, "d d"]
    """Sum of outer products of the features, each centered by the mean of its class."""


def smooth_prior(
    class_counts: Real[Tensor, "classes"], smoothing: float = 1e-4
) -> Float64[Tensor, "classes"]:
    """Return class frequencies in which no class is impossible.

    They are ``(n_c / n + smoothing) / (1 + C smoothing)``. Without any examples all classes are
    equally likely.
    """
    counts = class_counts.double()
    total = counts.sum()
    num_classes = counts.shape[0]
    frequencies = torch.where(
        total > 0, counts / torch.where(total > 0, total, 1.0), 1.0 / num_classes
    )
    return (frequencies + smoothing) / (1.0 + num_classes * smoothing)


def class_moments(
    z: Float[Tensor, "n d"], labels: Int[Tensor, "n"], weight: Real[Tensor, "n"], num_classes: int
) -> ClassMoments:
    """Compute the moments of features.

    Rows of weight 0 are ignored: they may hold any finite numbers, and any integers as labels.
    """
    # Sums over the examples of each class as products of matrices.
    classes = torch.arange(num_classes, device=labels.device)
    member = (labels[:, None] == classes).double()  # (n, classes)
    weighted = member * weight.double()[:, None]
    counts = weighted.sum(0)
    means = (weighted.mT @ z.double()) / torch.where(counts > 0, counts, 1.0)[:, None]

    # The label of a padding row may be any number; its weight of 0 removes the row.
    centered = z.double() - means[labels.clamp(0, num_classes - 1)]
    return ClassMoments(means, counts, centered.mT @ (centered * weight.double()[:, None]))


def measure(
    task: Task, params: Params, data: ExampleSet, *, key: Key
) -> tuple[ExampleSet, ClassMoments]:
    """Return the features of a client's examples under a model as a table, and their moments."""
    features = cached_features(task, params, data, key=key)
    return features, class_moments(features.x, features.y, features.weight, task.num_classes)


def fill_missing_means(
    moments: ClassMoments, fallback: Float[Tensor, "classes d"], min_count: int = 1
) -> Float64[Tensor, "classes d"]:
    """Return the class means; rows of ``fallback`` where the count is below ``min_count``."""
    return torch.where((moments.counts >= min_count)[:, None], moments.means, fallback.double())


def scatter_about(
    moments: ClassMoments, centers: Float[Tensor, "classes d"]
) -> Float64[Tensor, "d d"]:
    """Return the scatter of the features about other centers than their class means.

    The scatter about the means, plus ``sum_c n_c (mean_c - center_c)(mean_c - center_c)^T``.
    """
    gaps = moments.means - centers.double()
    return moments.scatter + gaps.mT @ (gaps * moments.counts[:, None])


def covariance(
    scatter: Float[Tensor, "d d"], count: Real[Tensor, ""], ridge: float, offset: float
) -> Float64[Tensor, "d d"]:
    """Return ``scatter / max(count - 1, 1) + offset + ridge I``; the offset goes to every entry."""
    identity = torch.eye(scatter.shape[-1], dtype=torch.float64, device=scatter.device)
    return scatter.double() / (count.double() - 1.0).clamp_min(1.0) + offset + ridge * identity


def symmetric(covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """Return a covariance whose lower triangle mirrors the upper one in every bit.

    So half of it can be sent. The two differ by rounding where they were computed apart.
    """
    return covariance.triu() + covariance.triu(1).mT


def shrink(
    covariance: Float[Tensor, "*batch d d"], amount: float = 1e-4
) -> Float64[Tensor, "*batch d d"]:
    """Pull a covariance towards a multiple of the identity of the same trace; it is linear."""
    matrix = covariance.double()
    d = matrix.shape[-1]
    identity = torch.eye(d, dtype=torch.float64, device=matrix.device)
    mean_variance = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] / d
    return (1.0 - amount) * matrix + amount * mean_variance * identity


def blend(
    local: Float[Tensor, "*shape"], shared: Float[Tensor, "*shape"], beta: Float[Tensor, ""]
) -> Float64[Tensor, "*shape"]:
    """Return ``beta local + (1 - beta) shared``: exact where beta is 0 or 1, or both are equal."""
    return torch.lerp(shared.double(), local.double(), beta.double())


def lda_head(
    means: Float[Tensor, "classes d"],
    covariance: Float[Tensor, "d d"],
    prior: Float[Tensor, "classes"],
    shrinkage: float = 0.0,
) -> tuple[Float64[Tensor, "classes d"], Float64[Tensor, "classes"]]:
    """Return weight and bias of the linear classifier of a Gaussian class model.

    ``weight = S^-1 means``, ``bias_c = -1/2 mean_c . weight_c + log prior_c``: up to a term that
    all classes share, ``z @ weight.T + bias`` are the logarithms of the joint densities. The
    covariance is shrunk by ``shrinkage`` first. Where S is singular, the weights are the
    least-squares solution of smallest norm; where it is not finite, they are NaN.

    Reference: Hastie, Tibshirani, Friedman 2009, The Elements of Statistical Learning, section 4.3.
    """
    # S^-1 means, by the eigenvectors of S.
    matrix = shrink(covariance, shrinkage)
    inverse, vectors = _inverse(matrix)
    centers = means.double()
    weight = ((centers @ vectors) * inverse) @ vectors.mT
    weight = torch.where(all_finite(matrix), weight, torch.nan)
    return weight, -0.5 * (centers * weight).sum(1) + prior.double().log()


def mahalanobis(
    z: Float[Tensor, "n d"],
    means: Float[Tensor, "classes d"],
    covariance: Float[Tensor, "d d"],
    shrinkage: float = 0.0,
) -> Float64[Tensor, "n"]:
    """Return the distance of features from the nearest class mean, in standard deviations.

    It is large for unusual inputs. ``min_c sqrt((z - mean_c)^T S^-1 (z - mean_c))``, with the
    covariance S shrunk by ``shrinkage`` first. Directions without any variance do not count; after
    shrinking there are none. Where S is not finite, the result is NaN.

    Reference: Lee et al. 2018, "A simple unified framework for detecting out-of-distribution
    samples and adversarial attacks", NeurIPS.
    """
    matrix = shrink(covariance, shrinkage)
    inverse, vectors = _inverse(matrix)
    # After whitening, distances are Euclidean.
    whiten = vectors * inverse.clamp_min(0.0).sqrt()
    distances = torch.cdist(
        z.double() @ whiten, means.double() @ whiten, compute_mode="donot_use_mm_for_euclid_dist"
    )
    return torch.where(all_finite(matrix)[0], distances.amin(1), torch.nan)


class FeatureFit(NamedTuple):
    """How well a Gaussian per class describes features."""

    surprise: Float64[Tensor, ""]
    """Mean negative log-likelihood of the features given their classes, in nats."""
    kurtosis: Float64[Tensor, ""]
    """Mardia's kurtosis over that of a Gaussian of the same scale: 1 for Gaussian features, more
    for heavy tails."""


def feature_fit(
    z: Float[Tensor, "n d"],
    labels: Int[Tensor, "n"],
    weight: Real[Tensor, "n"],
    means: Float[Tensor, "classes d"],
    covariance: Float[Tensor, "d d"],
    shrinkage: float = 0.0,
) -> FeatureFit:
    """Return how well Gaussians describe features. The covariance is shrunk by ``shrinkage`` first.

    With the squared distance ``q = (z - mean_c)^T S^-1 (z - mean_c)`` of an example from its class,
    the kurtosis is ``E[q^2] / E[q]^2 * d / (d + 2)``. The scale of S does not count. Directions
    without variance do not count either.

    Where S is singular, the surprise is infinite. Where it is not finite, both are NaN. If the
    weights are all 0, both are 0.

    Reference: Mardia 1970, "Measures of multivariate skewness and kurtosis with applications",
    Biometrika 57 (3).
    """
    matrix = shrink(covariance, shrinkage)
    inverse, vectors = _inverse(matrix)
    # q, the squared distance of every example from its class.
    gaps = (z.double() - means.double()[labels.clamp(0, means.shape[0] - 1)]) @ vectors
    squares = (gaps**2 * inverse).sum(1)

    # log det(2 pi S); infinite where S is singular.
    log_precision = torch.where(inverse > 0, inverse.log(), -torch.inf).sum()
    constant = matrix.shape[-1] * math.log(2 * math.pi) - log_precision
    row_weight = weight.double()
    total = row_weight.sum()

    def mean(values: Tensor) -> Tensor:
        weighted = torch.where(row_weight > 0, values * row_weight, 0.0)
        return weighted.sum() / torch.where(total > 0, total, 1.0)

    surprise = mean(0.5 * (squares + constant))

    # E[q^2] / E[q]^2 * d / (d + 2)
    directions = (inverse > 0).sum()
    spread = mean(squares) ** 2
    ratio = mean(squares**2) / torch.where(spread > 0, spread, 1.0) * directions / (directions + 2)

    finite = all_finite(matrix)[0, 0]
    surprise = torch.where(finite, surprise, torch.nan)
    return FeatureFit(surprise, torch.where(finite, ratio, torch.nan))


def condition(covariance: Float[Tensor, "d d"], shrinkage: float = 0.0) -> Float64[Tensor, ""]:
    """Return the ratio of the largest to the smallest eigenvalue of a covariance.

    It is shrunk by ``shrinkage`` first. Infinite where it is singular, NaN where it is not finite.
    """
    matrix = shrink(covariance, shrinkage)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    smallest, largest = torch.linalg.eigvalsh(finite_or(matrix, identity))[[0, -1]]
    ratio = torch.where(smallest > 0, largest / torch.where(smallest > 0, smallest, 1.0), torch.inf)
    return torch.where(all_finite(matrix)[0, 0], ratio, torch.nan)


def _inverse(matrix: Float64[Tensor, "d d"]) -> tuple[Float64[Tensor, "d"], Float64[Tensor, "d d"]]:
    """Return inverse eigenvalues (0 if one vanishes) and eigenvectors of a matrix.

    If the matrix is not finite, they are those of the identity.
    """
    d = matrix.shape[-1]
    identity = torch.eye(d, dtype=matrix.dtype, device=matrix.device)
    eigenvalues, vectors = torch.linalg.eigh(finite_or(matrix, identity))
    # Relative to the largest one; what is smaller is rounding.
    magnitude = eigenvalues.abs()
    regular = magnitude > d * torch.finfo(torch.float64).eps * magnitude.max()
    inverse = torch.where(regular, 1.0 / torch.where(regular, eigenvalues, 1.0), 0.0)
    return inverse, vectors


def nearest_pd(
    covariance: Float[Tensor, "d d"], threshold: float = 1e-15
) -> Float64[Tensor, "d d"]:
    """Make a covariance positive definite by clipping the eigenvalues of its correlation matrix.

    Variances stay as they are. A matrix whose correlations have no eigenvalue below ``threshold``
    is returned unchanged, and so is one that is not finite.
    """
    matrix = covariance.double()
    identity = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    variance = matrix.diagonal()
    deviation = variance.clamp_min(0.0).sqrt().clamp_min(_SMALLEST_DEVIATION)
    scale = deviation[:, None] * deviation

    # Clipped correlations, whose diagonal is 1 again.
    eigenvalues, vectors = torch.linalg.eigh(finite_or(matrix / scale, identity))
    clipped = (vectors * eigenvalues.clamp_min(threshold)) @ vectors.mT
    spread = clipped.diagonal().sqrt()
    correlation = clipped / (spread[:, None] * spread)

    # The variances are the original ones, to the bit.
    repaired = torch.where(identity > 0, variance, scale * correlation)
    return torch.where((eigenvalues < threshold).any(), repaired, matrix)


def all_finite(matrix: Float[Tensor, "*batch rows columns"]) -> Bool[Tensor, "*batch 1 1"]:
    """Return whether every entry of a matrix is finite, shaped to broadcast over the matrix."""
    return torch.isfinite(matrix).all(-1, keepdim=True).all(-2, keepdim=True)


def finite_or(
    matrix: Float[Tensor, "*batch rows columns"], fallback: Float[Tensor, "rows columns"]
) -> Float[Tensor, "*batch rows columns"]:
    """Return the matrix, or ``fallback`` if any entry is not finite.

    A single matrix that is not finite makes a batched factorization raise an error for all of them.
    The caller marks the result of such a matrix.
    """
    return torch.where(all_finite(matrix), matrix, fallback)
