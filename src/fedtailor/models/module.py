"""Wrapping a user's own ``torch.nn.Module`` as a functional model."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import nn

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import check_value
from fedtailor.core.task import Model
from fedtailor.models import probe
from fedtailor.models.module_model import ModuleModel, Start, preserved_generator
from fedtailor.models.structure import find_head, refusal

MODEL_PARTS = ("groups", "norm", "shapes", "feature_dim", "init", "features", "head")


def from_module(
    module: nn.Module,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    head: str | None = None,
    name: str | None = None,
    init: Start = "reset",
) -> ModuleModel:
    """Wrap a copy of a module as a functional model.

    The head is a linear layer whose output is the module's output; its input is the feature vector.
    Dropout draws from keys. BatchNorm counts only rows of weight > 0 and returns its new
    statistics. Small forward passes check that the outputs are the module's own, that nothing else
    draws random numbers or changes buffers, and that padding rows do not change other rows; a
    backward pass checks that the gradients are right.

    By default the weights of the module are not kept: a run starts from new ones, drawn from its
    seed. Pass ``init="given"`` to keep them, for example because they are pretrained or set by the
    module's ``__init__``.

    Args:
        module: maps ``(n, *input_shape)`` to logits (n, num_classes); it does not change.
        input_shape: shape of one example.
        num_classes: number of classes.
        head: name of the head, such as ``"fc"``; default: the last ``nn.Linear`` with
            ``num_classes`` outputs.
        name: name of the model in messages; default: the module's class.
        init: ``"reset"``: every layer's ``reset_parameters`` with the run's seed, see
            :meth:`ModuleModel.init`; ``"given"``: the current values of the module, for every seed.

    Raises:
        ConfigError: the module cannot be used; the message names the layer and the reason.

    Example:
        >>> module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = from_module(module, input_shape=(4,), num_classes=3)
        >>> model.groups["2.weight"], model.feature_dim
        ('head', 8)
    """
    name = name or type(module).__name__
    check_value(init, Start, key="init")

    # The user's module stays as it is; checks run on the CPU, in the dtype of the run.
    try:
        template = copy.deepcopy(module).to("cpu", torch.get_default_dtype()).eval()
    except Exception as error:
        raise refusal(name, f"it cannot be copied: {error}") from error

    # Small passes; the user's random numbers stay those of a program without them.
    x = probe.examples(input_shape)
    with preserved_generator():
        expected = probe.outputs(name, template, x, num_classes)

        # First: random outputs fail the other checks too.
        probe.check_randomness(name, template, x, training=False)

        head_name = find_head(name, template, num_classes, head)
        model = ModuleModel(template, head_name, init)
        probe.check_randomness(name, model.skeleton, x, training=True)
        probe.check_equal(name, model, x, expected)
        probe.check_constants(name, model.skeleton, x)
        probe.check_padding(name, model, x)
        probe.check_gradients(name, model, x)

    return model


def wrap(result: Any, *, input_shape: tuple[int, ...], num_classes: int, name: str) -> Model:
    """Return a model unchanged, and a module wrapped by :func:`from_module`.

    Raises:
        ConfigError: ``result`` is neither a model nor a module, or the module cannot be used.
    """
    if isinstance(result, nn.Module):
        return from_module(result, input_shape=input_shape, num_classes=num_classes, name=name)

    missing = [part for part in MODEL_PARTS if not hasattr(result, part)]
    if not missing and not isinstance(result, type):
        return cast(Model, result)

    # A class in place of an instance, something like a model, or something else.
    got = f"the class {result.__name__}" if isinstance(result, type) else type(result).__name__
    lacks = f" (without {', '.join(missing)})" if 0 < len(missing) < len(MODEL_PARTS) else ""
    allowed = "a torch.nn.Module or a fedtailor model"
    raise ConfigError(
        f"model '{name}' must be {allowed}, got {got}{lacks}.",
        key="model.name",
        allowed=allowed,
        got=got,
    )
