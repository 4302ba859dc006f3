"""The structure of a user's module: its head, its tensors in layer order, and its body."""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import Tensor, nn

from fedtailor.core.errors import ConfigError, did_you_mean
from fedtailor.models.substitutes import BATCH_NORMS, substitute


class Owned(NamedTuple):
    """A parameter or buffer, with the layer that holds it."""

    tensor: Tensor
    layer_name: str
    layer: nn.Module


def refusal(name: str, reason: str, *, key: str = "model.name") -> ConfigError:
    """Return the error for a module that cannot be used as a model."""
    return ConfigError(
        f"the module '{name}' cannot be used as a model: {reason.rstrip('.')}.", key=key, got=name
    )


def owned_tensors(module: nn.Module) -> dict[str, Owned]:
    """Return the parameters and the buffers of batch normalization, by name in layer order.

    Frozen parameters and other buffers are constants and left out. A tensor that several layers
    share appears once.
    """
    owned: dict[str, Owned] = {}
    for layer_name, layer in module.named_modules():
        parameters = layer.named_parameters(recurse=False)
        tensors: dict[str, Tensor] = {
            name: tensor for name, tensor in parameters if tensor.requires_grad
        }
        if type(layer) in BATCH_NORMS:
            tensors.update(layer.named_buffers(recurse=False))

        # Identity counts, not equality: two layers may share one tensor.
        prefix = f"{layer_name}." if layer_name else ""
        for name, tensor in tensors.items():
            if not any(tensor is other.tensor for other in owned.values()):
                owned[f"{prefix}{name}"] = Owned(tensor, layer_name, layer)
    return owned


def find_head(name: str, module: nn.Module, num_classes: int, head: str | None) -> str:
    """Return the name of the head: ``head``, or the last linear layer with ``num_classes`` outputs.

    Raises:
        ConfigError: there is no such layer, or it cannot be a head.
    """
    # Without a name, the last layer with the right number of outputs.
    linear = {
        inner: layer for inner, layer in module.named_modules() if isinstance(layer, nn.Linear)
    }
    fitting = [inner for inner, layer in linear.items() if layer.out_features == num_classes]
    if head is None and not fitting:
        reason = f"it has no nn.Linear with {num_classes} outputs, which its head must be"
        raise refusal(name, reason, key="model.head")

    head = fitting[-1] if head is None else head
    if head not in fitting:
        allowed = ", ".join(repr(inner) for inner in fitting) or "there is none"
        hint = did_you_mean(head, fitting).rstrip("?")
        reason = (
            f"its head must be an nn.Linear with {num_classes} outputs ({allowed}), "
            f"got '{head}'{hint}"
        )
        raise refusal(name, reason, key="model.head")

    # The head is trained and sent as one weight and one bias.
    parameters = dict(linear[head].named_parameters())
    parametrized = not set(parameters) <= {"weight", "bias"}
    frozen = not all(tensor.requires_grad for tensor in parameters.values())
    if parametrized or frozen:
        raise refusal(name, f"its head '{head}' is frozen or parametrized", key="model.head")

    # A parameter of the head that is part of another layer would be frozen in one of them.
    of_head = {id(parameter) for parameter in parameters.values()}
    for inner, layer in module.named_modules():
        shares = any(id(tensor) in of_head for tensor in layer.parameters(recurse=False))
        if shares and layer is not linear[head]:
            reason = f"its head '{head}' shares a parameter with '{inner}'"
            raise refusal(name, reason, key="model.head")
    return head


def body_skeleton(module: nn.Module, head: str) -> nn.Module:
    """Return a copy without the head, whose dropout and normalization depend on the call."""
    # What replaces each layer; the head becomes the identity.
    root = copy.deepcopy(module)
    substitutes: dict[nn.Module, nn.Module] = {root.get_submodule(head): nn.Identity()}
    for name, layer in root.named_modules():
        replacement = substitute(name, layer)
        if replacement is not None:
            substitutes[layer] = replacement

    # A layer may be part of several others.
    for path, layer in list(root.named_modules(remove_duplicate=False)):
        if path and layer in substitutes:
            parent, _, name = path.rpartition(".")
            setattr(root.get_submodule(parent), name, substitutes[layer])

    # New layers start in training mode, but all must be in the same mode.
    return substitutes.get(root, root).eval()
