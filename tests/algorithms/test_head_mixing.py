"""Weights of clients' heads, against the formulas written out."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fedtailor.algorithms import _head_mixing
from fedtailor.algorithms._head_mixing import FeatureStatistics, mixing_weights

CLASSES, D = 4, 6


def clients(count, seed=0, classes=CLASSES, d=D):
    """Return statistics of clients that differ in their classes and in how much they know."""
    draw = np.random.default_rng(seed)
    centers = draw.normal(size=(classes, d))
    shares = draw.dirichlet(np.full(classes, 0.5), size=count)
    means = centers + 0.2 * draw.normal(size=(count, classes, d))
    variance = draw.uniform(0.02, 0.5, count)
    return FeatureStatistics(
        torch.from_numpy(variance), torch.from_numpy(shares[:, :, None] * means)
    )


def errors_of(statistics, client):
    """P_i, literally."""
    means = statistics.prior_means.flatten(1).numpy()
    gaps = means[client] - means
    return np.diag(statistics.variance.numpy()) + gaps @ gaps.T


def least(matrix):
    """argmin a^T P a over the simplex by trying all supports."""
    best, value = None, np.inf
    m = len(matrix)
    for support in (list(s) for size in range(1, m + 1) for s in combinations(range(m), size)):
        a = np.zeros(m)
        a[support] = np.linalg.solve(matrix[np.ix_(support, support)], np.ones(len(support)))
        a /= a.sum()
        if a.min() >= 0 and a @ matrix @ a < value:
            best, value = a, a @ matrix @ a
    return best


def kept(weights):
    """The weights without small ones."""
    weights = np.where(weights < 1e-3, 0, weights)
    return weights / weights.sum()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("seed", range(5))
def test_weights_are_those_of_an_exhaustive_search(seed, scale):
    statistics = clients(7, seed)
    expected = [kept(least(errors_of(statistics, i))) for i in range(7)]

    variance, means = statistics
    weights = mixing_weights(FeatureStatistics(scale**2 * variance, scale * means))
    assert np.abs(weights.numpy() - np.stack(expected)).max() < 1e-9


def test_small_weights_are_dropped():
    """The third client's weight would be about 1 / 1500, that of the fourth 1 / 500."""
    variance = torch.tensor([1.0, 1.0, 750.0, 250.0]).double()
    weights = mixing_weights(FeatureStatistics(variance, torch.zeros(4, 1, 2).double()))
    raw = np.array([1, 1, 0, 1 / 250])
    assert (weights[:, 2] == 0).all()
    assert np.abs(weights.numpy() - raw / raw.sum()).max() < 1e-12


@pytest.mark.parametrize("count", [1, 3, 9])
def test_candidates_save_time_only(monkeypatch, count):
    statistics = clients(30)
    expected = mixing_weights(statistics)
    monkeypatch.setattr(_head_mixing, "_AT_ONCE", count)
    assert torch.allclose(mixing_weights(statistics), expected, rtol=0, atol=1e-10)


def test_no_head_would_improve_the_mixtures_of_a_large_cohort(monkeypatch):
    monkeypatch.setattr(_head_mixing, "_SMALLEST_WEIGHT", 0.0)
    statistics = clients(140)
    weights = mixing_weights(statistics).numpy()
    for client in range(140):
        matrix = errors_of(statistics, client)
        slopes = matrix @ weights[client]
        gap = weights[client] @ slopes - slopes.min()
        assert gap < 1e-10 * np.median(matrix.diagonal())


def test_equal_clients_have_equal_weights():
    """Two of them know everything of each other, as far as the server can tell."""
    variance, means = clients(5)
    variance[:2] = 0.0
    means[1] = means[0]
    weights = mixing_weights(FeatureStatistics(variance, means))
    assert torch.allclose(weights[:, 0], weights[:, 1], rtol=0, atol=1e-6)
    assert torch.allclose(weights[0, :2], torch.full((2,), 0.5).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [1, 4])
def test_clients_of_which_nothing_is_known_have_weights(count):
    weights = mixing_weights(FeatureStatistics(torch.zeros(count), torch.zeros(count, 2, 3)))
    assert torch.allclose(weights.sum(1), torch.ones(count).double()) and (weights >= 0).all()


@pytest.mark.parametrize("absurd", [1e15, 1e30])
def test_absurd_statistics_of_one_client_do_not_harm_the_others(absurd):
    """It gets no weight. A trace of it could still cancel a bias, which shifts the others' weights
    a little."""
    statistics = clients(6)
    means = statistics.prior_means.clone()
    means[5] = absurd
    weights = mixing_weights(FeatureStatistics(statistics.variance, means))
    expected = mixing_weights(FeatureStatistics(*(value[:5] for value in statistics)))
    assert (weights[:5, 5] == 0).all() and torch.allclose(
        weights[:5, :5], expected, rtol=0, atol=0.05
    )
    assert weights[5, 5] > 0.99 and torch.allclose(weights.sum(1), torch.ones(6).double())


@pytest.mark.parametrize("absurd", [1e200, float("nan")])
def test_clients_whose_weights_cannot_be_found_keep_their_heads(absurd):
    variance, means = clients(4)
    means[3] = absurd
    assert torch.equal(mixing_weights(FeatureStatistics(variance, means)), torch.eye(4).double())
