"""Fed3R: ridge regression from sums, against scikit-learn and AFL's analytic aggregation."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedtailor.algorithms.fed3r import Fed3R, cross_validated_ridge
from golden import harness
from golden.closed_form import (
    CLASSES,
    D,
    body_features,
    head_of,
    in_other_parts,
    labeled_federation,
    pool,
)
from golden.harness import assert_close

AFL = Fed3R.from_preset("afl", ridge=0.3)


def with_ones(z):
    return np.concatenate([z, np.ones((len(z), 1))], axis=1)


def as_columns(head):
    """Return weights and biases as one matrix (d + 1, classes)."""
    return np.concatenate([head.weight.numpy(), head.bias.numpy()[:, None]], axis=1).T


def test_head_is_centralized_ridge_regression():
    federation = labeled_federation()
    x, y = pool(federation)
    reference = Ridge(alpha=0.3, fit_intercept=False, solver="cholesky")
    reference.fit(with_ones(x), np.eye(CLASSES)[y])
    assert_close(as_columns(head_of(AFL, federation)), reference.coef_.T, tolerance=1e-8)


def test_head_is_the_analytic_aggregation_of_afl():
    """Every client solves its own regression with a ridge of 1; solutions are joined one by one,
    and the ridges are then taken out again."""
    federation = labeled_federation()
    identity = np.eye(D + 1)
    second = np.zeros((D + 1, D + 1))
    solution = np.zeros((D + 1, CLASSES))
    for client in federation.roster.known:
        x, y = harness.examples(federation, client)
        z = with_ones(x)
        own = z.T @ z + identity
        local = np.linalg.solve(own, z.T @ np.eye(CLASSES)[y])
        joined = np.linalg.inv(second + own)
        solution = joined @ (second @ solution) + joined @ (own @ local)
        second = second + own

    clients = len(federation.roster.known)
    restored = np.linalg.solve(second - (clients - 0.3) * identity, second @ solution)
    assert_close(as_columns(head_of(AFL, federation)), restored, tolerance=1e-8)


def test_normalized_weights_have_norm_1_and_features_come_from_the_body():
    federation = harness.make_federation()
    x, y = pool(federation)
    z = with_ones(body_features(federation, x))
    ridge = 0.01 * np.eye(z.shape[1])
    columns = np.linalg.solve(z.T @ z + ridge, z.T @ np.eye(harness.CLASSES)[y])
    norms = np.linalg.norm(columns[:-1], axis=0)
    assert_close(as_columns(head_of(Fed3R(), federation)), columns / norms, tolerance=1e-9)


@pytest.mark.parametrize("count", [12, 30, 200])
def test_the_ridge_has_the_least_generalized_cross_validation_error(count):
    """With fewer examples than features, as many, and more: from the examples themselves."""
    generator = np.random.default_rng(count)
    y = generator.integers(0, 3, count)
    z = with_ones(generator.normal(size=(count, 29)) + 0.5 * np.eye(3, 29)[y])
    targets = np.eye(3)[y]
    second = z.T @ z

    def error(ridge):
        hat = z @ np.linalg.solve(second + ridge * np.eye(30), z.T)
        residual = np.square(targets - hat @ targets).sum()
        return count * residual / (count - np.trace(hat)) ** 2

    scatter = count * z[:, :-1].var(axis=0).mean()
    grid = scatter * np.logspace(-4, 4, 33)
    best = grid[np.argmin([error(ridge) for ridge in grid])]
    found = cross_validated_ridge(torch.tensor(second), torch.tensor(z.T @ targets))
    assert_close(found.numpy(), best, tolerance=1e-9)


def test_features_of_a_large_mean_get_a_ridge_of_their_scatter():
    generator = np.random.default_rng(1)
    y = generator.integers(0, 3, 200)
    z = generator.normal(size=(200, 29)) + 0.5 * np.eye(3, 29)[y]
    targets = torch.tensor(np.eye(3)[y])
    ridges = []
    for mean in (0.0, 50.0):
        moved = torch.tensor(with_ones(z + mean))
        ridges.append(float(cross_validated_ridge(moved.mT @ moved, moved.mT @ targets)))
    assert 0.1 < ridges[1] / ridges[0] < 10


def test_sums_that_noise_has_made_impossible_get_the_largest_ridge():
    second = torch.eye(5, dtype=torch.float64)
    ridge = cross_validated_ridge(second, torch.full((5, 2), 100.0, dtype=torch.float64))
    assert float(ridge) == 1e4


def test_the_preset_tuned_uses_that_ridge():
    federation = labeled_federation()
    x, y = pool(federation)
    z = with_ones(x)
    targets = np.eye(CLASSES)[y]
    found = cross_validated_ridge(torch.tensor(z.T @ z), torch.tensor(z.T @ targets))
    tuned = Fed3R.from_preset("tuned", normalized=False)
    columns = np.linalg.solve(z.T @ z + float(found) * np.eye(D + 1), z.T @ targets)
    assert_close(as_columns(head_of(tuned, federation)), columns, tolerance=1e-8)
    parts = head_of(tuned, in_other_parts(federation, 7, seed=1))
    assert_close(as_columns(parts), columns, tolerance=1e-8)


def test_who_has_which_examples_does_not_matter():
    federation = labeled_federation()
    expected = as_columns(head_of(AFL, federation))
    for parts in range(1, 11):
        other = head_of(AFL, in_other_parts(federation, parts, seed=parts))
        assert_close(as_columns(other), expected, tolerance=1e-11)
