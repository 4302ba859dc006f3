"""The Gaussian layer on top of other models, and the losses of its samples."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from federations import TASKS
from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.core.task import Task
from fedtailor.models import build_model
from fedtailor.models.module import from_module
from fedtailor.statistics.bottleneck import (
    LEAST_DEVIATION,
    GaussianModel,
    Gaussians,
    sampled_losses,
    split,
)

V = 3


def on_top(kind):
    task = TASKS[kind]()
    return task, GaussianModel(task.model, V, task.num_classes)


@pytest.mark.parametrize("kind", TASKS)
def test_names_shapes_and_groups(kind):
    task, model = on_top(kind)
    body = {
        name: shape
        for name, shape in task.model.shapes.items()
        if task.model.groups[name] != "head"
    }
    d = task.model.feature_dim
    layers = {
        "gaussian.weight": (6, d),
        "gaussian.bias": (6,),
        "head.weight": (3, V),
        "head.bias": (3,),
    }
    assert model.shapes == {**body, **layers} and list(model.groups) == list(model.shapes)
    assert {name for name, group in model.groups.items() if group == "head"} == {
        "head.weight",
        "head.bias",
    }
    assert model.groups["gaussian.weight"] == "body" and model.norm == task.model.norm
    assert (model.feature_dim, model.latent_dim) == (6, 3)
    params = model.init(new_key(0))
    assert {name: tuple(value.shape) for name, value in params.items()} == model.shapes
    assert list(params) == list(model.shapes)


@pytest.mark.parametrize("kind", TASKS)
def test_features_are_a_linear_layer_on_those_of_the_model_below(kind, float64):
    task, model = on_top(kind)
    params = model.init(new_key(0))
    body = {name: value for name, value in params.items() if model.groups[name] != "head"}
    x, weight = torch.randn(5, *task.input_shape), torch.tensor([1.0, 1, 1, 1, 0])
    for training in (False, True):
        z, buffers = task.model.features(body, x, weight=weight, key=new_key(1), training=training)
        u, found = model.features(body, x, weight=weight, key=new_key(1), training=training)
        torch.testing.assert_close(u, z @ params["gaussian.weight"].T + params["gaussian.bias"])
        assert set(found) == set(buffers)
    draws = torch.randn(5, 2, V)
    torch.testing.assert_close(
        model.head(params, draws), draws @ params["head.weight"].T + params["head.bias"]
    )


def test_models_of_the_same_parts_are_equal():
    base, other = (TASKS["mlp"]().model for _ in range(2))
    assert GaussianModel(base, 3, 4) == GaussianModel(base, 3, 4)
    assert hash(GaussianModel(base, 3, 4)) == hash(GaussianModel(base, 3, 4))
    for model in (
        GaussianModel(base, 2, 4),
        GaussianModel(base, 3, 5),
        GaussianModel(other, 3, 4),
        base,
    ):
        assert GaussianModel(base, 3, 4) != model


def test_initialization_is_pytorchs_distribution():
    model = GaussianModel(build_model("mlp", (4,), 7, {"hidden": 50}), 40, 7)
    params = model.init(new_key(3))
    for layer, fan_in in (("gaussian", 50), ("head", 40)):
        for kind in ("weight", "bias"):
            scaled = params[f"{layer}.{kind}"] * math.sqrt(fan_in)
            assert 0.8 < scaled.abs().max() <= 1 + 1e-6
    assert abs(float((params["gaussian.weight"] * math.sqrt(50)).square().mean()) - 1 / 3) < 0.02
    first, again, other = (model.init_head(new_key(seed)) for seed in (3, 3, 4))
    for name, value in first.items():
        assert torch.equal(value, again[name]) and torch.equal(value, params[name])
        assert not torch.equal(value, other[name])


def test_the_body_starts_as_without_the_layer():
    base = build_model("mlp", (4,), 3)
    params, plain = GaussianModel(base, 2, 3).init(new_key(0)), base.init(new_key(0))
    assert torch.equal(params["hidden.weight"], plain["hidden.weight"])


def test_a_body_that_has_such_a_name_is_refused():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.gaussian, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.gaussian(x).relu())

    with pytest.raises(ConfigError, match=r"'gaussian\.weight' in its body") as caught:
        GaussianModel(from_module(Own(), input_shape=(4,), num_classes=3), 2, 3)
    assert caught.value.key == "model.name"


def test_deviations_are_softplus_and_never_too_small():
    features = torch.tensor([[1.0, 2.0, 0.0, -1000.0], [3.0, 4.0, 1000.0, 1.0]])
    z = split(features)
    assert z.mean.tolist() == [[1, 2], [3, 4]]
    torch.testing.assert_close(z.std[0], torch.tensor([math.log(2), LEAST_DEVIATION]))
    torch.testing.assert_close(z.std[1], torch.tensor([1000.0, math.log1p(math.e)]))


def sampled(n=6, samples=5, seed=0):
    """Return a task, its head, and Gaussians, labels and noise of some examples."""
    base = build_model("mlp", (4,), 3)
    task = Task(GaussianModel(base, V, 3), 3, (4,))
    generator = torch.Generator().manual_seed(seed)
    mean, raw = (torch.randn(n, V, generator=generator) for _ in range(2))
    noise = torch.randn(n, samples, V, generator=generator)
    return (
        task,
        task.model.init_head(new_key(0)),
        Gaussians(mean, raw.exp()),
        torch.arange(n) % 3,
        noise,
    )


def test_losses_of_samples_are_those_of_a_loop(float64):
    task, head, z, labels, noise = sampled()
    expected_log = sampled_losses(task, head, z, labels, noise, "expected_log")
    log_expected = sampled_losses(task, head, z, labels, noise, "log_expected")
    for row in range(6):
        logits = [task.model.head(head, (z.mean[row] + z.std[row] * eps)) for eps in noise[row]]
        losses = torch.stack([F.cross_entropy(scores, labels[row]) for scores in logits])
        torch.testing.assert_close(expected_log[row], losses.mean())
        torch.testing.assert_close(log_expected[row], -(-losses).exp().mean().log())
    assert (log_expected < expected_log).all(), "Jensen"


def test_one_sample_has_one_loss():
    task, head, z, labels, noise = sampled(samples=1)
    one, other = (
        sampled_losses(task, head, z, labels, noise, kind)
        for kind in ("expected_log", "log_expected")
    )
    torch.testing.assert_close(one, other)
