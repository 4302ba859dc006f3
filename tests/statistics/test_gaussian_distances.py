"""Distances to Gaussian class models, scatter about given centers, and condition numbers, against
plain NumPy."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

import federations
from fedtailor.algorithms import load_algorithm
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from fedtailor.statistics import gaussian

CLASSES, D = 4, 6


def gaussian_classes(seed=0, n=30):
    draw = np.random.default_rng(seed)
    root = draw.normal(size=(D, D))
    means, y = (
        draw.normal(size=(CLASSES, D)),
        draw.integers(0, CLASSES - 1, n),
    )  # the last class has no examples
    arrays = means[y] + draw.normal(size=(n, D)), y, means, root @ root.T / D + 0.1 * np.eye(D)
    return tuple(torch.from_numpy(array) for array in arrays)


def test_scatter_about_other_centers():
    z, y, centers, _ = gaussian_classes()
    weight = (torch.arange(len(y)) % 5 > 0).double()
    moments = gaussian.class_moments(z, y, weight, CLASSES)
    gaps = z - centers[y]
    expected = sum(w * torch.outer(gap, gap) for gap, w in zip(gaps, weight, strict=True))
    torch.testing.assert_close(gaussian.scatter_about(moments, centers), expected)
    torch.testing.assert_close(
        gaussian.scatter_about(moments, moments.means), moments.scatter, rtol=0, atol=0
    )


@pytest.mark.parametrize("shrinkage", [0.0, 0.1])
def test_mahalanobis_distance_to_the_nearest_mean(shrinkage):
    z, _, means, covariance = gaussian_classes()
    inverse = np.linalg.inv(gaussian.shrink(covariance, shrinkage).numpy())
    gaps = z.numpy()[:, None] - means.numpy()
    expected = np.sqrt(np.einsum("ncd,de,nce->nc", gaps, inverse, gaps)).min(1)
    given = gaussian.mahalanobis(z, means, covariance, shrinkage)
    np.testing.assert_allclose(given.numpy(), expected, rtol=1e-11)
    np.testing.assert_allclose(gaussian.mahalanobis(means, means, covariance), 0, atol=1e-12)


@pytest.mark.parametrize("shrinkage", [0.0, 0.1])
def test_surprise_is_the_negative_log_density_of_the_mixture(shrinkage):
    z, _, means, covariance = gaussian_classes()
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    shrunk = gaussian.shrink(covariance, shrinkage).numpy()
    densities = [
        share * multivariate_normal(mean, shrunk).pdf(z.numpy())
        for share, mean in zip(prior.tolist(), means.numpy(), strict=True)
    ]
    surprise = gaussian.surprise(z, means, covariance, prior, shrinkage)
    np.testing.assert_allclose(surprise.numpy(), -np.log(sum(densities)), rtol=1e-6)


def test_directions_without_variance_do_not_count_in_a_surprise():
    z, _, means, covariance = gaussian_classes()
    prior = torch.full((CLASSES,), 1 / CLASSES)
    flat = torch.zeros(D + 1, D + 1, dtype=torch.float64)
    flat[:D, :D] = covariance

    def wider(x):
        return torch.nn.functional.pad(x, (0, 1))

    expected = gaussian.surprise(z, means, covariance, prior)
    given = gaussian.surprise(wider(z), wider(means), flat, prior)
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=0)
    assert gaussian.surprise(z, means, covariance * torch.nan, prior).isnan().all()


def test_distance_grows_with_strangeness_and_ignores_an_affine_change_of_features():
    z, _, means, covariance = gaussian_classes()
    far = [float(gaussian.mahalanobis(z + shift, means, covariance).mean()) for shift in (0, 3, 30)]
    assert far[0] < far[1] < far[2]
    change = torch.from_numpy(np.random.default_rng(5).normal(size=(D, D)) + 2 * np.eye(D))
    moved = gaussian.mahalanobis(z @ change.T, means @ change.T, change @ covariance @ change.T)
    torch.testing.assert_close(moved, gaussian.mahalanobis(z, means, covariance), rtol=1e-9, atol=0)


def test_distance_where_the_covariance_is_singular_or_not_finite():
    z, _, means, _ = gaussian_classes()
    flat = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    expected = torch.cdist(z[:, :3], means[:, :3]).amin(1)
    torch.testing.assert_close(gaussian.mahalanobis(z, means, flat), expected)
    assert gaussian.mahalanobis(z, means, torch.full((D, D), torch.nan)).isnan().all()
    damaged = torch.cat([z[:2], torch.full((1, D), torch.nan)])
    assert gaussian.mahalanobis(damaged, means, flat).isnan().tolist() == [False, False, True]


def test_condition_number():
    _, _, _, covariance = gaussian_classes()
    assert float(gaussian.condition(covariance)) == pytest.approx(
        np.linalg.cond(covariance.numpy()), rel=1e-10
    )
    shrunk = gaussian.shrink(covariance, 0.2).numpy()
    assert float(gaussian.condition(covariance, 0.2)) == pytest.approx(
        np.linalg.cond(shrunk), rel=1e-10
    )
    assert (
        float(gaussian.condition(torch.eye(3))) == 1
        and float(gaussian.condition(torch.zeros(3, 3))) == np.inf
    )
    assert gaussian.condition(torch.full((3, 3), torch.nan)).isnan()


def test_stacks_agree_with_single_calls_and_one_damaged_matrix_hurts_no_other():
    parts = [gaussian_classes(seed) for seed in range(3)]
    z, means, covariance = (torch.stack([part[i] for part in parts]) for i in (0, 2, 3))
    covariance[1] = torch.nan
    distances = torch.func.vmap(gaussian.mahalanobis)(z, means, covariance)
    conditions = torch.func.vmap(gaussian.condition)(covariance)
    for client in range(3):
        torch.testing.assert_close(
            distances[client],
            gaussian.mahalanobis(z[client], means[client], covariance[client]),
            equal_nan=True,
        )
        torch.testing.assert_close(
            conditions[client], gaussian.condition(covariance[client]), equal_nan=True
        )
    assert distances[1].isnan().all() and not distances[[0, 2]].isnan().any()


@pytest.mark.parametrize("shrinkage", [0.0, 0.1])
def test_surprise_is_the_mean_negative_log_likelihood(shrinkage):
    z, y, means, covariance = gaussian_classes()
    weight = (torch.arange(len(y)) % 3 > 0).double()
    matrix = gaussian.shrink(covariance, shrinkage).numpy()
    logs = [
        multivariate_normal(means[c].numpy(), matrix).logpdf(row.numpy())
        for row, c in zip(z, y, strict=True)
    ]
    expected = -np.average(logs, weights=weight.numpy())
    fit = gaussian.feature_fit(z, y, weight, means, covariance, shrinkage)
    assert float(fit.surprise) == pytest.approx(expected, rel=1e-11)


def test_surprise_where_it_is_not_defined():
    z, y, means, covariance = gaussian_classes()
    ones, zeros = torch.ones(len(y)), torch.zeros(len(y))
    assert gaussian.feature_fit(z, y, zeros, means, covariance) == (0, 0)
    singular = gaussian.feature_fit(
        z, y, ones, means, torch.diag(torch.tensor([1.0, 1, 1, 1, 1, 0]))
    )
    assert singular.surprise == torch.inf and singular.kurtosis.isfinite()
    assert all(
        number.isnan()
        for number in gaussian.feature_fit(z, y, ones, means, torch.full((D, D), torch.nan))
    )


def test_kurtosis_tells_gaussian_features_from_others():
    """Against Mardia's formula, and against features with heavy and with light tails."""
    generator = torch.Generator().manual_seed(0)
    count = 20_000
    draws = torch.randn(count, D, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (count,), generator=generator)
    means = torch.randn(3, D, generator=generator, dtype=torch.float64)
    root = torch.randn(D, D, generator=generator, dtype=torch.float64)
    heavy = draws / torch.rand(count, 1, generator=generator, dtype=torch.float64)
    light = draws / draws.norm(dim=1, keepdim=True)
    found = {}
    for name, sample in (("gaussian", draws), ("heavy", heavy), ("light", light)):
        z = sample @ root + means[y]
        found[name] = float(
            gaussian.feature_fit(z, y, torch.ones(count), means, root.T @ root).kurtosis
        )
        q = np.sum((sample.numpy() @ root.numpy() @ np.linalg.inv(root.numpy())) ** 2, axis=1)
        assert found[name] == pytest.approx(np.mean(q**2) / np.mean(q) ** 2 * D / (D + 2), rel=1e-8)
    assert found["gaussian"] == pytest.approx(1.0, abs=0.03)
    assert found["heavy"] > 2 and found["light"] == pytest.approx(D / (D + 2), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pfedfda", "fedlda"])
def test_strange_inputs_are_unfamiliar_to_a_trained_model(name, float64):
    federation = federations.make_federation(federations.perceptron(), distance=3.0)
    algorithm = load_algorithm(name)(training=Training(lr=0.1, epochs=3, batch_size=5))
    *_, report = simulate(algorithm, federation, Reference(), Schedule(rounds=3), seed=1)
    task, x = federation.common_task, federation.x[federation.splits[6].test]
    personal = report.personal[6]
    near, far = (algorithm.ood_score(task, personal, inputs) for inputs in (x, x + 30.0))
    assert near.shape == (len(x),) and far.min() > near.max()

    usual, surprising = (algorithm.surprise(task, personal, inputs) for inputs in (x, x + 30.0))
    assert usual.shape == (len(x),) and surprising.min() > usual.max()
