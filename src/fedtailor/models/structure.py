"""The structure of a user's module: its head, its tensors in layer order, and what stands in for layers."""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import Tensor, nn

from fedtailor.core.errors import ConfigError, did_you_mean
from fedtailor.models.substitutes import is_batch_norm, substitute


class Owned(NamedTuple):
    """A parameter or buffer, with the layer that holds it."""

    tensor: Tensor
    layer_name: str
    layer: nn.Module


def refusal(name: str, reason: str, *, key: str = "model.name") -> ConfigError:
    """Return the error for a module that cannot be used as a model."""
    return ConfigError(f"the module '{name}' cannot be used as a model: {reason.rstrip('.')}.", key=key, got=name)


def owned_tensors(module: nn.Module) -> dict[str, Owned]:
    """Return what is trained or tracked, by name in layer order: parameters, and buffers of batch normalization.

    Frozen parameters and other buffers are constants. A tensor held by several layers appears once.
    """
    found: dict[str, Owned] = {}
    for layer_name, layer in module.named_modules():
        own: dict[str, Tensor] = {
            name: tensor for name, tensor in layer.named_parameters(recurse=False) if tensor.requires_grad
        }
        if is_batch_norm(layer):
            own.update(layer.named_buffers(recurse=False))
        for name, tensor in own.items():
            if not any(tensor is other.tensor for other in found.values()):
                found[f"{layer_name}.{name}" if layer_name else name] = Owned(tensor, layer_name, layer)
    return found


def find_head(name: str, module: nn.Module, num_classes: int, head: str | None) -> str:
    """Return the name of the head: as given, else the last linear layer with ``num_classes`` outputs.

    Raises:
        ConfigError: there is no such layer, or it cannot be a head.
    """
    linear = {inner: layer for inner, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    fitting = [inner for inner, layer in linear.items() if layer.out_features == num_classes]
    if head is None and not fitting:
        reason = f"it has no nn.Linear with {num_classes} outputs that could be its head"
        raise refusal(name, reason, key="model.head")
    head = fitting[-1] if head is None else head
    if head not in fitting:
        known = ", ".join(repr(inner) for inner in fitting) or "there is none"
        hint = did_you_mean(head, fitting).rstrip("?")
        reason = f"its head must be an nn.Linear with {num_classes} outputs ({known}), got '{head}'{hint}"
        raise refusal(name, reason, key="model.head")
    mine = dict(linear[head].named_parameters())
    if not set(mine) <= {"weight", "bias"} or not all(tensor.requires_grad for tensor in mine.values()):
        raise refusal(name, f"its head '{head}' is frozen or parametrized", key="model.head")
    for inner, layer in module.named_modules():
        shared = any(tensor is own for tensor in layer.parameters(recurse=False) for own in mine.values())
        if shared and layer is not linear[head]:
            raise refusal(name, f"its head '{head}' shares a parameter with '{inner}'", key="model.head")
    return head


def body_skeleton(module: nn.Module, head: str) -> nn.Module:
    """Return a copy without the head, whose dropout and batch normalization look at the current call."""
    root = copy.deepcopy(module)
    stand_ins: dict[nn.Module, nn.Module] = {root.get_submodule(head): nn.Identity()}
    for name, layer in root.named_modules():
        stand_in = substitute(name, layer)
        if stand_in is not None:
            stand_ins[layer] = stand_in
    for parent in list(root.modules()):
        for name, child in parent._modules.items():
            if child in stand_ins:
                parent._modules[name] = stand_ins[child]
    return stand_ins.get(root, root).eval()  # stand-ins start in training mode, all layers must agree
