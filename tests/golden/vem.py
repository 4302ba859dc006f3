"""Expected side: pFedVEM in NumPy float64, for the network of :mod:`golden.network`; gradients by
hand.

A head is a pair of arrays (weight, bias); several drawn heads have a leading axis.
"""

from typing import NamedTuple

import numpy as np

from golden.network import BODY, average, features, log_softmax


class Posterior(NamedTuple):
    """Means and raw scales of a Gaussian over heads."""

    mean: tuple  # (classes, d), (classes,)
    raw: tuple


def deviations(raw):
    """sigma = log(1 + exp(r))."""
    return tuple(np.log1p(np.exp(part)) for part in raw)


def flat(head):
    """All numbers of a head."""
    return np.concatenate([part.ravel() for part in head])


def variance(posterior, w):
    """rho^2 = (sum of sigma^2 + |m - w|^2) / D, and its two terms."""
    spread = (flat(deviations(posterior.raw)) ** 2).mean()
    distance = ((flat(posterior.mean) - flat(w)) ** 2).mean()
    return spread + distance, spread, distance


def divergence(mean, sigma, w, rho2):
    """KL(N(m, sigma^2) || N(w, rho^2)) over all numbers of the head."""
    m, s, center = flat(mean), flat(sigma), flat(w)
    return (0.5 * np.log(rho2) - np.log(s) + (s**2 + (m - center) ** 2) / (2 * rho2) - 0.5).sum()


def draws_of(posterior, noise):
    """Heads for standard normal noise (draws, D)."""
    parts = np.split(noise, [posterior.mean[0].size], axis=1)
    scales = deviations(posterior.raw)
    return tuple(
        m + s * part.reshape(-1, *m.shape) for m, s, part in zip(posterior.mean, scales, parts)
    ), tuple(part.reshape(-1, *m.shape) for m, part in zip(posterior.mean, parts))


def errors(z, y, heads):
    """Cross-entropy (draws, n) and its gradient in the logits (draws, n, classes)."""
    weight, bias = heads
    log_probs = log_softmax(z @ np.swapaxes(weight, 1, 2) + bias[:, None])
    return -log_probs[:, np.arange(len(y)), y], np.exp(log_probs) - np.eye(weight.shape[1])[y]


def tune_head(z, y, posterior, w, rho2, noises, lr, momentum=0.9):
    """Full-batch steps on means and raw scales, one per noise; returns the posterior and the mean
    objective."""
    m, r = ([part.copy() for part in parts] for parts in posterior)
    speed_m, speed_r = ([np.zeros_like(part) for part in parts] for parts in posterior)
    values = []
    for noise in noises:
        now = Posterior(tuple(m), tuple(r))
        heads, eps = draws_of(now, noise)
        losses, error = errors(z, y, heads)
        sigma = deviations(r)
        values.append(losses.mean(0).sum() + divergence(m, sigma, w, rho2))
        slopes = np.swapaxes(error, 1, 2) @ z, error.sum(1)
        for i, slope in enumerate(slopes):
            by_mean = slope.mean(0) + (m[i] - w[i]) / rho2
            by_sigma = (slope * eps[i]).mean(0) - 1 / sigma[i] + sigma[i] / rho2
            speed_m[i] = momentum * speed_m[i] + by_mean
            speed_r[i] = momentum * speed_r[i] + by_sigma / (1 + np.exp(-r[i]))
            m[i] = m[i] - lr * speed_m[i]
            r[i] = r[i] - lr * speed_r[i]
    return Posterior(tuple(m), tuple(r)), np.mean(values)


def train_body(body, posterior, x, y, batches, noises, training):
    """SGD on the body down the cross-entropy averaged over drawn heads."""
    w = {name: value.copy() for name, value in body.items()}
    velocity = {name: np.zeros_like(value) for name, value in w.items()}
    for batch, noise in zip(batches, noises, strict=True):
        hidden = x[batch] @ w["hidden.weight"].T + w["hidden.bias"]
        heads, _ = draws_of(posterior, noise)
        _, error = errors(np.maximum(hidden, 0), y[batch], heads)
        back = (error @ heads[0]).mean(0) / len(batch) * (hidden > 0)
        slope = {"hidden.weight": back.T @ x[batch], "hidden.bias": back.sum(0)}
        for name in BODY:
            velocity[name] = (
                training.momentum * velocity[name] + slope[name] + training.weight_decay * w[name]
            )
            w[name] = w[name] - training.lr * velocity[name]
    return w


def server_average(bodies, sizes, heads, taus):
    """theta by examples, w by confidence."""
    w = tuple(
        sum(tau * part for tau, part in zip(taus, parts)) / sum(taus) for parts in zip(*heads)
    )
    return average(bodies, sizes), w


def predictions(body, head, x):
    """Logits of one head."""
    return features(body, x) @ head[0].T + head[1]
