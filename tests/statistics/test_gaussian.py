"""Gaussian class models against scikit-learn, SciPy, NumPy and plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedtailor.statistics import gaussian

CLASSES, D = 4, 6


def labeled_features(seed=0, n=120, d=D, classes=CLASSES):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    mixing = rng.normal(size=(d, d)) / np.sqrt(d) + np.eye(d)
    z = rng.normal(size=(classes, d))[y] + rng.normal(size=(n, d)) @ mixing
    return torch.from_numpy(z), torch.from_numpy(y)


def class_model(seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(D, D))
    prior = rng.dirichlet(np.ones(CLASSES))
    means = rng.normal(size=(CLASSES, D))
    return tuple(
        torch.from_numpy(array) for array in (means, root @ root.T / D + 0.1 * np.eye(D), prior)
    )


def logits(z, head):
    weight, bias = head
    return z @ weight.mT + bias


def ones(z):
    return torch.ones(len(z))


def test_head_is_the_classifier_of_scikit_learn():
    z, y = labeled_features()
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    means = np.stack([z[y == c].numpy().mean(0) for c in range(CLASSES)])
    within = sum(prior[c] * np.cov(z[y == c].numpy().T, bias=True) for c in range(CLASSES))
    reference = LinearDiscriminantAnalysis(solver="lsqr", priors=prior).fit(z.numpy(), y.numpy())
    head = gaussian.lda_head(*(torch.from_numpy(array) for array in (means, within, prior)))
    difference = logits(z, head).numpy() - reference.decision_function(z.numpy())
    assert np.abs(difference).max() < 1e-10  # condition number about 100, logits about 10


def test_softmax_of_logits_is_the_posterior_of_the_gaussian_model():
    means, covariance, prior = class_model()
    z, _ = labeled_features()
    density = np.stack(
        [multivariate_normal(mean, covariance).pdf(z) for mean in means.numpy()], axis=1
    )
    posterior = prior.numpy() * density / (prior.numpy() * density).sum(1, keepdims=True)
    probabilities = logits(z, gaussian.lda_head(means, covariance, prior)).softmax(1)
    np.testing.assert_allclose(probabilities.numpy(), posterior, rtol=1e-9, atol=1e-12)


def test_unit_covariance_and_uniform_prior_choose_the_nearest_mean():
    means, _, _ = class_model()
    z, _ = labeled_features()
    identity = torch.eye(D, dtype=torch.float64)
    head = gaussian.lda_head(means, identity, torch.full((CLASSES,), 1 / CLASSES))
    assert torch.equal(logits(z, head).argmax(1), torch.cdist(z, means).argmin(1))


def test_moving_features_and_means_alike_keeps_the_decisions():
    means, covariance, prior = class_model()
    z, _ = labeled_features()
    before = logits(z, gaussian.lda_head(means, covariance, prior)).log_softmax(1)
    after = logits(z + 3.0, gaussian.lda_head(means + 3.0, covariance, prior)).log_softmax(1)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-9)


def test_singular_covariance_gives_the_solution_of_smallest_norm():
    means, _, prior = class_model()
    root = torch.from_numpy(np.random.default_rng(1).normal(size=(D, 3)))
    weight, bias = gaussian.lda_head(means, root @ root.mT, prior)
    expected = means.numpy() @ np.linalg.pinv((root @ root.mT).numpy(), rcond=1e-12, hermitian=True)
    np.testing.assert_allclose(weight.numpy(), expected, rtol=0, atol=1e-10)
    assert torch.isfinite(bias).all()
    zero_weight, zero_bias = gaussian.lda_head(means, torch.zeros(D, D), prior)
    assert torch.equal(zero_weight, torch.zeros_like(zero_weight)) and torch.equal(
        zero_bias, prior.log()
    )


def test_head_shrinks_first():
    means, covariance, prior = class_model()
    shrunk = gaussian.lda_head(means, covariance, prior, shrinkage=0.1)
    expected = gaussian.lda_head(means, gaussian.shrink(covariance, 0.1), prior)
    torch.testing.assert_close(shrunk, expected, rtol=0, atol=1e-13)


def test_shrinking_is_linear_and_keeps_the_trace():
    (_, a, _), (_, b, _) = class_model(0), class_model(1)
    together = gaussian.shrink(0.3 * a + 0.7 * b, 0.05)
    torch.testing.assert_close(
        together, 0.3 * gaussian.shrink(a, 0.05) + 0.7 * gaussian.shrink(b, 0.05)
    )
    torch.testing.assert_close(gaussian.shrink(a, 0.05).trace(), a.trace())
    torch.testing.assert_close(
        gaussian.shrink(a, 1.0), a.trace() / D * torch.eye(D, dtype=torch.float64)
    )


@pytest.mark.parametrize(("n", "scale"), [(3, 1.0), (20, 1e-3), (500, 1e3)])
def test_oracle_approximating_shrinkage_is_that_of_scikit_learn(n, scale):
    z = scale * labeled_features(n=n)[0].numpy()
    covariance = torch.from_numpy(np.cov(z.T, bias=True))
    shrunk, amount = oas(z)
    ours = gaussian.oas_amount(covariance, torch.tensor(n))
    np.testing.assert_allclose(ours, amount, rtol=1e-12)
    np.testing.assert_allclose(gaussian.shrink(covariance, ours), shrunk, rtol=1e-11)


def test_without_examples_or_variance_all_is_shrunk():
    covariances = torch.stack([torch.zeros(D, D), torch.eye(D), class_model()[1]])
    amounts = gaussian.oas_amount(covariances, torch.tensor([50, 50, 0]))
    assert amounts.tolist() == [1.0, 1.0, 1.0]
    assert gaussian.shrink(covariances, amounts).shape == covariances.shape


def test_blend_is_exact_at_both_ends_and_between_equals():
    (local, _, _), (shared, _, _) = class_model(0), class_model(1)
    zero, one, part = (torch.tensor(beta, dtype=torch.float64) for beta in (0.0, 1.0, 0.3))
    assert torch.equal(gaussian.blend(local, shared, zero), shared)
    assert torch.equal(gaussian.blend(local, shared, one), local)
    assert torch.equal(gaussian.blend(shared, shared, part), shared)
    torch.testing.assert_close(gaussian.blend(local, shared, part), 0.3 * local + 0.7 * shared)


def test_prior_is_smoothed_and_uniform_without_examples():
    prior = gaussian.smooth_prior(torch.tensor([3, 0, 1]))
    expected = (np.array([0.75, 0.0, 0.25]) + 1e-4) / (1 + 3e-4)
    np.testing.assert_allclose(prior.numpy(), expected, rtol=1e-14)
    empty = gaussian.smooth_prior(torch.zeros(3))
    np.testing.assert_allclose(empty.numpy(), np.full(3, 1 / 3), rtol=1e-14)


def test_moments_match_a_loop_over_rows():
    z, y = labeled_features(n=30)
    y[y == 2] = 1  # nobody has class 2
    moments = gaussian.class_moments(z, y, ones(z), CLASSES)
    scatter = np.zeros((D, D))
    for c in range(CLASSES):
        rows = z[y == c].numpy()
        mean = rows.mean(0) if len(rows) else np.zeros(D)
        scatter += sum((np.outer(row - mean, row - mean) for row in rows), np.zeros((D, D)))
        np.testing.assert_allclose(moments.means[c].numpy(), mean, atol=1e-13)
        assert moments.counts[c] == len(rows)
    np.testing.assert_allclose(moments.scatter.numpy(), scatter, atol=1e-11)


def test_padding_does_not_change_moments():
    z, y = labeled_features(n=30)
    padded_z = torch.cat([z, torch.full((5, D), 1e100, dtype=z.dtype)])
    padded_y = torch.cat([y, torch.tensor([0, 3, -1, 99, 2])])
    weight = torch.cat([ones(z), torch.zeros(5)])
    plain = gaussian.class_moments(z, y, ones(z), CLASSES)
    padded = gaussian.class_moments(padded_z, padded_y, weight, CLASSES)
    torch.testing.assert_close(padded, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1])
def test_moments_of_nothing_and_of_one_row_are_finite(n):
    z, y = labeled_features(n=1)
    moments = gaussian.class_moments(z[:n], y[:n], torch.ones(n), CLASSES)
    covariance = gaussian.covariance(moments.scatter, moments.counts.sum(), 0.5, 0.0)
    torch.testing.assert_close(covariance, 0.5 * torch.eye(D, dtype=torch.float64))
    assert moments.counts.sum() == n and torch.isfinite(moments.means).all()


def test_classes_with_few_rows_take_the_fallback():
    z, _ = labeled_features(n=6)
    moments = gaussian.class_moments(z, torch.tensor([0, 0, 0, 1, 1, 3]), ones(z), CLASSES)
    fallback = torch.full((CLASSES, D), 7.0)
    for least, replaced in ((1, [2]), (3, [1, 2, 3])):
        means = gaussian.fill_missing_means(moments, fallback, least)
        kept = [c for c in range(CLASSES) if c not in replaced]
        assert (means[replaced] == 7.0).all() and torch.equal(means[kept], moments.means[kept])


def test_covariance_adds_offset_everywhere_and_ridge_on_the_diagonal():
    scatter = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3)))
    result = gaussian.covariance(scatter, torch.tensor(5.0), ridge=1.0, offset=1e-4)
    np.testing.assert_allclose(result.numpy(), scatter.numpy() / 4 + 1e-4 + np.eye(3), rtol=1e-14)


def test_nearest_pd_repairs_a_correlation_above_one():
    broken = torch.tensor([[1.0, 1.2], [1.2, 1.0]], dtype=torch.float64)
    repaired = gaussian.nearest_pd(broken)
    assert torch.linalg.eigvalsh(repaired).min() > -1e-15
    assert torch.equal(repaired.diagonal(), broken.diagonal())
    torch.testing.assert_close(repaired, torch.ones(2, 2, dtype=torch.float64))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_nearest_pd_keeps_variances_and_leaves_sound_matrices_alone(seed, d):
    rng = np.random.default_rng(seed)
    deviation = np.exp(rng.normal(size=d) * 2)
    noise = rng.uniform(-1, 1, size=(d, d))
    correlation = (noise + noise.T) / 2
    np.fill_diagonal(correlation, 1.0)
    matrix = torch.from_numpy(correlation * np.outer(deviation, deviation))
    repaired = gaussian.nearest_pd(matrix)
    sound = np.linalg.eigvalsh(correlation).min() > 1e-10
    assert torch.equal(repaired, matrix) or not sound
    assert torch.equal(repaired.diagonal(), matrix.diagonal())
    scaled = repaired.numpy() / np.outer(deviation, deviation)
    assert np.linalg.eigvalsh(scaled).min() > -1e-13 * d


def test_nearest_pd_with_the_ridge_of_the_release_does_nothing():
    z, y = labeled_features(n=4)
    moments = gaussian.class_moments(z, y, ones(z), CLASSES)
    covariance = gaussian.covariance(moments.scatter, moments.counts.sum(), ridge=1.0, offset=1e-4)
    assert torch.equal(gaussian.nearest_pd(covariance), covariance)


def test_constant_features_stay_finite():
    covariance = torch.tensor(
        [[0.0, 0.0, 0.0], [0.0, 2.0, 3.0], [0.0, 3.0, 2.0]], dtype=torch.float64
    )
    repaired = gaussian.nearest_pd(covariance)
    assert torch.isfinite(repaired).all() and torch.equal(
        repaired.diagonal(), covariance.diagonal()
    )
    weight, bias = gaussian.lda_head(torch.ones(2, 3), repaired, torch.tensor([0.5, 0.5]))
    assert torch.isfinite(weight).all() and torch.isfinite(bias).all()


def client_program(z, y, weight, shared):
    """Do everything a client does with these functions."""
    moments = gaussian.class_moments(z, y, weight, CLASSES)
    means = gaussian.fill_missing_means(moments, shared)
    raw = gaussian.covariance(moments.scatter, moments.counts.sum(), ridge=1e-3, offset=-0.2)
    covariance = gaussian.nearest_pd(raw)
    half = torch.tensor(0.5, dtype=torch.float64)
    prior = gaussian.smooth_prior(moments.counts)
    return gaussian.lda_head(
        gaussian.blend(means, shared, half), covariance, prior, 1e-4
    ), covariance


def stacked_clients():
    """Return three clients of 30, 7 and 0 rows, padded to 30."""
    sizes = (30, 7, 0)
    features, labels, weights = [], [], []
    for seed, size in enumerate(sizes):
        z, y = labeled_features(seed, n=30)
        z[size:] = 1e6
        features.append(z)
        labels.append(y)
        weights.append((torch.arange(30) < size).double())
    return torch.stack(features), torch.stack(labels), torch.stack(weights), sizes


def test_vmap_equals_a_loop_over_unpadded_clients():
    z, y, weight, sizes = stacked_clients()
    shared = class_model()[0]
    (weights, biases), covariances = torch.func.vmap(client_program, (0, 0, 0, None))(
        z, y, weight, shared
    )
    for client, size in enumerate(sizes):
        head, covariance = client_program(
            z[client, :size], y[client, :size], weight[client, :size], shared
        )
        # a head solves a system: its error grows with the condition, and processors round
        # differently
        condition = float(gaussian.condition(covariance, 1e-4))
        allowed = max(1e-12, torch.finfo(torch.float64).eps * condition) * float(
            head[0].abs().max()
        )
        torch.testing.assert_close(weights[client], head[0], rtol=0, atol=allowed)
        torch.testing.assert_close(biases[client], head[1], rtol=0, atol=allowed)
        torch.testing.assert_close(covariances[client], covariance, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_client_gets_nan_and_the_others_stay_the_same(value):
    z, y, weight, _ = stacked_clients()
    shared = class_model()[0]
    run = torch.func.vmap(client_program, (0, 0, 0, None))
    (sound, _), _ = run(z, y, weight, shared)
    z[1, 0, 0] = value
    (weights, biases), covariances = run(z, y, weight, shared)
    assert (
        torch.isnan(weights[1]).all()
        and torch.isnan(biases[1]).all()
        and torch.isnan(covariances[1]).any()
    )
    assert torch.equal(weights[[0, 2]], sound[[0, 2]])


def test_everything_is_float64_whatever_comes_in():
    z, y = labeled_features(n=20)
    head, covariance = client_program(z.float(), y, ones(z).float(), class_model()[0].float())
    assert {tensor.dtype for tensor in (*head, covariance)} == {torch.float64}
