"""ResNet-18 with group normalization: sizes, agreement with a plain module, initialization."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core.rng import new_key
from fedtailor.models import build_model
from fedtailor.models.resnet import group_norm
from models.checks import check_equals, images, shake, size


class PerGroup(nn.Module):
    """Group normalization, then a scale and a shift for every 32 channels."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels // 32))
        self.shift = nn.Parameter(torch.zeros(channels // 32))
        self.normalize = nn.GroupNorm(channels // 32, channels, affine=False)

    def forward(self, x):
        scale = self.scale.repeat_interleave(32).view(1, -1, 1, 1)
        shift = self.shift.repeat_interleave(32).view(1, -1, 1, 1)
        return self.normalize(x) * scale + shift


class PlainBlock(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
            PerGroup(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            PerGroup(channels),
        )
        self.shortcut = nn.Sequential()
        if inputs != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), PerGroup(channels)
            )

    def forward(self, x):
        return F.relu(self.path(x) + self.shortcut(x))


def plain_network(image_channels, num_classes):
    stem = [
        nn.Conv2d(image_channels, 64, 7, 2, 3, bias=False),
        PerGroup(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    sizes = [
        (64, 64, 1),
        (64, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
        (128, 256, 2),
        (256, 256, 1),
        (256, 512, 2),
    ]
    blocks = [PlainBlock(*size) for size in [*sizes, (512, 512, 1)]]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes)
    )


@pytest.mark.parametrize(
    ("image_channels", "classes", "body", "head"),
    [(3, 200, 11_167_212, 102_600), (1, 10, 11_160_940, 5_130)],
)
def test_numbers_of_parameters(image_channels, classes, body, head):
    model = build_model("resnet18_gn", (image_channels, 64, 64), classes)
    assert (size(model, "body"), size(model, "head"), size(model, "buffer", "extra")) == (
        body,
        head,
        0,
    )
    assert model.feature_dim == 512
    assert sum(math.prod(model.shapes[name]) for name in model.norm) == 300
    assert {model.groups[name] for name in model.norm} == {"body"}


@pytest.mark.parametrize("shape", [(1, 32, 32)])
def test_outputs_and_gradients_equal_a_plain_module(shape, float64):
    check_equals(
        build_model("resnet18_gn", shape, 10),
        shake(plain_network(shape[0], 10)),
        images(2, shape),
        padding=1,
    )


def test_a_group_is_normalized_by_itself():
    x = images(2, (64, 3, 3))
    params = {"norm.weight": torch.tensor([2.0, 3.0]), "norm.bias": torch.tensor([0.5, -0.5])}
    y = group_norm(params, "norm", x).unflatten(1, (2, 32)).flatten(2)
    torch.testing.assert_close(y.mean(2), torch.tensor([[0.5, -0.5]] * 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        y.std(2, correction=0), torch.tensor([[2.0, 3.0]] * 2), rtol=1e-4, atol=0
    )


def test_initialization_is_he_normal_by_fan_out_with_pytorchs_head():
    model = build_model("resnet18_gn", (3, 32, 32), 10)
    params = model.init(new_key(3))
    assert list(params) == list(model.groups) == list(model.shapes)
    for name, value in params.items():
        assert value.shape == model.shapes[name]
        if name in model.norm:
            assert (value == (1 if name.endswith("weight") else 0)).all()
        elif name.startswith("head"):
            assert 0.8 / math.sqrt(512) < value.abs().max() <= 1 / math.sqrt(512) * (1 + 1e-6)
        else:
            scaled = value * math.sqrt(value.shape[0] * math.prod(value.shape[2:]) / 2)
            assert abs(scaled.mean()) < 5 / math.sqrt(value.numel())
            assert abs(scaled.square().mean() - 1) < 5 * math.sqrt(2 / value.numel())
            assert scaled.abs().max() > 3  # uniform numbers of this variance end at 1.73
