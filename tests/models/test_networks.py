"""Networks of stages and linear layers: sizes, agreement with the papers' modules, small images."""

import itertools
import math
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.models import MODELS, build_model
from models.checks import check_equals, check_stacked, images, shake, size


class Paper(NamedTuple):
    """A network of a paper: its inputs, the sizes of body and head, and its layers."""

    shape: tuple[int, ...]
    body: int
    head: int
    layers: list[nn.Module]
    options: dict[str, Any] = {}


def stage(inputs, outputs, kernel, padding=0, activation=nn.ReLU):
    """Return a stage as the papers write it: activation before pooling."""
    return [nn.Conv2d(inputs, outputs, kernel, padding=padding), activation(), nn.MaxPool2d(2)]


def linear(*widths, activation=nn.ReLU):
    layers = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return layers[:-1]


def leaky():
    return nn.LeakyReLU(0.01)


def papers():
    """Return the papers' networks by a name in tests, which begins with the model's name."""
    cnn6 = []
    for inputs, outputs in zip((3, 32, 64, 128, 256), (32, 64, 128, 256, 100)):
        cnn6 += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, padding=1)]

    emnist = [*stage(1, 16, 5, activation=leaky), *stage(16, 32, 5, 1, leaky)]
    cifar = [*stage(3, 16, 5, activation=leaky), *stage(16, 32, 5, 1, leaky)]
    cifar += stage(32, 64, 3, 1, leaky)
    wide = (1024, 1024, 10)
    channels = {"channels1": 4, "channels2": 12}
    return {
        "mlp": Paper((1, 28, 28), 78_500, 1_010, linear(784, 100, 10)),
        "emnist_cnn": Paper(
            (1, 28, 28), 115_776, 1_290, [*emnist, *linear(800, 128, 10, activation=leaky)]
        ),
        "cifar_cnn": Paper(
            (3, 32, 32), 106_400, 1_290, [*cifar, *linear(576, 128, 10, activation=leaky)]
        ),
        "lenet": Paper(
            (3, 32, 32),
            120_332,
            850,
            [*stage(3, 16, 5), *stage(16, 32, 5), *linear(800, 120, 84, 10)],
        ),
        "cnn6": Paper(
            (3, 32, 32),
            618_916,
            1_010,
            [*cnn6[:-1], nn.AdaptiveAvgPool2d(1), *linear(100, 10)],
        ),
        "fedcr_mlp": Paper((1, 28, 28), 1_853_440, 10_250, linear(784, *wide)),
        "fedcr_cnn": Paper(
            (3, 32, 32),
            2_796_352,
            10_250,
            [*stage(3, 64, 5), *stage(64, 64, 5), *linear(1600, *wide)],
        ),
        "fedcr_cnn, as released": Paper(
            (1, 28, 28),
            1_248_548,
            10_250,
            [*stage(1, 4, 5), *stage(4, 12, 5), *linear(192, *wide)],
            channels,
        ),
    }


NAMES = list(papers())


@pytest.mark.parametrize("name", NAMES)
def test_sizes_outputs_and_gradients_are_those_of_the_papers(name, float64):
    paper = papers()[name]
    model = build_model(name.split(",")[0], paper.shape, 10, paper.options)
    assert (size(model, "body"), size(model, "head")) == (paper.body, paper.head)
    assert size(model, "buffer", "extra") == 0 and not model.norm

    check_equals(model, shake(nn.Sequential(*paper.layers)), images(4, paper.shape))


def test_stacked_clients_equal_single_ones(float64):
    check_stacked(build_model("cifar_cnn", (3, 32, 32), 10), images(3, (3, 32, 32)))


def test_initialization_is_pytorchs_distribution():
    model = build_model("cifar_cnn", (3, 32, 32), 10)
    params = model.init(new_key(3))
    for name, value in params.items():
        bound = 1 / math.sqrt(math.prod(model.shapes[name.replace("bias", "weight")][1:]))
        scaled = value.double() / bound
        assert scaled.abs().max() <= 1 + 1e-6

        # A uniform number in [-1, 1] has variance 1/3 and fourth moment 1/5.
        if value.numel() > 5_000:
            count = value.numel()
            assert abs(scaled.mean()) < 5 / math.sqrt(3 * count)
            assert abs(scaled.square().mean() - 1 / 3) < 5 * math.sqrt((1 / 5 - 1 / 9) / count)
    assert not torch.equal(params["head.bias"], params["head.weight"][:, 0])


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [
        ("cifar_cnn", (3, 32, 15), 16),
        ("emnist_cnn", (784,), 12),
        ("emnist_cnn", (1, 11, 28), 12),
        ("lenet", (3, 15, 32), 16),
        ("fedcr_cnn", (3, 32, 8), 16),
        ("cnn6", (784,), 1),
        ("resnet18_gn", (784,), 1),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name, shape, smallest):
    with pytest.raises(ConfigError, match=f"'{name}'") as caught:
        build_model(name, shape, 10)
    assert caught.value.key == "model.name"
    build_model(name, (1, smallest, smallest), 10)


@pytest.mark.parametrize("options", [{"hidden": 0}, {"hidden": 2.5}, {"hidden": True}])
def test_options_are_checked(options):
    with pytest.raises(ConfigError, match=r"model\.options\.hidden"):
        build_model("mlp", (4,), 2, options)


def test_every_model_of_the_table_is_built_and_sent_to_a_process():
    for name, entry in MODELS.items():
        model = build_model(name, entry.shape, 4)
        copy = pickle.loads(pickle.dumps(model))
        assert copy.shapes == model.shapes and copy.groups == model.groups
