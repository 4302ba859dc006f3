"""Expected side of FedCR: a Gaussian layer on a network with one hidden layer, its gradients by
hand, NumPy float64."""

from typing import NamedTuple

import numpy as np

from golden.network import log_softmax

HEAD = ("head.weight", "head.bias")


class Classes(NamedTuple):
    """The server's Gaussian of every class: means and deviations (classes, V)."""

    means: np.ndarray
    stds: np.ndarray


class Setting(NamedTuple):
    """What the presets and options of the algorithm decide."""

    beta: float = 5e-4
    mean_of_probabilities: bool = False
    """In the likelihood and in predictions, as the paper; otherwise means of cross-entropies and of
    logits."""


def encode(w, x):
    """Return mean and deviation of the features, hidden activations, and raw deviations."""
    hidden = np.maximum(x @ w["hidden.weight"].T + w["hidden.bias"], 0)
    u = hidden @ w["gaussian.weight"].T + w["gaussian.bias"]
    mean, raw = np.split(u, 2, axis=1)
    return mean, np.log1p(np.exp(raw)), hidden, raw


def sampled(w, mean, std, noise):
    """Return draws (n, S, V) and their logits (n, S, classes)."""
    z = mean[:, None] + std[:, None] * noise
    return z, z @ w["head.weight"].T + w["head.bias"]


def likelihood(w, mean, std, noise, y, setting):
    """Return the loss, and its gradients in head, mean and deviation."""
    n, draws = noise.shape[:2]
    z, scores = sampled(w, mean, std, noise)
    logs = log_softmax(scores)
    right = logs[np.arange(n), :, y]  # (n, S)
    if setting.mean_of_probabilities:
        loss = -np.log(np.exp(right).mean(1)).mean()
        share = np.exp(right) / np.exp(right).sum(1, keepdims=True)
    else:
        loss = -right.mean(1).mean()
        share = np.full((n, draws), 1 / draws)
    target = np.eye(scores.shape[2])[y][:, None]
    error = share[..., None] * (np.exp(logs) - target) / n
    back = error @ w["head.weight"]
    head = {"head.weight": np.einsum("nsc,nsv->cv", error, z), "head.bias": error.sum((0, 1))}
    return loss, head, back.sum(1), (back * noise).sum(1)


def divergence(classes, y, mean, std):
    """KL(N(m_y, s_y) || N(mean, std)) of every row."""
    m, s = classes.means[y], classes.stds[y]
    return (np.log(std / s) + (s**2 + (m - mean) ** 2) / (2 * std**2) - 0.5).sum(1)


def gradient(w, classes, x, y, noise, setting):
    """Return the loss of a batch (eq. 7) and its gradient in all parameters."""
    mean, std, hidden, raw = encode(w, x)
    loss, head, by_mean, by_std = likelihood(w, mean, std, noise, y, setting)
    m, s, weight = classes.means[y], classes.stds[y], setting.beta / len(y)
    loss += weight * divergence(classes, y, mean, std).sum()
    by_mean = by_mean + weight * (mean - m) / std**2
    by_std = by_std + weight * (1 / std - (s**2 + (m - mean) ** 2) / std**3)
    u = np.concatenate([by_mean, by_std / (1 + np.exp(-raw))], axis=1)
    back = (u @ w["gaussian.weight"]) * (hidden > 0)
    body = {
        "hidden.weight": back.T @ x,
        "hidden.bias": back.sum(0),
        "gaussian.weight": u.T @ hidden,
        "gaussian.bias": u.sum(0),
    }
    return loss, {**body, **head}


def step(w, slope, velocity, training):
    """Clip the whole gradient, add weight decay, SGD with momentum; change ``w`` and ``velocity``
    in place."""
    norm = np.sqrt(sum((g**2).sum() for g in slope.values()))
    factor = min(1.0, training.clip_norm / (norm + 1e-6)) if training.clip_norm else 1.0
    for name, g in slope.items():
        velocity[name] = (
            training.momentum * velocity.get(name, 0) + factor * g + training.weight_decay * w[name]
        )
        w[name] = w[name] - training.lr * velocity[name]
    return factor


def local_round(w, classes, x, y, batches, noises, last, training, setting):
    """Train; multiply the Gaussians of the steps from ``last`` on, class by class.

    Returns the model, {class: (precision, precision times mean)}, the mean loss, the mean KL of the
    collected Gaussians, and the smallest factor of clipping.
    """
    w, velocity, losses, gaps, factors = dict(w), {}, [], [], []
    products = {}
    for number, (batch, noise) in enumerate(zip(batches, noises)):
        if number >= last:
            mean, std, *_ = encode(w, x[batch])
            gaps.extend(divergence(classes, y[batch], mean, std))
            for label, m, s in zip(y[batch], mean, std):
                precision, weighted = products.get(label, (0, 0))
                products[label] = precision + 1 / s**2, weighted + m / s**2
        loss, slope = gradient(w, classes, x[batch], y[batch], noise, setting)
        factors.append(step(w, slope, velocity, training))
        losses.append(loss)
    return w, products, np.mean(losses), np.mean(gaps), min(factors)


def server_round(classes, bodies, products):
    """Average the bodies, each with the same weight; N(0, 1) times all products of a class, where
    there is one."""
    body = {name: np.mean([b[name] for b in bodies], axis=0) for name in bodies[0]}
    means, stds = classes.means.copy(), classes.stds.copy()
    for label in range(len(means)):
        parts = [own[label] for own in products if label in own]
        if parts:
            precision = 1 + sum(part[0] for part in parts)
            means[label] = sum(part[1] for part in parts) / precision
            stds[label] = 1 / np.sqrt(precision)
    return body, Classes(means, stds)


def tune_head(w, x, y, batches, noises, training, setting):
    """Train the head alone."""
    w, velocity = dict(w), {}
    mean, std, *_ = encode(w, x)
    for batch, noise in zip(batches, noises):
        _, slope, *_ = likelihood(w, mean[batch], std[batch], noise, y[batch], setting)
        step(w, slope, velocity, training)
    return w


def predict(w, x, noise, setting):
    """Average over samples whose noise (S, V) all examples share: logits, or the logarithm of mean
    probabilities."""
    mean, std, *_ = encode(w, x)
    _, scores = sampled(w, mean, std, np.broadcast_to(noise, (len(x), *noise.shape)))
    if setting.mean_of_probabilities:
        return np.log(np.exp(log_softmax(scores)).mean(1))
    return scores.mean(1)
