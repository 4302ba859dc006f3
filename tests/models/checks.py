"""Checks of built-in models: sizes, and agreement with a plain module of the same weights."""

import math

import torch
import torch.nn.functional as F

from fedtailor.core.rng import new_key

TOLERANCES = {"rtol": 1e-10, "atol": 1e-10}


def size(model, *groups):
    """Return the number of parameters of some groups."""
    return sum(
        math.prod(model.shapes[name]) for name, group in model.groups.items() if group in groups
    )


def images(count, shape, seed=0):
    """Return normal values that lie channels last in memory."""
    channels, height, width = shape
    return torch.randn(
        count, height, width, channels, generator=torch.Generator().manual_seed(seed)
    ).movedim(-1, -3)


def weights_of(network, model):
    """Return the parameters and buffers of a plain module under the names of the model: both are in
    layer order."""
    state = network.state_dict()
    assert [tuple(value.shape) for value in state.values()] == list(model.shapes.values())
    values = (value.to(torch.get_default_dtype(), copy=True) for value in state.values())
    return {
        name: value.requires_grad_(model.groups[name] != "buffer")
        for name, value in zip(model.groups, values)
    }


def shake(network):
    """Move all parameters, so that scales of 1 and shifts of 0 hide nothing."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.1 * torch.randn(value.shape, generator=generator)
    return network


def run(model, params, x, weight=None, *, training=True):
    """Return logits and the updated buffers."""
    weight = torch.ones(len(x)) if weight is None else weight
    z, buffers = model.features(params, x, weight=weight, key=new_key(0), training=training)
    assert z.shape == (len(x), model.feature_dim)
    return model.head(params, z), buffers


def check_equals(model, network, x, padding=2):
    """Check outputs, gradients and buffers of one training step with padding against a plain
    module's without."""
    params = weights_of(network, model)
    padded = torch.cat([x[:1], torch.full((padding, *x.shape[1:]), 1e3), x[1:]])
    weight = torch.tensor([1.0] + [0.0] * padding + [1.0] * (len(x) - 1))
    y = torch.arange(len(x)) % 3
    logits, buffers = run(model, params, padded, weight)
    expected = network.train()(x)
    torch.testing.assert_close(logits[weight > 0], expected, **TOLERANCES)
    F.cross_entropy(logits[weight > 0], y).backward()
    F.cross_entropy(expected, y).backward()
    trained = [value for value in params.values() if value.requires_grad]
    for value, reference in zip(trained, network.parameters(), strict=True):
        torch.testing.assert_close(value.grad, reference.grad, **TOLERANCES)
        assert reference.grad.abs().max() > 1e-8
    for name, reference in zip(params, network.state_dict().values(), strict=True):
        if model.groups[name] == "buffer":
            torch.testing.assert_close(buffers[name], reference.to(x.dtype), **TOLERANCES)
    assert set(buffers) == {name for name, group in model.groups.items() if group == "buffer"}


def check_stacked(model, x):
    """Check that two stacked clients get the gradients and buffers that each gets alone."""
    clients = [model.init(new_key(0, client=client)) for client in range(2)]
    weight = torch.ones(2, len(x))
    weight[0, -1] = 0

    def loss(params, x, weight):
        logits, buffers = run(model, params, x, weight)
        return (logits.square().sum(1) * weight).sum(), buffers

    gradient = torch.func.grad(loss, has_aux=True)
    batch = torch.stack([x, x + 1])
    stacked = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    results = torch.func.vmap(gradient)(stacked, batch, weight)
    for client, params in enumerate(clients):
        alone = gradient(params, batch[client], weight[client])
        for mine, reference in zip(results, alone, strict=True):
            for name, value in reference.items():
                torch.testing.assert_close(mine[name][client], value, **TOLERANCES)
