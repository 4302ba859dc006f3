"""The class mix of examples without labels, on made-up Gaussians of which the truth is known."""

import numpy as np
import pytest
import torch

from fedtailor.statistics.class_mix import fit_class_mix, log_gain, mean_mix

CENTERS = np.array([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]])


def probabilities_of(mix, count, prior, seed=0):
    """Return exact probabilities, under a prior, of examples whose classes come in a mix."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, size=count, p=mix)
    x = CENTERS[labels] + generator.normal(size=(count, 2))
    likelihood = np.exp(-0.5 * ((x[:, None] - CENTERS) ** 2).sum(-1))
    joint = likelihood * prior
    return torch.from_numpy(joint / joint.sum(1, keepdims=True))


@pytest.mark.parametrize("mix", [[0.7, 0.2, 0.1], [0.05, 0.05, 0.9], [1 / 3, 1 / 3, 1 / 3]])
def test_the_mix_of_made_up_gaussians_is_found(mix):
    prior = np.array([0.2, 0.5, 0.3])
    probabilities = probabilities_of(mix, 20_000, prior)
    fitted = fit_class_mix(probabilities, torch.from_numpy(prior))
    np.testing.assert_allclose(fitted, mix, atol=0.015)
    assert fitted.sum() == pytest.approx(1)


def test_every_step_raises_the_likelihood_and_the_result_is_its_maximum():
    prior = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    probabilities = probabilities_of([0.6, 0.3, 0.1], 300, prior.numpy())
    gains = [
        float(log_gain(probabilities, prior, fit_class_mix(probabilities, prior, steps)))
        for steps in (1, 2, 5, 20)
    ]
    best = fit_class_mix(probabilities, prior)
    gains.append(float(log_gain(probabilities, prior, best)))
    assert 0 < gains[0] < gains[1] < gains[2] < gains[3] <= gains[4] + 1e-12

    for other in torch.eye(3, dtype=torch.float64):
        assert log_gain(probabilities, prior, 0.99 * best + 0.01 * other) < gains[-1]


def test_the_mean_mix_explains_its_own_examples_best():
    probabilities = probabilities_of([0.6, 0.3, 0.1], 300, np.array([0.2, 0.5, 0.3]))
    mix = mean_mix(probabilities)
    torch.testing.assert_close(fit_class_mix(probabilities, mix), mix, rtol=0, atol=1e-12)


def test_several_samples_at_once_are_as_each_alone():
    prior = np.array([0.2, 0.5, 0.3])
    samples = torch.stack([probabilities_of([0.6, 0.3, 0.1], 50, prior, seed) for seed in range(3)])
    together = fit_class_mix(samples, mean_mix(samples), steps=10)
    alone = [fit_class_mix(sample, mean_mix(sample), steps=10) for sample in samples]
    torch.testing.assert_close(together, torch.stack(alone))


def test_a_class_that_no_probability_speaks_for_stays_possible():
    certain = torch.tensor([[1.0, 0.0]] * 5)
    mix = mean_mix(certain)
    assert mix[1] > 0
    assert fit_class_mix(torch.tensor([[0.0, 1.0]] * 5), mix)[1] == pytest.approx(1)
