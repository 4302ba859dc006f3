"""The network for series: agreement with a plain module, stacked clients, and inputs of others."""

import pytest
import torch
from torch import nn

from fedtailor.core.errors import ConfigError
from fedtailor.models import build_model
from models.checks import check_equals, check_stacked, shake, size


class MeanOverTimes(nn.Module):
    def forward(self, x):
        return x.mean(2)


def plain_network(channels, classes):
    layers = []
    for inputs, outputs, kernel in ((channels, 32, 7), (32, 64, 5), (64, 64, 3)):
        convolution = nn.Conv1d(inputs, outputs, kernel, padding="same")
        layers += [convolution, nn.GroupNorm(8, outputs), nn.ReLU()]

    return nn.Sequential(*layers, MeanOverTimes(), nn.Linear(64, classes))


def series(count, shape=(6, 9)):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def test_outputs_and_gradients_equal_a_plain_module(float64):
    model = build_model("series_cnn", (6, 9), 3)
    assert (size(model, "body"), size(model, "head")) == (24_352, 195)
    assert model.feature_dim == 64 and len(model.norm) == 6
    check_equals(model, shake(plain_network(6, 3)), series(4))


def test_stacked_clients_equal_single_ones(float64):
    check_stacked(build_model("series_cnn", (6, 9), 3), series(3))


def test_pictures_and_rows_are_refused():
    for shape in ((1, 28, 28), (64,)):
        with pytest.raises(ConfigError, match="'series_cnn' needs series"):
            build_model("series_cnn", shape, 3)
