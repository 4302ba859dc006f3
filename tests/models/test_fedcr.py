"""The networks of FedCR: sizes, with and without the Gaussian layer, and the papers' modules."""

import math

import pytest
import torch
from torch import nn

from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.models.networks import fedcr_cnn, fedcr_mlp
from fedtailor.statistics.bottleneck import GaussianModel

GRAY = (1, 28, 28)
COLOR = (3, 32, 32)
RELEASED = {"channels1": 4, "channels2": 12}


def size(model, group):
    return sum(math.prod(model.shapes[name]) for name, of in model.groups.items() if of == group)


@pytest.mark.parametrize(
    ("function", "shape", "classes", "options", "total"),
    [
        (fedcr_mlp, GRAY, 10, {}, 1_863_690),
        (fedcr_cnn, GRAY, 10, RELEASED, 1_258_798),
        (fedcr_cnn, GRAY, 10, {}, 2_213_578),
        (fedcr_cnn, COLOR, 10, {}, 2_806_602),
        (fedcr_cnn, COLOR, 100, {}, 2_898_852),
    ],
)
def test_deterministic_networks_have_the_papers_sizes(function, shape, classes, options, total):
    model = function(shape, classes, **options)
    assert size(model, "body") + size(model, "head") == total
    assert model.feature_dim == 1024 and not model.norm


@pytest.mark.parametrize(
    ("function", "shape", "classes", "options", "latent_dim", "body", "head"),
    [
        (fedcr_mlp, GRAY, 10, {}, 256, 2_378_240, 2_570),
        (fedcr_cnn, GRAY, 10, RELEASED, 512, 2_298_148, 5_130),
        (fedcr_cnn, GRAY, 10, {}, 512, 3_252_928, 5_130),
        (fedcr_cnn, COLOR, 10, {}, 256, 3_321_152, 2_570),
        (fedcr_cnn, COLOR, 100, {}, 512, 3_845_952, 51_300),
        (fedcr_cnn, COLOR, 100, {}, 256, 3_321_152, 25_700),
    ],
)
def test_stochastic_networks_have_the_papers_sizes(
    function, shape, classes, options, latent_dim, body, head
):
    model = GaussianModel(function(shape, classes, **options), latent_dim, classes)
    assert (size(model, "body"), size(model, "head")) == (body, head)


def tail(inputs):
    linear = [
        nn.Linear(inputs, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    ]
    return [nn.Flatten(), *linear]


def stages(inputs, first, second):
    convolutions = nn.Conv2d(inputs, first, 5), nn.Conv2d(first, second, 5)
    return [layer for conv in convolutions for layer in (conv, nn.ReLU(), nn.MaxPool2d(2))]


NETWORKS = {
    "mlp": (fedcr_mlp, GRAY, {}, lambda: tail(784)),
    "cnn": (fedcr_cnn, COLOR, {}, lambda: [*stages(3, 64, 64), *tail(1600)]),
    "released": (fedcr_cnn, GRAY, RELEASED, lambda: [*stages(1, 4, 12), *tail(192)]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_equal_the_papers_network(name, float64):
    function, shape, options, layers = NETWORKS[name]
    model = function(shape, 10, **options)
    network = nn.Sequential(*layers())
    names = list(model.groups)
    params = {
        key: value.detach().clone().requires_grad_()
        for key, value in zip(names, network.parameters())
    }
    assert [tuple(value.shape) for value in params.values()] == list(model.shapes.values())
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    z, buffers = model.features(params, x, weight=torch.ones(2), key=new_key(0), training=True)
    logits = model.head(params, z)
    expected = network(x)
    assert z.shape == (2, 1024) and buffers == {}
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-13)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for value, reference in zip(params.values(), network.parameters()):
        torch.testing.assert_close(value.grad, reference.grad, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("channels", [0, 2.5, True])
def test_channels_are_checked(channels):
    with pytest.raises(ConfigError, match=r"model\.options\.channels2 must be") as caught:
        fedcr_cnn(COLOR, 10, channels2=channels)
    assert caught.value.key == "model.options.channels2"
