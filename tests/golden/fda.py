"""Expected side: the statistics of pFedFDA in NumPy float64, every blend solved directly."""

from typing import NamedTuple

import numpy as np

from golden.network import BODY, HEAD, average, features, log_softmax, sgd

GRID = np.arange(2**12 + 1) / 2**12


class Gaussian(NamedTuple):
    """One mean per class, one covariance for all."""

    means: np.ndarray  # (classes, d)
    covariance: np.ndarray  # (d, d)


class Constants(NamedTuple):
    """The small numbers of the method; those of the released code."""

    ridge: float = 1.0
    offset: float = 1e-4
    shrinkage: float = 1e-4
    smoothing: float = 1e-4
    share: float | str = 0.0
    """Of the mean variance, in place of ridge and offset; oas: see :func:`oas`."""
    repeats: float = 1.0
    """How often an example is among the rows."""


RELEASED = Constants()
PAPER = Constants(ridge=1e-4, offset=0.0)


def prior(y, classes, smoothing=1e-4):
    """pi_c = (n_c / n + eps) / (1 + C eps); uniform without examples."""
    if len(y) == 0:
        return np.full(classes, 1 / classes)
    return (np.bincount(y, minlength=classes) / len(y) + smoothing) / (1 + classes * smoothing)


def shrink(covariance, amount):
    """(1 - e) S + e trace(S) / d I."""
    d = covariance.shape[-1]
    spread = np.trace(covariance, axis1=-2, axis2=-1)[..., None, None] / d
    return (1 - amount) * covariance + amount * spread * np.eye(d)


def discriminant(means, covariance, pi, shrinkage):
    """W = (S^-1 mu^T)^T and b = -1/2 diag(mu W^T) + log pi, with S shrunk. Leading axes are
    kept."""
    weight = np.linalg.solve(shrink(covariance, shrinkage), np.swapaxes(means, -1, -2))
    weight = np.swapaxes(weight, -1, -2)
    return weight, -0.5 * (means * weight).sum(-1) + np.log(pi)


def classify(z, gaussian, pi, constants):
    """Logits of features."""
    weight, bias = discriminant(*gaussian, pi, constants.shrinkage)
    return z @ weight.T + bias


def nearest_pd(covariance, threshold=1e-15):
    """Clip the eigenvalues of the correlation matrix; the diagonal stays."""
    deviation = np.maximum(np.sqrt(np.diag(covariance)), 1e-12)
    scale = np.outer(deviation, deviation)
    eigenvalues, vectors = np.linalg.eigh(covariance / scale)
    if eigenvalues.min() >= threshold:
        return covariance
    clipped = vectors @ np.diag(np.maximum(eigenvalues, threshold)) @ vectors.T
    unit = np.sqrt(np.diag(clipped))
    return scale * clipped / np.outer(unit, unit)


def oas(covariance, n):
    """Chen et al. 2010, as scikit-learn has it: of n examples."""
    d = len(covariance)
    mean_variance = np.trace(covariance) / d
    mean_square = (covariance**2).mean()
    divisor = (n + 1) * (mean_square - mean_variance**2 / d)
    return 1.0 if divisor <= 0 else min(1.0, (mean_square + mean_variance**2) / divisor)


def scale_free(scatter, rows, share, examples):
    """(1 - s) S + s trace(S) / d I."""
    covariance = scatter / max(rows - 1, 1)
    return shrink(covariance, oas(covariance, examples) if share == "oas" else share)


def estimate(z, y, global_means, constants, min_count=1):
    """Local means (global for a class with fewer than ``min_count`` rows) and covariance.

    The scatter is centered by the class's own mean, whatever ``min_count``.
    """
    means, d = global_means.copy(), z.shape[1]
    scatter = np.zeros((d, d))
    for label in range(len(means)):
        rows = z[y == label]
        if len(rows):
            own = rows.mean(0)
            scatter += (rows - own).T @ (rows - own)
            means[label] = own if len(rows) >= min_count else means[label]
    if constants.share != 0:
        examples = len(z) / constants.repeats
        return Gaussian(means, scale_free(scatter, len(z), constants.share, examples))
    covariance = (
        scatter / max(len(z) - 1, 1)
        + constants.offset * np.ones((d, d))
        + constants.ridge * np.eye(d)
    )
    return Gaussian(means, nearest_pd(covariance))


def blend(local, shared, beta):
    """beta local + (1 - beta) global, with a beta for the means and one for the covariance."""
    means = beta[0] * local.means + (1 - beta[0]) * shared.means
    return Gaussian(means, beta[1] * local.covariance + (1 - beta[1]) * shared.covariance)


def objective(z, y, halves, shared, pi, constants, beta_means, beta_covariance):
    """J(beta) for arrays of betas (k,): the sum over both folds of the mean loss on the other
    half."""
    total = np.zeros(len(beta_means))
    by_mean, by_covariance = beta_means[:, None, None], beta_covariance[:, None, None]
    for half, other in (halves, halves[::-1]):
        local = estimate(z[half], y[half], shared.means, constants)
        means = by_mean * local.means + (1 - by_mean) * shared.means
        covariance = by_covariance * local.covariance + (1 - by_covariance) * shared.covariance
        weight, bias = discriminant(means, covariance, pi, constants.shrinkage)
        scores = z[other] @ np.swapaxes(weight, -1, -2) + bias[:, None]
        total -= log_softmax(scores)[:, np.arange(len(other)), y[other]].mean(1)
    return total


def smallest(candidates, values):
    """The first candidate whose value ties with the best, within 1e-12 (1 + |J|)."""
    best = values.min()
    return candidates[np.flatnonzero(values <= best + 1e-12 * (1 + abs(best)))[0]]


def search_single(z, y, halves, shared, pi, constants):
    """Brute force over all multiples of 2^-12; 0 if there is nothing to divide."""
    if len(halves[0]) == 0:
        return np.zeros(2)
    values = objective(z, y, halves, shared, pi, constants, GRID, GRID)
    return np.repeat(smallest(GRID, values), 2)


def search_multi(z, y, halves, shared, pi, constants):
    """All multiples of 2^-6 in both coordinates, then all multiples of 2^-12 around the best."""
    if len(halves[0]) == 0:
        return np.zeros(2)
    center = np.array([2**11, 2**11])
    for step, reach in ((2**6, 2**11), (1, 2**6)):
        first, second = (
            np.arange(max(c - reach, 0), min(c + reach, 2**12) + 1, step) for c in center
        )
        pairs = np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2)
        values = objective(z, y, halves, shared, pi, constants, *(pairs.T / 2**12))
        center = smallest(pairs, values)
    return center / 2**12


def search_none(z, y, halves, shared, pi, constants):
    """Purely local."""
    return np.ones(2)


SEARCH = {"single": search_single, "multi": search_multi, "none": search_none}


def local_round(body, shared, x, y, batches, halves, training, constants, search):
    """A client's round: returns its body, its blended Gaussian and beta, which ``search`` finds.

    The head is made from the global Gaussian and the client's prior, and stays; features are kept
    from every batch of every epoch, from before its step.
    """
    pi = prior(y, len(shared.means), constants.smoothing)
    head = dict(zip(HEAD, discriminant(*shared, pi, constants.shrinkage)))
    trained, z, labels = sgd({**body, **head}, x, y, batches, training, BODY)
    constants = constants._replace(repeats=max(1.0, len(z) / len(x)))
    beta = search(z, labels, halves, shared, pi, constants)
    local = estimate(z, labels, shared.means, constants)
    return {name: trained[name] for name in BODY}, blend(local, shared, beta), beta


def evaluation(body, shared, x, y, kept, halves, constants, search):
    """A client's Gaussian, prior and beta at evaluation, from one pass over the ``kept``
    positions."""
    pi = prior(y, len(shared.means), constants.smoothing)
    z = features(body, x)
    beta = search(z, y, halves, shared, pi, constants)
    return (
        blend(estimate(z[kept], y[kept], shared.means, constants, min_count=3), shared, beta),
        pi,
        beta,
    )


def server_average(updates, sizes):
    """n_i-weighted means of bodies, class means and covariances; the same weight for every
    class."""
    bodies, gaussians = [body for body, *_ in updates], [gaussian for _, gaussian, *_ in updates]
    columns = average([dict(enumerate(gaussian)) for gaussian in gaussians], sizes)
    return average(bodies, sizes), Gaussian(*columns.values())
