"""Checks of a user's module with small passes, before it trains."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
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
    """Return the module's own logits in evaluation mode; lazy layers get their shapes here."""
    # A clone, since a module may change its input.
    logits = _run(name, lambda: module(x.clone()), x)
    expected = (len(x), num_classes)
    if not isinstance(logits, Tensor) or logits.shape != expected:
        reason = (
            f"it must return logits of shape {expected} for {len(x)} examples, got {_kind(logits)}"
        )
        raise refusal(name, reason)
    return logits


def check_equal(name: str, model: ModuleModel, x: Tensor, expected: Tensor) -> None:
    """Check that the head applied to the body's features gives the module's logits."""
    # The features alone first: their shape says whether the head is the last layer.
    params = model.values()
    z, _ = _run(name, lambda: _features(model, params, x, torch.ones(len(x)), training=False), x)
    advice = (
        f"nothing may follow the head '{model.head_name}' (softmax belongs in the loss); "
        "pass head=... to choose another layer"
    )
    shape = (len(x), model.feature_dim)
    if not isinstance(z, Tensor) or z.shape != shape:
        got = _kind(z)
        reason = f"without its head it must return features of shape {shape}, got {got}; {advice}"
        raise refusal(name, reason)

    if not _close(model.head(params, z), expected):
        reason = f"its output is not its head applied to the features before it; {advice}"
        raise refusal(name, reason)


def check_randomness(name: str, module: nn.Module, x: Tensor, *, training: bool) -> None:
    """Check that a forward pass draws no random numbers.

    For training, pass the skeleton: its dropout is keyed.
    """
    # Hooks on a copy compare the states of all generators around every layer.
    observed = copy.deepcopy(module).train(training)
    drawing: list[str] = []
    for layer_name, layer in observed.named_modules():
        _observe_draws(layer, layer_name, drawing)

    with calling(Call(torch.ones(len(x)), new_key(0))):
        _run(name, lambda: observed(x.clone()), x)

    if drawing:
        raise refusal(
            name,
            f"{_layer(observed, drawing[0])} draws random numbers that no key controls "
            "(nn.Dropout and nn.Dropout1d/2d/3d are supported, as layers of their own)",
        )


def check_constants(name: str, skeleton: nn.Module, x: Tensor) -> None:
    """Check that a forward pass in training changes no buffers or parameters."""
    module = copy.deepcopy(skeleton).train()

    # Other parameters, so that buffers that have converged to them change too.
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.detach().mul_(1 + 0.1 * torch.rand(parameter.shape, generator=generator))

    before = {path: tensor.detach().clone() for path, tensor in _tensors(module).items()}
    with calling(Call(torch.ones(len(x)), new_key(0))):
        _run(name, lambda: module(x.clone()), x)

    for path, tensor in _tensors(module).items():
        if not torch.equal(tensor, before[path]):
            layer_name, _, last = path.rpartition(".")
            raise refusal(
                name,
                f"{_layer(module, layer_name)} changes its '{last}' in a forward pass "
                "(only BatchNorm may: its statistics are kept per client)",
            )


def check_padding(name: str, model: ModuleModel, x: Tensor) -> None:
    """Check that a row of weight 0 changes neither the other rows nor the buffers."""
    # The last row is padding: once it is absent, once it is there with weight 0.
    params = model.values()
    real = len(x) - 1
    weight = torch.cat([torch.ones(real), torch.zeros(1)])
    with torch.no_grad():
        z, buffers = _run(
            name, lambda: _features(model, params, x[:real], weight[:real], training=True), x
        )
        padded_z, padded_buffers = _run(
            name, lambda: _features(model, params, x, weight, training=True), x
        )

    same_buffers = all(_close(value, buffers[path]) for path, value in padded_buffers.items())
    if not same_buffers or not _close(padded_z[:real], z):
        raise refusal(
            name,
            "in training the features of an example depend on the other rows of its batch, even "
            "on padding",
        )


def check_gradients(name: str, model: ModuleModel, x: Tensor) -> None:
    """Check that gradients are those of a module that really holds the parameters.

    Here it holds them in its forward pass only: layers that run again in the backward pass would
    have other ones. A module whose gradients cannot be compared is not refused.
    """
    # Other parameters than the module's own; the statistics of normalization stay.
    generator = torch.Generator().manual_seed(1)
    params = model.values()
    trained = [path for path, group in model.groups.items() if group == "body"]
    for path in trained:
        factor = 1 + 0.1 * torch.rand(params[path].shape, generator=generator)
        params[path] = (params[path] * factor).requires_grad_()

    copied = _gradients_of_copy(model, params, trained, x)
    if copied is None:
        return

    # What is wrong with a forward pass is not looked for here.
    z, expected = copied
    try:
        with torch.enable_grad():
            called, _ = _features(model, params, x, torch.ones(len(x)), training=True)
            number = _one_number(called)
    except Exception:
        return
    if not number.requires_grad or not _close(called, z):
        return

    # Afterwards, as in training: the module has its own parameters again.
    leaves = [params[path] for path in trained]
    try:
        gradients = torch.autograd.grad(number, leaves, allow_unused=True, materialize_grads=True)
    except Exception:
        is_right = False
    else:
        is_right = _close_gradients(gradients, expected)
    if is_right:
        return

    # Gradients that are not the same twice cannot be compared.
    again = _gradients_of_copy(model, params, trained, x)
    if again is not None and _close_gradients(again[1], expected):
        raise refusal(
            name,
            "its backward pass runs layers again with other weights (torch.utils.checkpoint): turn "
            "gradient checkpointing off",
        )


def _gradients_of_copy(
    model: ModuleModel, params: dict[str, Tensor], trained: list[str], x: Tensor
) -> tuple[Tensor, list[Tensor]] | None:
    """Return features and gradients of a copy of the body that holds the parameters.

    None if it has no gradients.
    """
    module = copy.deepcopy(model.skeleton).train()
    try:
        leaves = [module.get_parameter(path) for path in trained]
        with torch.no_grad():
            for path, leaf in zip(trained, leaves, strict=True):
                leaf.copy_(params[path])

        with torch.enable_grad(), calling(Call(torch.ones(len(x)), new_key(0))):
            z = module(x.clone())
            torch.autograd.backward(_one_number(z))
    except Exception:
        return None

    gradients = []
    for leaf in leaves:
        gradients.append(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
    return z.detach(), gradients


def _one_number(z: Tensor) -> Tensor:
    """Return a sum of features, each times a number of its own."""
    # The plain sum may be the same for all parameters, such as after a normalization.
    factors = 2 * torch.rand(z.shape, generator=torch.Generator().manual_seed(2)) - 1
    return (z * factors).sum()


def _close_gradients(gradients: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Compare up to rounding; what is not finite counts as equal."""
    gradients = [gradient.to_dense() for gradient in gradients]
    expected = [gradient.to_dense() for gradient in expected]
    if not all(torch.isfinite(gradient).all() for gradient in (*gradients, *expected)):
        return True

    # A gradient of 0 may have come out as a small number.
    largest = [float(gradient.abs().max()) if gradient.numel() else 0.0 for gradient in expected]
    least_scale = 0.01 * max(largest, default=0.0)
    for gradient, right, scale in zip(gradients, expected, largest, strict=True):
        bound = 1e-3 * max(scale, least_scale)
        if not torch.allclose(gradient, right, rtol=1e-3, atol=bound):
            return False

    return True


def _features(
    model: ModuleModel, params: dict[str, Tensor], x: Tensor, weight: Tensor, *, training: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    return model.features(params, x.clone(), weight=weight, key=new_key(0), training=training)


def _run(name: str, function: Callable[[], Any], x: Tensor) -> Any:
    """Run a part of the module; an exception becomes a sentence."""
    try:
        with torch.no_grad():
            return function()
    except ConfigError:
        raise
    except Exception as error:
        shape = tuple(x.shape)
        kind = type(error).__name__
        reason = f"a forward pass on inputs of shape {shape} raises {kind}: {error}"
        raise refusal(name, reason) from error


def _close(result: Tensor, expected: Tensor) -> bool:
    """Compare up to the rounding of float32, relative to the largest value."""
    # An absolute bound beside the relative one, for entries near 0.
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    return torch.allclose(result, expected, rtol=1e-4, atol=1e-4 * max(scale, 1e-6), equal_nan=True)


def _kind(value: Any) -> str:
    """Return the shape of a tensor, or the type of anything else."""
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _layer(module: nn.Module, name: str) -> str:
    """Return a layer in words."""
    kind = type(module.get_submodule(name)).__name__
    return f"layer '{name}' ({kind})" if name else f"its own forward ({kind})"


def _random_states() -> list[object]:
    """Return the states of the generators that a module could draw from: PyTorch, numpy, Python."""
    state = np.random.get_state(legacy=False)
    return [
        torch.get_rng_state().tolist(),
        repr(state),
        state["state"]["key"].tobytes(),
        random.getstate(),
    ]


def _observe_draws(layer: nn.Module, name: str, drawing: list[str]) -> None:
    """Add the layer's name to ``drawing`` when its forward pass draws; inner layers come first."""
    before: list[object] = []

    def remember(module: nn.Module, inputs: Any) -> None:
        before.append(_random_states())

    def compare(module: nn.Module, inputs: Any, output: Any) -> None:
        if before.pop() != _random_states():
            drawing.append(name)

    layer.register_forward_pre_hook(remember)
    layer.register_forward_hook(compare)
