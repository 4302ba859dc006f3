"""The search for beta: how far a client moves from the global Gaussian class model to its own.

Beta minimizes the cross-validated loss of the classifier of the blended model (pFedFDA: McLaughlin
and Su 2024, "Personalized Federated Learning via Feature Distribution Adaptation", NeurIPS). One
decomposition per fold makes both covariances diagonal, so that any number of blends costs no
further factorization. Nothing branches on data; everything runs under ``torch.func.vmap`` and in
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Int64, Real
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from fedtailor.algorithms._gaussian_classifier import losses_of_temperatures, scale_free_covariance
from fedtailor.toolkit import gaussian

Mode = Literal["single", "multi"]
"""One beta for means and covariance, or one for each."""

_EIGHTHS = [number / 8 for number in range(9)]
_STARTS: dict[Mode, list[float]] = {
    "single": [0.0, 1 / 32, 1 / 16, *_EIGHTHS[1:-1], 15 / 16, 31 / 32, 1.0],
    "multi": _EIGHTHS,
}
"""Where the search starts. At both ends, where a covariance may be nearly singular, the objective
can be steep."""
_FIRST_LEVEL = 4
"""The search continues with steps of 2^-4 ..."""
_LAST_LEVEL = 12
"""... and ends with steps of 2^-12."""
_TIE = 1e-12
"""Objectives this close, relative to 1 + their size, count as equal."""
_AT_ONCE = 9
"""Betas evaluated in one product, to bound memory."""


class FoldedExamples(NamedTuple):
    """The features of a client's examples, and what divides them into folds."""

    z: Float[Tensor, "n d"]
    """Features; rows of weight 0 are not there and may hold any finite numbers."""
    labels: Int[Tensor, "n"]
    weight: Real[Tensor, "n"]
    words: Int64[Tensor, "n"]
    """Random bits of every row, which decide the folds."""


class GlobalGaussian(NamedTuple):
    """The global Gaussian class model."""

    means: Float[Tensor, "classes d"]
    covariance: Float[Tensor, "d d"]


@dataclass(frozen=True)
class CovarianceEstimate:
    """How covariances are estimated."""

    ridge: float
    """Added to the diagonal of the local covariance."""
    offset: float
    """Added to every entry of the local covariance."""
    shrinkage: float | Literal["oas"] = 0.0
    """Share of the mean variance in the local covariance, in place of ridge and offset; 0: they
    count."""

    def local(
        self, moments: gaussian.ClassMoments, repeats: Float64[Tensor, ""]
    ) -> Float64[Tensor, "d d"]:
        """Return the local covariance of examples that were seen ``repeats`` times."""
        count = moments.counts.sum()
        if self.shrinkage != 0:
            examples = count / repeats
            return scale_free_covariance(moments.scatter, count, self.shrinkage, examples)

        # a scatter plus any ridge is positive definite
        covariance = gaussian.covariance(moments.scatter, count, self.ridge, self.offset)
        return covariance if self.ridge else gaussian.nearest_pd(covariance)


class Folds(NamedTuple):
    """Two halves of some examples: row numbers, and weights that are 0 for rows left out."""

    rows: Int64[Tensor, "2 half"]
    weight: Real[Tensor, "2 half"]


class Path(NamedTuple):
    """All blends of a local and a global class model, where both covariances are diagonal."""

    basis: Float64[Tensor, "d d"]
    """Columns in which the global covariance is the identity; NaN where there is no such basis."""
    variances: Float64[Tensor, "d"]
    """Diagonal of the local covariance in that basis."""
    local_means: Float64[Tensor, "classes d"]
    """Local means in that basis."""
    global_means: Float64[Tensor, "classes d"]
    """Global means in that basis."""

    def classifiers(self, betas: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (k, classes, d) and biases (k, classes), without the prior, of k blends.

        ``betas`` (k, 2): of means, and of covariance.
        """
        beta_mean = betas[:, 0, None, None]
        beta_cov = betas[:, 1, None]
        means = beta_mean * self.local_means + (1.0 - beta_mean) * self.global_means
        variances = beta_cov * self.variances + (1.0 - beta_cov)  # (k, d)
        scaled = means / variances[:, None]  # (k, classes, d)

        # weights go back to the features, which is cheaper than features to the basis
        weight = scaled @ self.basis.mT
        bias = -0.5 * (means * scaled).sum(-1)
        return weight, bias


class Fold(NamedTuple):
    """Blends estimated on one half of the examples, and the other half to judge them by."""

    path: Path
    features: Float64[Tensor, "half d"]
    labels: Int[Tensor, "half"]
    weight: Float64[Tensor, "half"]

    def mean_loss(self, log_prior: Tensor, betas: Tensor) -> Tensor:
        """Return the mean cross-entropy (k,) of the blends of ``betas`` (k, 2)."""
        weight, bias = self.path.classifiers(betas)

        # samples last, so that the softmax over classes runs along contiguous memory
        columns = (bias + log_prior).reshape(-1, 1)
        logits = torch.addmm(columns, weight.flatten(0, 1), self.features.mT)
        logits = logits.reshape(*bias.shape, self.labels.shape[0])  # (k, classes, half)

        labels = self.labels.expand(betas.shape[0], -1)  # (k, half)
        loss = cross_entropy(logits, labels, reduction="none")  # (k, half)

        # rows of weight 0 may have any loss, even an infinite one
        total = self.weight.sum()
        sums = torch.where(self.weight > 0, loss, 0.0) @ self.weight
        return sums / torch.where(total > 0, total, 1.0)


def make_folds(
    examples: FoldedExamples,
    shared: GlobalGaussian,
    estimate: CovarianceEstimate,
    *,
    repeats: Float64[Tensor, ""],
    solver_shrinkage: float,
) -> list[Fold]:
    """Divide examples into two halves; each gives blends, which the other judges.

    Args:
        repeats: how often each example is among them.
        solver_shrinkage: by which local and global covariance are shrunk before they are blended.
    """
    z, labels, weight, words = examples
    num_classes = shared.means.shape[0]
    folds = stratified_folds(labels, weight, words, num_classes)
    global_covariance = gaussian.shrink(shared.covariance, solver_shrinkage)

    # padding may have any number as its label
    features = [z[rows].double() for rows in folds.rows]
    fold_labels = labels[folds.rows].clamp(0, num_classes - 1)  # (2, half)

    # each half gives the blends that the other half judges
    judged = []
    for half, other in ((0, 1), (1, 0)):
        moments = gaussian.class_moments(
            features[half], fold_labels[half], folds.weight[half], num_classes
        )
        local_means = gaussian.fill_missing_means(moments, shared.means)
        local_covariance = gaussian.shrink(estimate.local(moments, repeats), solver_shrinkage)
        blends = path(local_means, shared.means, local_covariance, global_covariance)

        row_weight = folds.weight[other].double()
        judged.append(Fold(blends, features[other], fold_labels[other], row_weight))

    return judged


def find_beta(
    folds: list[Fold],
    prior: Float[Tensor, "classes"],
    previous: Float[Tensor, "2"],
    *,
    mode: Mode,
) -> Float64[Tensor, "2"]:
    """Find beta for means and covariance by cross-validation, as multiples of 2^-12.

    Args:
        folds: two halves, each with the blends of the other.
        prior: class probabilities of the classifier.
        previous: returned if the objective is nowhere finite.
        mode: ``single`` gives two equal betas.

    Returns:
        Beta of means and covariance. 0, the global model, if no class has two examples.
    """
    log_prior = prior.double().log()

    def evaluate(betas: Tensor) -> Tensor:
        return objective(folds, log_prior, betas)

    beta, value = search_beta(evaluate, mode, like=log_prior)

    # no finite objective: the beta from before; no class with two examples: the global model
    beta = torch.where(torch.isfinite(value), beta, previous.double())
    has_examples = torch.stack([fold.weight for fold in folds]).any()
    return torch.where(has_examples, beta, 0.0)


def held_out_losses(
    folds: list[Fold], prior: Float[Tensor, "classes"], beta: Float64[Tensor, "2"]
) -> Float64[Tensor, "temperatures"]:
    """Return the mean cross-entropy of all held-out examples for each temperature, at one beta."""
    log_likelihoods = []
    for fold in folds:
        weight, bias = fold.path.classifiers(beta[None])
        log_likelihoods.append(fold.features @ weight[0].mT + bias[0])

    return losses_of_temperatures(
        torch.cat(log_likelihoods),
        torch.cat([fold.labels for fold in folds]),
        torch.cat([fold.weight for fold in folds]),
        prior,
    )


def stratified_folds(
    labels: Int[Tensor, "n"], weight: Real[Tensor, "n"], words: Int64[Tensor, "n"], num_classes: int
) -> Folds:
    """Divide rows into two halves with equal shares of every class, at random by ``words``.

    Rows are put in order of class and word, and dealt alternately; the sizes of the halves, and
    their numbers of every class, differ by one at most. Rows of weight 0 and of classes with a
    single row get weight 0. Same counts as scikit-learn's ``StratifiedKFold(2, shuffle=True)``
    where classes first appear in order.
    """
    # rows whose class has another row
    is_class = labels[:, None] == torch.arange(num_classes, device=labels.device)
    is_present = is_class & (weight > 0)[:, None]  # (n, classes)
    class_has_two = is_present.sum(0) >= 2
    takes_part = (is_present & class_has_two).any(1)

    # by class, then by word; rows that are left out come last
    group = torch.where(takes_part, labels, num_classes)
    by_word = torch.argsort(words, stable=True)
    by_group = torch.argsort(group[by_word], stable=True)
    order = by_word[by_group]
    order_weight = torch.where(takes_part, weight, 0)[order]

    # dealt alternately, after a row of padding if their number is odd
    missing = labels.shape[0] % 2
    rows = pad(order, (0, missing)).reshape(-1, 2).mT
    row_weight = pad(order_weight, (0, missing)).reshape(-1, 2).mT
    return Folds(rows, row_weight)


def path(
    local_means: Float[Tensor, "classes d"],
    global_means: Float[Tensor, "classes d"],
    local_covariance: Float64[Tensor, "d d"],
    global_covariance: Float64[Tensor, "d d"],
) -> Path:
    """Decompose the blends of two class models.

    With ``global = L L^T`` and ``L^-1 local L^-T = Q diag(t) Q^T``, the inverse of a blend of
    covariances is ``P diag(1 / (beta t + 1 - beta)) P^T`` where ``P = L^-T Q``.
    """
    d = global_covariance.shape[-1]
    identity = torch.eye(d, dtype=torch.float64, device=global_covariance.device)

    # L, then Q and t
    factor, failed = torch.linalg.cholesky_ex(gaussian.finite_or(global_covariance, identity))
    left = torch.linalg.solve_triangular(factor, local_covariance, upper=False)
    relative = torch.linalg.solve_triangular(factor, left.mT, upper=False)
    variances, rotation = torch.linalg.eigh(gaussian.finite_or(relative, identity))

    # P, where there is one
    basis = torch.linalg.solve_triangular(factor.mT, rotation, upper=True)
    is_finite = gaussian.all_finite(global_covariance) & gaussian.all_finite(relative)
    basis = torch.where(is_finite & (failed == 0), basis, torch.nan)

    # both sets of means in that basis
    rotated_local = local_means.double() @ basis
    rotated_global = global_means.double() @ basis
    return Path(basis, variances, rotated_local, rotated_global)


def objective(
    folds: list[Fold], log_prior: Float64[Tensor, "classes"], betas: Float64[Tensor, "k 2"]
) -> Float64[Tensor, "k"]:
    """Return the sum over folds of the mean cross-entropy, for ``k`` pairs of betas at once."""
    sums = []
    for start in range(0, betas.shape[0], _AT_ONCE):
        part = betas[start : start + _AT_ONCE]
        losses = [fold.mean_loss(log_prior, part) for fold in folds]
        sums.append(torch.stack(losses).sum(0))
    return torch.cat(sums)


def search_beta(
    evaluate: Callable[[Float64[Tensor, "k 2"]], Float64[Tensor, "k"]], mode: Mode, *, like: Tensor
) -> tuple[Float64[Tensor, "2"], Float64[Tensor, ""]]:
    """Minimize a function of beta over the multiples of 2^-12 in [0, 1], by a pattern search.

    Starts from the multiples of 1/8 and moves to the best neighbor with halved steps, 1/16, 1/32,
    ..., 1/4096. In one dimension it starts from 1/32, 1/16, 15/16 and 31/32 too; in two, every step
    size is used twice. A dip between two of the first candidates can be missed, then a local
    minimum is found. Among candidates whose values differ by rounding only, the smallest wins (by
    the beta of means, then of covariance), so that all engines agree and a flat function gives 0.

    Args:
        evaluate: values (k,) of betas (k, 2); values that are not finite are never chosen.
        like: a float64 tensor on the device of the search.

    Returns:
        The best beta, and its value: infinite if no value was finite.
    """
    start = _pattern(_STARTS[mode], mode, like)
    best, value = _choose(start, evaluate(start))

    # to all neighbors; the middle direction stays where the search is
    directions = _pattern([-1.0, 0.0, 1.0], mode, like)
    middle = directions.shape[0] // 2
    moves_per_level = 1 if mode == "single" else 2

    for level in range(_FIRST_LEVEL, _LAST_LEVEL + 1):
        for _ in range(moves_per_level):
            candidates = (best + directions * 2.0**-level).clamp(0.0, 1.0)

            # the middle is the best one so far: its value is known
            neighbors = torch.cat([candidates[:middle], candidates[middle + 1 :]])
            values = evaluate(neighbors)
            values = torch.cat([values[:middle], value[None], values[middle:]])
            best, value = _choose(candidates, values)

    return best, value


def _pattern(values: list[float], mode: Mode, like: Tensor) -> Tensor:
    """Return pairs of equal numbers, or all pairs, in ascending order."""
    numbers = torch.tensor(values, dtype=like.dtype, device=like.device)
    if mode == "single":
        return torch.stack([numbers, numbers], 1)
    return torch.cartesian_prod(numbers, numbers)


def _choose(candidates: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first candidate whose value is the lowest up to rounding, and its value."""
    values = torch.where(torch.isfinite(values), values, torch.inf)
    lowest = values.min()
    is_lowest = values <= lowest + _TIE * (1.0 + lowest.abs())

    # argmax gives the first; a 1-d index, because vmap cannot index by a scalar that differs
    first = is_lowest.int().argmax()[None]
    return candidates.index_select(0, first)[0], values.index_select(0, first)[0]
