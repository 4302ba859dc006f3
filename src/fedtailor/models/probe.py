"""What a user's module is checked for before it trains: small forward passes, and refusals by name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.models.module_model import ModuleModel
from fedtailor.models.structure import refusal
from fedtailor.models.substitutes import Call, calling

ROWS = 3


def examples(input_shape: tuple[int, ...]) -> Tensor:
    """Return a few random examples in [-1, 1), the same at every call."""
    return 2 * torch.rand((ROWS, *input_shape), generator=torch.Generator().manual_seed(0)) - 1


def outputs(name: str, module: nn.Module, x: Tensor, num_classes: int) -> Tensor:
    """Return the module's own logits in evaluation mode; lazy layers take their shapes here."""
    logits = _run(name, lambda: module(x.clone()), x)
    if not isinstance(logits, Tensor) or logits.shape != (len(x), num_classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise refusal(
            name, f"it must return logits of shape ({len(x)}, {num_classes}) for {len(x)} examples, got {got}"
        )
    return logits


def check_equal(name: str, model: ModuleModel, x: Tensor, expected: Tensor) -> None:
    """Check that head and body together are the module."""
    params, ones = model.values(), torch.ones(len(x))
    run = partial(model.features, params, weight=ones, key=new_key(0), training=False)
    z, _ = _run(name, lambda: run(x.clone()), x)
    advice = (
        f"nothing may follow the head '{model.head_name}' (softmax belongs to the loss); head=... names another one"
    )
    expected_shape = (len(x), model.feature_dim)
    if not isinstance(z, Tensor) or z.shape != expected_shape:
        got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise refusal(name, f"without its head it must return features {expected_shape}, got {got}; {advice}")
    if not _close(model.head(params, z), expected):
        raise refusal(name, f"its output is not its head applied to the features before it; {advice}")


def check_randomness(name: str, module: nn.Module, x: Tensor, *, training: bool) -> None:
    """Check that a forward pass draws no random numbers; in training give the skeleton, whose dropout is keyed."""
    watched = copy.deepcopy(module).train(training)
    drawing: list[str] = []
    for prefix, layer in watched.named_modules():
        _watch_randomness(layer, prefix, drawing)
    with calling(Call(torch.ones(len(x)), new_key(0))):
        _run(name, lambda: watched(x.clone()), x)
    if drawing:
        raise refusal(
            name,
            f"{_layer(watched, drawing[0])} draws random numbers that no key controls "
            "(nn.Dropout and nn.Dropout1d/2d/3d are supported, as layers of their own)",
        )


def check_state(name: str, skeleton: nn.Module, x: Tensor) -> None:
    """Check that a forward pass in training changes no buffers or parameters."""
    watched = copy.deepcopy(skeleton).train()
    generator = torch.Generator().manual_seed(1)
    for parameter in watched.parameters():  # moved, so that buffers which have converged to them move too
        parameter.detach().mul_(1 + 0.1 * torch.rand(parameter.shape, generator=generator))
    before = {key: tensor.detach().clone() for key, tensor in _state(watched).items()}
    with calling(Call(torch.ones(len(x)), new_key(0))):
        _run(name, lambda: watched(x.clone()), x)
    for key, tensor in _state(watched).items():
        if not torch.equal(tensor, before[key]):
            owner, _, last = key.rpartition(".")
            raise refusal(
                name,
                f"{_layer(watched, owner)} changes its '{last}' in a forward pass "
                "(only BatchNorm may, whose statistics are kept per client)",
            )


def check_padding(name: str, model: ModuleModel, x: Tensor) -> None:
    """Check that a row of weight 0 changes neither the other rows nor the buffers."""
    params, real = model.values(), len(x) - 1
    weight = torch.cat([torch.ones(real), torch.zeros(1)])

    def features(rows: int) -> tuple[Tensor, dict[str, Tensor]]:
        return model.features(params, x[:rows].clone(), weight=weight[:rows], key=new_key(0), training=True)

    with torch.no_grad():
        alone, padded = _run(name, lambda: features(real), x), _run(name, lambda: features(real + 1), x)
    buffers = all(_close(value, alone[1][key]) for key, value in padded[1].items())
    if not buffers or not _close(padded[0][:real], alone[0]):
        raise refusal(
            name, "in training the features of an example depend on the other rows of its batch, even on padding"
        )


def _run(name: str, function: Callable[[], Any], x: Tensor) -> Any:
    """Run a part of the module; what it raises becomes a sentence."""
    try:
        with torch.no_grad():
            return function()
    except ConfigError:
        raise
    except Exception as error:
        shape = tuple(x.shape)
        raise refusal(
            name, f"a forward pass on inputs of shape {shape} raises {type(error).__name__}: {error}"
        ) from error


def _close(result: Tensor, expected: Tensor) -> bool:
    """Compare up to the rounding of float32, relative to the largest value."""
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    return torch.allclose(result, expected, rtol=1e-4, atol=1e-4 * max(scale, 1e-6), equal_nan=True)


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _layer(module: nn.Module, name: str) -> str:
    """Return how to name a layer in a message."""
    kind = type(module.get_submodule(name)).__name__
    return f"layer '{name}' ({kind})" if name else f"its own forward ({kind})"


def _random_state() -> list[object]:
    """Return the states of the generators that a module could draw from: PyTorch, numpy, Python."""
    state = np.random.get_state(legacy=False)
    return [torch.get_rng_state().tolist(), repr(state), state["state"]["key"].tobytes(), random.getstate()]


def _watch_randomness(layer: nn.Module, name: str, drawing: list[str]) -> None:
    """Record the layer's name if its forward pass draws; inner layers come first."""
    states: list[object] = []
    layer.register_forward_pre_hook(lambda module, inputs: states.append(_random_state()))

    def compare(module: nn.Module, inputs: Any, output: Any) -> None:
        if states.pop() != _random_state():
            drawing.append(name)

    layer.register_forward_hook(compare)
