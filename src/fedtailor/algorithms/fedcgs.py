"""FedCGS and GH-OFL: Gaussian heads from sums that clients send once.

Guan, Zhou and Gu 2025, "Capture global feature statistics for one-shot federated learning", AAAI;
Turazza, Picone and Mamei 2026, "The Gaussian-head OFL family: one-shot federated learning from
client global statistics", ICLR. All features of all clients give the means mu_c and the frequencies
pi_c of the classes, and covariances; the class of an input is the one of largest
log pi_c + log N(z; mu_c, S_c). The option ``head`` says which S_c:

* ``shared``: the covariance of all features about their common mean, for every class (FedCGS);
* ``lda``: the covariance about the means of the classes, for every class;
* ``naive_bayes``: variances of single features, by class;
* ``qda``: a covariance for every class.

Messages: up, once, ``counts`` (C,), ``sums`` (C, d) and ``squares``: the upper triangle of the sum
of x x^T, of all examples or (``qda``) by class, or (``naive_bayes``) its diagonal by class; down
``head``.

Deviations (P: papers, C: code released for FedCGS):
* C inverts the covariance as it is. ``shrinkage`` is added, for fewer examples than features.
* FedCGS calls its head naive Bayes, though it has covariances; here only a head without them has
  that name.
* Of GH-OFL, the three heads in closed form, by their textbook definitions: we had its abstract, not
  its constants, and no code. Its heads trained on synthetic features are left out.
* FedCGS also trains personal models, with the means as a penalty; that part is left out.
* ``naive_bayes`` and ``qda`` take the covariance of ``lda`` for a class with a single example; all
  heads never predict a class without examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._closed_form import Linear, SecondMoments
from fedtailor.toolkit import class_sums, gaussian


class Quadratic(NamedTuple):
    """A Gaussian for every class: logits are quadratic in the features."""

    means: Tensor  # (classes, d)
    whitening: Tensor
    """Root of the inverse variances (classes, d), or of the inverse covariances (classes, d, d)."""
    bias: Tensor  # (classes,), the logarithms of frequency and volume

    def logits(self, z: Tensor) -> Tensor:
        """Return log joint densities (n, classes) of features, up to a term that classes share."""
        gaps = z[None] - self.means[:, None]  # (classes, n, d)
        if self.whitening.dim() == 2:
            whitened = gaps * self.whitening[:, None]
        else:
            whitened = gaps @ self.whitening
        return self.bias - 0.5 * whitened.square().sum(2).mT


@dataclass(frozen=True, kw_only=True)
class FedCGS(SecondMoments):
    """Gaussian heads from global statistics."""

    head: Literal["shared", "lda", "naive_bayes", "qda"] = "shared"
    """Which covariance classes have: ``shared``, that of all features; ``lda``, that about the
    class means; ``naive_bayes``, variances by class; ``qda``, a covariance by class."""
    shrinkage: Literal["oas"] | ft.Share = "oas"
    """How much of the mean variance replaces a covariance: a share, or ``oas``, which finds it
    from the covariance and the number of examples (Chen et al. 2010)."""

    @property
    def squares(self) -> class_sums.Squares:
        """The second moments of the head."""
        if self.head == "naive_bayes":
            return "diagonal"
        return "by_class" if self.head == "qda" else "pooled"

    def head_shapes(self, num_classes: int, d: int) -> Any:
        """Return the shapes of the head."""
        if self.squares == "pooled":
            return super().head_shapes(num_classes, d)

        whitening = (num_classes, d) if self.head == "naive_bayes" else (num_classes, d, d)
        # shapes in place of tensors
        return Quadratic((num_classes, d), whitening, (num_classes,))  # type: ignore[arg-type]

    def fit(self, sums: class_sums.ClassSums) -> Linear | Quadratic:
        """Return the head of the Gaussians."""
        total = sums.counts.sum()
        prior = sums.counts / total
        if self.head == "naive_bayes":
            return self._of_variances(sums, prior.log())
        if self.head == "qda":
            return self._of_classes(sums, prior.log())

        covariance = sums.within_covariance()
        if self.head == "shared":
            # about the common mean, divided by N - 1 as released
            gaps = sums.means() - sums.sums.sum(0) / total
            between = gaps.mT @ (gaps * sums.counts[:, None])
            covariance = (covariance * total + between) / (total - 1.0).clamp_min(1.0)

        covariance = class_sums.shrunk(covariance, total, self.shrinkage)
        return Linear(*gaussian.lda_head(sums.means(), covariance, prior))

    def _of_variances(self, sums: class_sums.ClassSums, log_prior: Tensor) -> Quadratic:
        """Return the head of variances by class."""
        variance = _pooled_if_single(sums.variance_by_class(), sums.counts)
        diagonal = torch.diag_embed(variance)
        variance = class_sums.shrunk(diagonal, sums.counts, self.shrinkage).diagonal(0, 1, 2)
        variance = _positive(variance)
        bias = log_prior - 0.5 * variance.log().sum(1)
        return Quadratic(sums.means(), variance.rsqrt(), bias)

    def _of_classes(self, sums: class_sums.ClassSums, log_prior: Tensor) -> Quadratic:
        """Return the head of covariances by class."""
        covariance = _pooled_if_single(sums.covariance_by_class(), sums.counts)
        covariance = class_sums.shrunk(covariance, sums.counts, self.shrinkage)
        values, vectors = torch.linalg.eigh(covariance)
        values = _positive(values)
        bias = log_prior - 0.5 * values.log().sum(1)
        roots = (vectors * values.rsqrt()[:, None]) @ vectors.mT
        return Quadratic(sums.means(), roots, bias)


def _positive(variances: Tensor) -> Tensor:
    """Return variances (classes, d) without any that vanish, or are negative by rounding."""
    smallest = torch.finfo(variances.dtype).eps * variances.amax(1, keepdim=True)
    return torch.maximum(variances, smallest)


def _pooled_if_single(by_class: Tensor, counts: Tensor) -> Tensor:
    """Return covariances (classes, ...), the pooled one for classes with one example or none."""
    weight = counts.reshape(-1, *[1] * (by_class.dim() - 1))
    pooled = (by_class * weight).sum(0) / counts.sum().clamp_min(1.0)
    return torch.where(weight > 1, by_class, pooled)
