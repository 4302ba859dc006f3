"""The built-in models: sizes, the networks of the papers, initialization, layout of memory."""

import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.core.task import ALL, BODY, Task
from fedtailor.models import build_model


def paper_network(name, num_classes):
    """Return the network as the papers write it: activation before pooling."""
    conv = {
        "emnist_cnn": [nn.Conv2d(1, 16, 5), nn.Conv2d(16, 32, 5, padding=1)],
        "cifar_cnn": [
            nn.Conv2d(3, 16, 5),
            nn.Conv2d(16, 32, 5, padding=1),
            nn.Conv2d(32, 64, 3, padding=1),
        ],
    }
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, num_classes)
        )
    stages = [layer for c in conv[name] for layer in (c, nn.LeakyReLU(0.01), nn.MaxPool2d(2, 2))]
    flat = {"emnist_cnn": 800, "cifar_cnn": 576}[name]
    tail = [nn.Flatten(), nn.Linear(flat, 128), nn.LeakyReLU(0.01), nn.Linear(128, num_classes)]
    return nn.Sequential(*stages, *tail)


SHAPES = {"emnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32), "mlp": (1, 28, 28)}


def images(count, shape, layout):
    channels, height, width = shape
    values = torch.randn(count, height, width, channels, generator=torch.Generator().manual_seed(1))
    x = values.permute(0, 3, 1, 2)
    return x if layout == "channels_last" else x.contiguous()


def size(model, group):
    return sum(math.prod(model.shapes[name]) for name, of in model.groups.items() if of == group)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "body", "head"),
    [
        ("emnist_cnn", (1, 28, 28), 62, 115_776, 7_998),
        ("cifar_cnn", (3, 32, 32), 10, 106_400, 1_290),
        ("cifar_cnn", (3, 32, 32), 100, 106_400, 12_900),
        ("mlp", (1, 28, 28), 10, 78_500, 1_010),
    ],
)
def test_numbers_of_parameters_are_those_of_the_papers(name, shape, classes, body, head):
    model = build_model(name, shape, classes)
    assert (size(model, "body"), size(model, "head")) == (body, head)
    params = model.init(new_key(0))
    assert {key: tuple(value.shape) for key, value in params.items()} == dict(model.shapes)
    assert list(params) == list(model.groups) == list(model.shapes)
    assert not model.norm


def test_groups_are_in_layer_order():
    names = list(build_model("cifar_cnn", (3, 32, 32), 10).groups)
    layers = ["conv1", "conv2", "conv3", "linear", "head"]
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    task = Task(build_model("mlp", (4,), 3), 3, (4,))
    assert task.names("head") == ["head.weight", "head.bias"]
    assert set(task.names(*BODY)) | set(task.names("head")) == set(task.names(*ALL))


@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize("name", ["emnist_cnn", "cifar_cnn", "mlp"])
def test_outputs_and_gradients_equal_the_papers_network(name, layout, float64):
    model = build_model(name, SHAPES[name], 10)
    network = paper_network(name, 10)
    x = images(6, SHAPES[name], layout)
    y = torch.arange(6)
    # convolution weights lie channels last, as in the training buffer
    params = {key: value.detach() for key, value in zip(model.groups, network.parameters())}
    if layout == "channels_last":
        params = {
            k: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v
            for k, v in params.items()
        }
    params = {
        key: value.clone(memory_format=torch.preserve_format).requires_grad_()
        for key, value in params.items()
    }
    z, buffers = model.features(params, x, weight=torch.ones(6), key=new_key(0), training=True)
    logits = model.head(params, z)
    expected = network(x)
    assert z.shape == (6, model.feature_dim) and buffers == {}
    torch.testing.assert_close(
        logits, expected, rtol=0, atol=1e-13
    )  # sums of a few hundred numbers of size 1
    F.cross_entropy(logits, y).backward()
    F.cross_entropy(expected, y).backward()
    for value, reference in zip(params.values(), network.parameters()):
        torch.testing.assert_close(value.grad, reference.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["emnist_cnn", "cifar_cnn", "mlp"])
def test_initialization_is_pytorchs_distribution(name):
    model = build_model(name, SHAPES[name], 10)
    params = model.init(new_key(3))
    for key, value in params.items():
        bound = 1 / math.sqrt(math.prod(model.shapes[key.replace("bias", "weight")][1:]))
        scaled = value.double() / bound
        assert scaled.abs().max() <= 1 + 1e-6
        if (
            value.numel() > 5_000
        ):  # a uniform number in [-1, 1] has variance 1/3 and fourth moment 1/5
            assert abs(scaled.mean()) < 5 / math.sqrt(3 * value.numel())
            assert abs(scaled.square().mean() - 1 / 3) < 5 * math.sqrt(
                (1 / 5 - 1 / 9) / value.numel()
            )
            assert scaled.abs().max() > 0.99
    assert not torch.equal(params["head.bias"], params["head.weight"][:, 0])


def test_initialization_depends_on_the_key_alone():
    model = build_model("emnist_cnn", (1, 28, 28), 10)
    first = model.init(new_key(0))
    again = model.init(new_key(0))
    other = model.init(new_key(1))
    for name, value in first.items():
        assert torch.equal(value, again[name]) and not torch.equal(value, other[name])
    assert not torch.equal(first["conv1.bias"], model.init(new_key(0, client=1))["conv1.bias"])


@pytest.mark.parametrize("name", ["emnist_cnn", "cifar_cnn", "mlp"])
def test_stacked_clients_equal_a_loop(name, float64):
    model = build_model(name, SHAPES[name], 10)
    clients = [model.init(new_key(0, client=client)) for client in range(3)]
    x = torch.stack([images(4, SHAPES[name], "channels_last") + client for client in range(3)])
    weight = torch.ones(3, 4)

    def run(params, x, weight):
        return model.features(params, x, weight=weight, key=new_key(0), training=True)[0]

    stacked = {key: torch.stack([client[key] for client in clients]) for key in clients[0]}
    batched = torch.func.vmap(run)(stacked, x, weight)
    for client in range(3):
        torch.testing.assert_close(
            batched[client], run(clients[client], x[client], weight[client]), rtol=0, atol=1e-12
        )


def test_stacked_keys_give_each_client_its_own_parameters():
    model = build_model("mlp", (5,), 3)
    stacked = torch.func.vmap(lambda client: model.init(new_key(0)._replace(client=client)))(
        torch.arange(3)
    )
    for client in range(3):
        for name, value in model.init(new_key(0, client=client)).items():
            assert torch.equal(stacked[name][client], value)


def test_other_image_sizes_and_channels_work():
    for name, shape in [
        ("cifar_cnn", (1, 28, 28)),
        ("cifar_cnn", (3, 64, 48)),
        ("emnist_cnn", (3, 16, 16)),
    ]:
        model = build_model(name, shape, 4)
        z, _ = model.features(
            model.init(new_key(0)),
            torch.zeros(2, *shape),
            weight=torch.ones(2),
            key=new_key(0),
            training=False,
        )
        assert z.shape == (2, 128)


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [
        ("cifar_cnn", (3, 8, 8), 16),
        ("cifar_cnn", (3, 32, 15), 16),
        ("emnist_cnn", (784,), 12),
        ("emnist_cnn", (1, 11, 28), 12),
    ],
)
def test_too_small_images_are_refused_with_the_size_needed(name, shape, smallest):
    with pytest.raises(
        ConfigError, match=f"'{name}' needs images .* at least {smallest} x {smallest}"
    ) as caught:
        build_model(name, shape, 10)
    assert caught.value.key == "model.name"
    build_model(name, (1, smallest, smallest), 10)


@pytest.mark.parametrize("hidden", [0, -1, 2.5, True])
def test_the_hidden_width_is_checked(hidden):
    with pytest.raises(ConfigError, match=r"model\.options\.hidden must be") as caught:
        build_model("mlp", (4,), 3, {"hidden": hidden})
    assert caught.value.key == "model.options.hidden"


@pytest.mark.parametrize("name", ["emnist_cnn", "cifar_cnn", "mlp"])
def test_models_survive_being_sent_to_a_process(name):
    model = build_model(name, SHAPES[name], 10)
    copy = pickle.loads(pickle.dumps(model))
    assert copy.shapes == model.shapes
    assert all(
        torch.equal(a, b)
        for a, b in zip(copy.init(new_key(0)).values(), model.init(new_key(0)).values())
    )
