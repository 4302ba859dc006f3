"""Weights of clients' heads, against the formulas written out."""

import numpy as np
import pytest
import torch

from fedtailor.algorithms import _head_mixing
from fedtailor.algorithms._head_mixing import (
    FeatureStatistics,
    HeadErrors,
    best_mixtures,
    mixing_weights,
)
from fedtailor.algorithms._simplex import optimality_gap

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


def test_slopes_are_those_of_the_error_matrices():
    statistics = clients(7)
    errors = HeadErrors.of(statistics)
    every = torch.arange(7)
    matrices = errors.matrices(every, every.expand(7, 7))
    weights = torch.softmax(errors.gram, 1)
    slopes = errors.slopes(every, weights)
    expected = (matrices @ weights[:, :, None])[:, :, 0]
    assert torch.allclose(slopes, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_candidates_save_time_only(monkeypatch, count):
    statistics = clients(30)
    expected = mixing_weights(statistics)
    monkeypatch.setattr(_head_mixing, "_CANDIDATES", count)
    assert torch.allclose(mixing_weights(statistics), expected, rtol=0, atol=1e-8)


def test_no_head_would_improve_the_mixtures_of_a_large_cohort():
    statistics = clients(140)
    errors = HeadErrors.of(statistics)
    some = torch.arange(9)
    matrices = errors.matrices(some, torch.arange(140).expand(9, 140))
    weights = best_mixtures(errors)[:9]
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
