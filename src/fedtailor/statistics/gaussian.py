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
_SMALLEST_EIGENVALUE = 1e-15
"""Of the correlations of a covariance that :func:`nearest_pd` leaves as it is."""


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
    """Return class frequencies that are all above zero.

    They are ``(n_c / n + smoothing) / (1 + C smoothing)``. Without any examples all classes are
    equally likely.
    """
    counts = class_counts.double()
    num_classes = counts.shape[0]

    # Without examples the division is by 1, and its result is not used.
    total = counts.sum()
    divisor = torch.where(total > 0, total, 1.0)
    frequencies = torch.where(total > 0, counts / divisor, 1.0 / num_classes)
    return (frequencies + smoothing) / (1.0 + num_classes * smoothing)


def class_moments(
    z: Float[Tensor, "n d"], labels: Int[Tensor, "n"], weight: Real[Tensor, "n"], num_classes: int
) -> ClassMoments:
    """Compute the moments of features.

    Rows of weight 0 are ignored: they may hold any finite numbers, and any integers as labels.
    """
    features = z.double()
    row_weight = weight.double()[:, None]  # (n, 1)

    # Sums over the examples of each class as products of matrices.
    classes = torch.arange(num_classes, device=labels.device)
    is_member = (labels[:, None] == classes).double()  # (n, classes)
    weighted = is_member * row_weight
    counts = weighted.sum(0)
    sums = weighted.mT @ features  # (classes, d)
    means = sums / torch.where(counts > 0, counts, 1.0)[:, None]

    # The label of a padding row may be any number; its weight of 0 removes the row.
    valid_labels = labels.clamp(0, num_classes - 1)
    centered = features - means[valid_labels]
    scatter = centered.mT @ (centered * row_weight)
    return ClassMoments(means, counts, scatter)


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
    has_mean = moments.counts >= min_count
    return torch.where(has_mean[:, None], moments.means, fallback.double())


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
    identity = _identity(scatter)
    divisor = (count.double() - 1.0).clamp_min(1.0)
    return scatter.double() / divisor + offset + ridge * identity


def symmetric(covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """Return a covariance whose lower triangle mirrors the upper one in every bit.

    So half of it can be sent. The two differ by rounding where they were computed apart.
    """
    return covariance.triu() + covariance.triu(1).mT


def shrink(
    covariance: Float[Tensor, "*batch d d"], amount: float | Float[Tensor, "*batch"] = 1e-4
) -> Float64[Tensor, "*batch d d"]:
    """Pull a covariance towards a multiple of the identity of the same trace; it is linear.

    ``amount``: the share of that multiple, between 0 and 1.
    """
    matrix = covariance.double()
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    mean_variance = trace[..., None, None] / matrix.shape[-1]
    share = amount[..., None, None] if isinstance(amount, Tensor) else amount
    return (1.0 - share) * matrix + share * mean_variance * _identity(matrix)


def oas_amount(
    covariance: Float[Tensor, "*batch d d"], count: Real[Tensor, "*batch"]
) -> Float64[Tensor, "*batch"]:
    """Return how much to shrink a covariance that was estimated from ``count`` examples.

    The oracle approximating shrinkage of Gaussian data: the ``amount`` of :func:`shrink` whose
    expected squared error is least, with the estimate in place of the true covariance. It does not
    depend on the scale of the features. 1 without examples, or without any variance.

    With the d eigenvalues l of the covariance, their mean m and mean square q, it is
    ``min(1, (q / d + m^2) / ((count + 1) (q - m^2) / d))``.

    Reference: Chen, Wiesel, Eldar, Hero 2010, "Shrinkage algorithms for MMSE covariance
    estimation", IEEE Transactions on Signal Processing 58 (10), eq. 23, with ``count + 1`` for
    ``count + 1 - 2 / d`` and without ``-2 / d`` in the numerator, as scikit-learn has it.
    """
    matrix = covariance.double()
    d = matrix.shape[-1]
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    mean_square = matrix.square().sum((-2, -1)) / d

    distance = (count.double() + 1.0) * (mean_square - mean**2) / d
    error = mean_square / d + mean**2
    is_less = distance > error
    return torch.where(is_less, error / torch.where(is_less, distance, 1.0), 1.0)


def blend(
    local: Float[Tensor, "*shape"], shared: Float[Tensor, "*shape"], beta: Float[Tensor, ""]
) -> Float64[Tensor, "*shape"]:
    """Return ``beta local + (1 - beta) shared``: exact where beta is 0 or 1, or both are equal."""
    return torch.lerp(shared.double(), local.double(), beta.double())


def lda_head(
    means: Float[Tensor, "classes d"],
    covariance: Float[Tensor, "d d"],
    prior: Float[Tensor, "classes"],
    shrinkage: float | Float[Tensor, ""] = 0.0,
) -> tuple[Float64[Tensor, "classes d"], Float64[Tensor, "classes"]]:
    """Return weight and bias of the linear classifier of a Gaussian class model.

    ``weight = S^-1 means``, ``bias_c = -1/2 mean_c . weight_c + log prior_c``: up to a term that
    all classes share, ``z @ weight.T + bias`` are the logarithms of the joint densities. The
    covariance is shrunk by ``shrinkage`` first. Where S is singular, the weights are the
    least-squares solution of smallest norm; where it is not finite, they are NaN.

    Reference: Hastie, Tibshirani, Friedman 2009, The Elements of Statistical Learning, section 4.3.
    """
    matrix = shrink(covariance, shrinkage)
    inverse, vectors = _inverse(matrix)

    # S^-1 means, by the eigenvectors of S.
    centers = means.double()
    rotated = centers @ vectors  # (classes, d)
    weight = (rotated * inverse) @ vectors.mT
    weight = torch.where(all_finite(matrix), weight, torch.nan)

    bias = -0.5 * (centers * weight).sum(1) + prior.double().log()
    return weight, bias


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
    distances, _ = _distances(z, means, matrix)
    return torch.where(all_finite(matrix)[0], distances.amin(1), torch.nan)


def surprise(
    z: Float[Tensor, "n d"],
    means: Float[Tensor, "classes d"],
    covariance: Float[Tensor, "d d"],
    prior: Float[Tensor, "classes"],
    shrinkage: float = 0.0,
) -> Float64[Tensor, "n"]:
    """Return how unlikely features are under a Gaussian for each class, in nats.

    ``-log sum_c prior_c N(z; mean_c, S)``, with the covariance S shrunk by ``shrinkage`` first.
    Directions without any variance do not count; after shrinking there are none. Where S is not
    finite, the result is NaN.
    """
    matrix = shrink(covariance, shrinkage)
    distances, inverse = _distances(z, means, matrix)

    # log N up to the term that all classes share
    log_joint = prior.double().log() - 0.5 * distances**2  # (n, classes)

    # log det(2 pi S), of the directions with variance
    log_precision = torch.where(inverse > 0, inverse.log(), 0.0).sum()
    log_volume = (inverse > 0).sum() * math.log(2 * math.pi) - log_precision
    nats = 0.5 * log_volume - log_joint.logsumexp(1)
    return torch.where(all_finite(matrix)[0], nats, torch.nan)


def _distances(
    z: Float[Tensor, "n d"], means: Float[Tensor, "classes d"], matrix: Float64[Tensor, "d d"]
) -> tuple[Float64[Tensor, "n classes"], Float64[Tensor, "d"]]:
    """Return distances from the class means in standard deviations, and the inverse variances."""
    whiten, inverse = _whitening(matrix)
    features = z.double() @ whiten
    centers = means.double() @ whiten

    # Products of matrices would be less exact for near points.
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(features, centers, compute_mode=mode), inverse


def whitening(covariance: Float[Tensor, "d d"], shrinkage: float = 0.0) -> Float64[Tensor, "d d"]:
    """Return the matrix W by which rows ``z @ W`` are in standard deviations of a covariance.

    It is shrunk by ``shrinkage`` first. Directions without any variance become 0.
    """
    return _whitening(shrink(covariance, shrinkage))[0]


def _whitening(
    matrix: Float64[Tensor, "d d"],
) -> tuple[Float64[Tensor, "d d"], Float64[Tensor, "d"]]:
    """Return the matrix that makes distances Euclidean, and the inverse variances."""
    inverse, vectors = _inverse(matrix)
    return vectors * inverse.clamp_min(0.0).sqrt(), inverse


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
    row_weight = weight.double()

    # q, the squared distance of every example from its class; the labels of padding may be anything
    centers = means.double()[labels.clamp(0, means.shape[0] - 1)]  # (n, d)
    gaps = (z.double() - centers) @ vectors
    squares = (gaps**2 * inverse).sum(1)  # (n,)

    # log det(2 pi S); infinite where S is singular
    log_precision = torch.where(inverse > 0, inverse.log(), -torch.inf).sum()
    log_volume = matrix.shape[-1] * math.log(2 * math.pi) - log_precision
    surprise = _weighted_mean(0.5 * (squares + log_volume), row_weight)

    # E[q^2] / E[q]^2 * d / (d + 2), with d the number of directions that have variance
    directions = (inverse > 0).sum()
    squared_mean = _weighted_mean(squares, row_weight) ** 2
    mean_square = _weighted_mean(squares**2, row_weight)
    divisor = torch.where(squared_mean > 0, squared_mean, 1.0)
    kurtosis = mean_square / divisor * directions / (directions + 2)

    is_finite = all_finite(matrix)[0, 0]
    surprise = torch.where(is_finite, surprise, torch.nan)
    kurtosis = torch.where(is_finite, kurtosis, torch.nan)
    return FeatureFit(surprise, kurtosis)


def _weighted_mean(values: Float64[Tensor, "n"], weight: Float64[Tensor, "n"]) -> Tensor:
    """Return the mean, (); 0 if the weights are all 0. Rows of weight 0 may hold anything."""
    total = weight.sum()
    weighted = torch.where(weight > 0, values * weight, 0.0)
    return weighted.sum() / torch.where(total > 0, total, 1.0)


def condition(covariance: Float[Tensor, "d d"], shrinkage: float = 0.0) -> Float64[Tensor, ""]:
    """Return the ratio of the largest to the smallest eigenvalue of a covariance.

    It is shrunk by ``shrinkage`` first. Infinite where it is singular, NaN where it is not finite.
    """
    matrix = shrink(covariance, shrinkage)
    eigenvalues = torch.linalg.eigvalsh(finite_or(matrix, _identity(matrix)))  # ascending
    smallest, largest = eigenvalues[[0, -1]]

    divisor = torch.where(smallest > 0, smallest, 1.0)
    ratio = torch.where(smallest > 0, largest / divisor, torch.inf)
    return torch.where(all_finite(matrix)[0, 0], ratio, torch.nan)


def _inverse(matrix: Float64[Tensor, "d d"]) -> tuple[Float64[Tensor, "d"], Float64[Tensor, "d d"]]:
    """Return inverse eigenvalues (0 if one vanishes) and eigenvectors of a matrix.

    If the matrix is not finite, they are those of the identity.
    """
    eigenvalues, vectors = torch.linalg.eigh(finite_or(matrix, _identity(matrix)))

    # Relative to the largest one; what is smaller is rounding.
    magnitude = eigenvalues.abs()
    rounding = matrix.shape[-1] * torch.finfo(torch.float64).eps * magnitude.max()
    is_regular = magnitude > rounding

    divisor = torch.where(is_regular, eigenvalues, 1.0)
    inverse = torch.where(is_regular, 1.0 / divisor, 0.0)
    return inverse, vectors


def _identity(matrix: Tensor) -> Float64[Tensor, "d d"]:
    """Return the identity that has the size of a matrix (..., d, d), on its device."""
    return torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)


def nearest_pd(covariance: Float[Tensor, "d d"]) -> Float64[Tensor, "d d"]:
    """Make a covariance positive definite by clipping the eigenvalues of its correlation matrix.

    Variances stay as they are. A matrix whose correlations have no eigenvalue below 1e-15 is
    returned unchanged, and so is one that is not finite.
    """
    matrix = covariance.double()
    identity = _identity(matrix)

    # The correlations: the matrix over the products of deviations.
    variance = matrix.diagonal()
    deviation = variance.clamp_min(0.0).sqrt().clamp_min(_SMALLEST_DEVIATION)
    scale = deviation[:, None] * deviation  # (d, d)
    eigenvalues, vectors = torch.linalg.eigh(finite_or(matrix / scale, identity))

    # Clipped correlations, whose diagonal is 1 again.
    clipped = (vectors * eigenvalues.clamp_min(_SMALLEST_EIGENVALUE)) @ vectors.mT
    spread = clipped.diagonal().sqrt()
    correlation = clipped / (spread[:, None] * spread)

    # The variances are the original ones, to the bit.
    repaired = torch.where(identity > 0, variance, scale * correlation)
    needs_repair = (eigenvalues < _SMALLEST_EIGENVALUE).any()
    return torch.where(needs_repair, repaired, matrix)


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
