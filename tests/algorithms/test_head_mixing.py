"""Weights of clients' heads, against the formulas written out."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedtailor.algorithms import _head_mixing
from fedtailor.algorithms._head_mixing import (
    FeatureStatistics,
    error_matrices,
    feature_statistics,
    mixing_weights,
)
from fedtailor.algorithms._simplex import optimality_gap
from fedtailor.statistics.gaussian import class_moments

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


def literal(statistics, i):
    """P_i with a loop over pairs of clients and one over classes."""
    variance, means = (value.numpy() for value in statistics)
    m = len(variance)
    matrix = np.diag(variance)
    for j in range(m):
        for k in range(m):
            for c in range(means.shape[1]):
                matrix[j, k] += (means[i, c] - means[j, c]) @ (means[i, c] - means[k, c])
    return matrix


def test_statistics_of_a_client():
    """Literally: V = (1/n) sum_c (p_c E_c|z|^2 - p_c^2 |m_c|^2), H[c] = p_c m_c; padding is not
    there."""
    draw = np.random.default_rng(1)
    z, y = draw.normal(size=(9, D)) + 5, np.array([0, 2, 2, 0, 0, 3, 2, 0, 1])
    weight = np.array([1, 1, 1, 1, 0, 1, 1, 1, 0])
    moments = class_moments(*map(torch.from_numpy, (z, y, weight)), CLASSES)
    found = feature_statistics(moments, torch.float64)
    z, y = z[weight > 0], y[weight > 0]
    variance, means = 0.0, np.zeros((CLASSES, D))
    for c in (0, 2, 3):
        share, own = (y == c).mean(), z[y == c]
        variance += share * (own**2).sum(1).mean() - share**2 * (own.mean(0) ** 2).sum()
        means[c] = share * own.mean(0)
    assert abs(float(found.variance) - variance / len(y)) < 1e-13
    assert np.abs(found.prior_means.numpy() - means).max() < 1e-14
    assert {value.dtype for value in feature_statistics(moments, torch.float32)} == {torch.float32}


def test_matrices_are_those_of_the_triple_loop():
    statistics = clients(5)
    flat = statistics.prior_means.flatten(1)
    everybody = torch.arange(5).expand(3, 5)
    matrices = error_matrices(
        flat @ flat.mT, statistics.variance, torch.tensor([3, 0, 4]), everybody
    )
    for client, found in zip((3, 0, 4), matrices.numpy()):
        assert np.abs(found - literal(statistics, client)).max() < 1e-13


def test_weights_solve_every_clients_program():
    statistics = clients(6)
    weights = mixing_weights(statistics).numpy()
    for client, found in enumerate(weights):
        matrix = literal(statistics, client)
        best = minimize(
            lambda a, matrix=matrix: (a @ matrix @ a, 2 * matrix @ a),
            np.full(6, 1 / 6),
            jac=True,
            method="SLSQP",
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-15, "maxiter": 500},
        )
        expected = np.where(best.x >= 1e-3, best.x, 0)
        assert np.abs(found - expected / expected.sum()).max() < 1e-5
    assert (weights.argmax(1) == np.arange(6)).sum() >= 3 and 0 < (weights == 0).sum() < 30


def test_small_weights_are_dropped():
    """The third client's weight would be about 1 / 1500, that of the fourth 1 / 500."""
    variance = torch.tensor([1.0, 1.0, 750.0, 250.0]).double()
    weights = mixing_weights(FeatureStatistics(variance, torch.zeros(4, 1, 2).double()))
    raw = np.array([1, 1, 0, 1 / 250])
    assert (weights[:, 2] == 0).all()
    assert np.abs(weights.numpy() - raw / raw.sum()).max() < 1e-12


def test_blocks_bound_memory_only(monkeypatch):
    statistics = clients(7)
    expected = mixing_weights(statistics)
    for at_once in (1, 2 * 49, 3 * 49):
        monkeypatch.setattr(_head_mixing, "_AT_ONCE", at_once)
        assert torch.allclose(mixing_weights(statistics), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_candidates_save_time_only(monkeypatch, count):
    statistics = clients(30)
    expected = mixing_weights(statistics)
    monkeypatch.setattr(_head_mixing, "_CANDIDATES", count)
    assert torch.allclose(mixing_weights(statistics), expected, rtol=0, atol=1e-8)


def test_no_head_would_improve_the_mixtures_of_a_large_cohort():
    statistics = clients(140)
    flat = statistics.prior_means.flatten(1)
    gram = flat @ flat.mT
    some = torch.arange(9)
    matrices = error_matrices(gram, statistics.variance, some, torch.arange(140).expand(9, 140))
    weights = _head_mixing._best_mixtures(gram, statistics.variance)[:9]
    usual = matrices.diagonal(dim1=1, dim2=2).median(1).values
    assert bool((optimality_gap(matrices, weights) < 1e-8 * usual).all())


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


def test_a_program_that_cannot_be_solved_leaves_the_own_head(monkeypatch):
    statistics = clients(4)
    expected = mixing_weights(statistics)
    solve = _head_mixing.least_quadratic
    failing = torch.tensor([False, True, False, True])[:, None]
    monkeypatch.setattr(
        _head_mixing, "least_quadratic", lambda p: torch.where(failing, torch.nan, solve(p))
    )
    weights = mixing_weights(statistics)
    assert torch.equal(weights[[1, 3]], torch.eye(4).double()[[1, 3]])
    assert torch.equal(weights[[0, 2]], expected[[0, 2]])
