"""The networks of pFedVEM: sizes, agreement with the paper's modules, other image sizes."""

import pytest
import torch
from torch import nn

from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.models import build_model
from models.checks import check_equals, images, run, shake, size


def lenet_network(pixels=32):
    """Return the network of CIFAR-10 as the paper writes it: activation before pooling."""
    stages = [
        nn.Conv2d(3, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    inputs = 32 * ((pixels - 12) // 4) ** 2
    hidden = [nn.Flatten(), nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    return nn.Sequential(*stages, *hidden, nn.Linear(84, 10))


def cnn6_network(pixels=32):
    """Return the network of CIFAR-100 and SUN397."""
    layers = []
    inputs = 3
    for channels in (32, 64, 128, 256, 100):
        layers += [
            nn.Conv2d(inputs, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, 2, padding=1),
        ]
        inputs = channels
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(100, 10))


NETWORKS = {"lenet": lenet_network, "cnn6": cnn6_network}


@pytest.mark.parametrize(
    ("name", "pixels", "classes", "body", "head"),
    [
        ("lenet", 32, 10, 120_332, 850),
        ("cnn6", 32, 20, 618_916, 2_020),
        ("cnn6", 64, 3, 618_916, 303),
    ],
)
def test_numbers_of_parameters_are_those_of_the_paper(name, pixels, classes, body, head):
    model = build_model(name, (3, pixels, pixels), classes)
    assert (size(model, "body"), size(model, "head")) == (body, head)
    assert size(model, "buffer", "extra") == 0 and not model.norm


@pytest.mark.parametrize(
    ("name", "pixels"), [("lenet", 32), ("lenet", 28), ("cnn6", 32), ("cnn6", 64), ("cnn6", 5)]
)
def test_outputs_and_gradients_equal_the_papers_network(name, pixels, float64):
    shape = (3, pixels, pixels)
    check_equals(build_model(name, shape, 10), shake(NETWORKS[name](pixels)), images(4, shape))


def test_maps_of_cnn6_keep_a_border():
    model = build_model("cnn6", (1, 1, 1), 4)
    assert run(model, model.init(new_key(0)), torch.ones(2, 1, 1, 1))[0].isfinite().all()


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("lenet", (3, 15, 32), "at least 16 x 16 pixels, got inputs of shape (3, 15, 32)."),
        ("lenet", (784,), "at least 16 x 16 pixels, got inputs of shape (784)."),
        (
            "cnn6",
            (784,),
            "'cnn6' needs images (channels, height, width), got inputs of shape (784).",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name, shape, told):
    with pytest.raises(ConfigError) as caught:
        build_model(name, shape, 10)
    assert caught.value.key == "model.name" and told in caught.value.message
    build_model("lenet", (1, 16, 16), 10)
