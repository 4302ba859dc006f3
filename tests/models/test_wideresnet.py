"""The wide residual network: sizes, agreement with a plain module for both normalizations,
initialization."""

import math

import pytest
import torch
from torch import nn

from fedtailor.models import build_model
from marks import quick, slow
from models.checks import TOLERANCES, check_equals, images, run, shake, size

NORMS = ("group", "batch")


def build(norm, shape=(3, 32, 32), classes=10):
    return build_model("wideresnet16", shape, classes, {"norm": norm})


def plain_norm(norm, channels):
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(8, channels)


class PlainBlock(nn.Module):
    def __init__(self, inputs, channels, stride, norm):
        super().__init__()
        self.before = nn.Sequential(plain_norm(norm, inputs), nn.ReLU())
        self.path = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
            plain_norm(norm, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
        )
        if inputs != channels:
            self.projection = nn.Conv2d(inputs, channels, 1, stride, bias=False)

    def forward(self, x):
        active = self.before(x)
        return self.path(active) + (self.projection(active) if hasattr(self, "projection") else x)


def plain_network(norm, image_channels=3, num_classes=10):
    sizes = [(16, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    blocks = [PlainBlock(*size, norm) for size in sizes]
    tail = [
        plain_norm(norm, 128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, num_classes),
    ]
    return nn.Sequential(nn.Conv2d(image_channels, 16, 3, padding=1, bias=False), *blocks, *tail)


@pytest.mark.parametrize("norm", quick(NORMS, "group"))
@pytest.mark.parametrize(
    ("image_channels", "classes", "body", "total"),
    [(3, 100, 690_384, 703_284), slow(1, 10, 690_096, 691_386)],
)
def test_numbers_of_parameters(image_channels, classes, body, total, norm):
    model = build(norm, (image_channels, 8, 8), classes)
    assert (size(model, "body"), size(model, "body", "head")) == (body, total)
    assert model.feature_dim == 128 and size(model, "extra") == 0
    affine = [name for name in model.norm if model.groups[name] == "body"]
    assert sum(math.prod(model.shapes[name]) for name in affine) == 690_384 - 688_560
    buffers = {name for name, group in model.groups.items() if group == "buffer"}
    assert buffers <= model.norm
    assert size(model, "buffer") == (0 if norm == "group" else 1_824 + 13)


@pytest.mark.parametrize("norm", quick(NORMS, "group"))
def test_outputs_gradients_and_buffers_equal_a_plain_module(norm, float64):
    check_equals(build(norm), shake(plain_network(norm)), images(4, (3, 32, 32)))


def test_evaluation_normalizes_by_the_running_statistics(float64):
    model = build("batch", (1, 8, 8))
    network = shake(plain_network("batch", 1))
    params = {
        name: value.detach() for name, value in zip(model.groups, network.state_dict().values())
    }
    params = {name: value.to(torch.float64, copy=True) for name, value in params.items()}
    for seed in range(3):
        x = images(4, (1, 8, 8), seed)
        network.train()(x)
        params.update(run(model, params, x)[1])
    logits, buffers = run(model, params, x, training=False)
    torch.testing.assert_close(logits, network.eval()(x), **TOLERANCES)
    assert not buffers
