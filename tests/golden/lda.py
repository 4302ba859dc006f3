"""Expected side: FedLDA in NumPy float64, for the network of :mod:`golden.network`; gradients by
hand."""

import numpy as np

from golden import fda
from golden.network import BODY, average, features, log_softmax


def head(shared, y, algorithm):
    """W and b of the server's Gaussian with the client's own frequencies."""
    pi = fda.prior(y, len(shared.means), algorithm.prior_smoothing)
    return fda.discriminant(*shared, pi, solver_shrinkage(algorithm))


def solver_shrinkage(algorithm):
    """The share of the mean variance in a covariance that is inverted."""
    return 1e-4 if algorithm.shrinkage == "oas" else algorithm.shrinkage


def centered(z, groups):
    """Each row less the mean of its group."""
    result = z.copy()
    for group in set(groups):
        result[groups == group] -= z[groups == group].mean(0)
    return result


def gradient(w, classifier, x, y, penalty, centering):
    """Gradient of CE + (lambda / d) sum over m != n of |S_mn| in the body."""
    weight, bias = classifier
    hidden = x @ w["hidden.weight"].T + w["hidden.bias"]
    z = np.maximum(hidden, 0)
    n, d = z.shape
    error = (np.exp(log_softmax(z @ weight.T + bias)) - np.eye(len(weight))[y]) / n
    rows = centered(z, y if centering == "class" else np.zeros_like(y))
    signs = np.sign(rows.T @ rows)
    np.fill_diagonal(signs, 0)
    slope = error @ weight + penalty / d * 2 * rows @ signs / max(n - 1, 1)
    back = slope * (hidden > 0)
    return {"hidden.weight": back.T @ x, "hidden.bias": back.sum(0)}


def train(body, classifier, x, y, batches, training, penalty, centering):
    """SGD with momentum and coupled weight decay on the body; the classifier stays."""
    w = {name: value.copy() for name, value in body.items()}
    velocity = {name: np.zeros_like(value) for name, value in w.items()}
    for batch in batches:
        slope = gradient(w, classifier, x[batch], y[batch], penalty, centering)
        for name in BODY:
            decayed = slope[name] + training.weight_decay * w[name]
            velocity[name] = training.momentum * velocity[name] + decayed
            w[name] = w[name] - training.lr * velocity[name]
    return w


def refresh(z, y, shared, momentum, ridge, shrinkage):
    """Blended means, then the covariance about these blended means, blended in turn."""
    means = shared.means.copy()
    for label in set(y):
        means[label] = momentum * shared.means[label] + (1 - momentum) * z[y == label].mean(0)
    scatter = np.zeros_like(shared.covariance)
    for row, label in zip(z, y):
        scatter += np.outer(row - means[label], row - means[label])
    local = scatter / max(len(y) - 1, 1) + ridge * np.eye(z.shape[1])
    if shrinkage == "oas":
        local = fda.scale_free(scatter, len(y), "oas", len(y))
    return fda.Gaussian(means, momentum * shared.covariance + (1 - momentum) * local)


def local_round(body, shared, x, y, batches, algorithm):
    """A client's round: returns its body and its Gaussian."""
    settings = algorithm.training, algorithm.penalty, algorithm.penalty_centering
    tuned = train(body, head(shared, y, algorithm), x, y, batches, *settings)
    options = algorithm.momentum, algorithm.cov_ridge, algorithm.shrinkage
    return tuned, refresh(features(tuned, x), y, shared, *options)


def server_average(updates, sizes):
    """n_i-weighted means of bodies, class means and covariances."""
    columns = average([dict(enumerate(gaussian)) for _, gaussian in updates], sizes)
    return average([body for body, _ in updates], sizes), fda.Gaussian(*columns.values())
