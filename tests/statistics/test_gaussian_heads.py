"""Gaussians over heads against torch.distributions and plain loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

from federations import make_federation, module, perceptron
from fedtailor.core.rng import new_key
from fedtailor.core.task import Batch
from fedtailor.statistics import gaussian_heads
from fedtailor.training.losses import classification_loss

SHAPES = {"head.weight": (3, 5), "head.bias": (3,)}


@pytest.fixture(autouse=True)
def _float64(float64):
    """Compare in float64."""


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def posterior():
    return gaussian_heads.HeadPosterior(draw(0), draw(1))


@pytest.mark.parametrize("deviation", [1e-12, 0.01, 1.0, 30.0, 1e4])
def test_raw_numbers_of_deviations(deviation):
    raw = torch.tensor(gaussian_heads.raw_of(deviation))
    assert float(F.softplus(raw)) == pytest.approx(deviation, rel=1e-9)
    assert gaussian_heads.raw_of(1.0) == pytest.approx(0.541325, abs=1e-6)


def test_divergence_is_finite_where_a_deviation_underflows():
    one = gaussian_heads.HeadPosterior(
        {"a": torch.zeros(1)}, {"a": torch.tensor([-800.0], requires_grad=True)}
    )
    assert float(one.deviation()["a"].detach()) == 0
    prior = gaussian_heads.HeadPrior({"a": torch.ones(1)}, torch.tensor(0.5))
    given = gaussian_heads.divergence(one.mean, one.deviation(), prior)
    assert float(given.detach()) == pytest.approx(math.log(0.5 / 1e-8) + 1 / (2 * 0.25) - 0.5)
    assert float(torch.autograd.grad(given, one.raw["a"])[0]) == 0


def test_divergence_is_that_of_normals_and_its_gradient_the_weighted_distance():
    one, center, rho = posterior(), draw(2), torch.tensor(0.7)
    mean = {name: leaf.requires_grad_() for name, leaf in one.mean.items()}
    given = gaussian_heads.divergence(mean, one.deviation(), gaussian_heads.HeadPrior(center, rho))
    pairs = [
        (Normal(mean[name], one.deviation()[name]), Normal(center[name], rho)) for name in SHAPES
    ]
    torch.testing.assert_close(given, sum(kl_divergence(*pair).sum() for pair in pairs))
    slopes = torch.autograd.grad(given, list(mean.values()))
    for slope, name in zip(slopes, SHAPES, strict=True):
        torch.testing.assert_close(slope, ((mean[name] - center[name]) / rho**2).detach())


def test_drawn_heads_are_those_of_the_noise():
    one = posterior()
    noise = torch.randn(4, 18, generator=torch.Generator().manual_seed(3))
    drawn = gaussian_heads.draw_heads(one.mean, one.deviation(), noise)
    for number, row in enumerate(noise):
        for name, part in (("head.weight", row[:15].reshape(3, 5)), ("head.bias", row[15:])):
            torch.testing.assert_close(
                drawn[name][number], one.mean[name] + one.deviation()[name] * part
            )
    assert gaussian_heads.head_size(one.mean) == 18
    assert float(gaussian_heads.squares(one.mean)) == pytest.approx(
        sum(float((p**2).sum()) for p in one.mean.values())
    )


def test_losses_and_probabilities_are_averaged_over_heads():
    one, task = posterior(), perceptron()
    z, labels = (
        torch.rand(6, 5, generator=torch.Generator().manual_seed(4)),
        torch.tensor([0, 1, 2, 0, 1, 2]),
    )
    key = new_key(5)
    noise = gaussian_heads.normal(key.fold("heads"), (7, 18))
    drawn = gaussian_heads.draw_heads(one.mean, one.deviation(), noise)
    logits = [z @ drawn["head.weight"][k].T + drawn["head.bias"][k] for k in range(7)]
    losses = torch.stack([F.cross_entropy(row, labels, reduction="none") for row in logits]).mean(0)
    torch.testing.assert_close(
        gaussian_heads.expected_losses(task, one.mean, one.deviation(), z, labels, key, 7),
        losses,
        rtol=1e-12,
        atol=0,
    )
    mean = torch.stack([row.softmax(1) for row in logits]).mean(0)
    torch.testing.assert_close(
        gaussian_heads.mean_log_probabilities(task, drawn, z).exp(), mean, rtol=1e-12, atol=0
    )


def test_draws_of_a_whole_model_pass_buffers_on_and_have_dropout_of_their_own():
    federation, key = make_federation(module()), new_key(7)
    task, batch = federation.common_task, Batch(federation.x[:8], federation.y[:8], torch.ones(8))
    mean = task.model.init(new_key(1))
    trained = task.pick(mean, "body", "head", "extra")
    model = gaussian_heads.HeadPosterior(
        mean, {name: torch.full_like(leaf, -3.0) for name, leaf in trained.items()}
    )
    loss, buffers = gaussian_heads.expected_loss(task, model, batch, key, 2)
    noise = gaussian_heads.normal(key.fold("weights"), (2, gaussian_heads.head_size(trained)))
    drawn, losses, seen = (
        gaussian_heads.draw_heads(trained, model.deviation(), noise),
        [],
        task.pick(mean, "buffer"),
    )
    for number in (0, 1):
        weights = {name: leaf[number] for name, leaf in drawn.items()}
        output = classification_loss(task, weights, seen, batch, key.fold(number))
        losses.append(output.loss)
        seen = {**seen, **output.buffers}
    assert torch.equal(loss, torch.stack(losses).mean())
    assert buffers.keys() == seen.keys() and all(
        torch.equal(buffers[name], leaf) for name, leaf in seen.items()
    )
