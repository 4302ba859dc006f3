"""Models by name, or from a user's own function. Listing them does not import torch."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtailor.core.errors import ConfigError, calling, did_you_mean, find_name

if TYPE_CHECKING:
    from fedtailor.core.task import Model

__all__ = ["MODELS", "ModelEntry", "build_model", "default_model"]


class ModelEntry(NamedTuple):
    """An entry of the table of models."""

    description: str
    shape: tuple[int, ...]
    """Shape of the inputs that the model was designed for."""
    module: str = "networks"
    """Module of this package with the function ``NAME(input_shape, num_classes, **options)``."""


MODELS: Mapping[str, ModelEntry] = {
    "cifar_cnn": ModelEntry(
        "three convolution stages, 128 features, for 32 x 32 images (pFedFDA, FedPAC)",
        (3, 32, 32),
    ),
    "cnn6": ModelEntry(
        "five convolutions, 100 features, for images of any size (pFedVEM)",
        (3, 32, 32),
    ),
    "emnist_cnn": ModelEntry(
        "two convolution stages, 128 features, for 28 x 28 images (pFedFDA, FedPAC)",
        (1, 28, 28),
    ),
    "fedcr_cnn": ModelEntry(
        "two convolution stages and two layers of 1024 units (FedCR)",
        (3, 32, 32),
    ),
    "fedcr_mlp": ModelEntry(
        "two hidden layers of 1024 units (FedCR)",
        (1, 28, 28),
    ),
    "lenet": ModelEntry(
        "two convolution stages, 84 features, for 32 x 32 images (pFedVEM)",
        (3, 32, 32),
    ),
    "linear": ModelEntry(
        "one linear layer and no body, for inputs that are features already",
        (64,),
    ),
    "mlp": ModelEntry(
        "one hidden layer of 100 units (option hidden), for any input",
        (1, 28, 28),
    ),
    "projection": ModelEntry(
        "a random linear map to 256 features (option features), for inputs that are features",
        (64,),
    ),
    "resnet18_gn": ModelEntry(
        "ResNet-18 with group normalization, 512 features, for 64 x 64 images (FedLDA)",
        (3, 64, 64),
        "resnet",
    ),
    "series_cnn": ModelEntry(
        "three convolutions over time, 64 features, for series of any length",
        (6, 128),
        "series",
    ),
    "wideresnet16": ModelEntry(
        "WideResNet-16-2, 128 features, for 32 x 32 images (FedLDA; option norm: group, batch)",
        (3, 32, 32),
        "wideresnet",
    ),
}
"""The built-in models by name, in alphabetical order."""


def build_model(
    spec: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """Build a model from a name of the table, or from a user's ``package.module:function``.

    The function is called as ``function(input_shape, num_classes, **options)`` and returns a
    ``torch.nn.Module``, or a model. It runs with PyTorch's CPU generator seeded the same way every
    time: random numbers that it draws are the same at every site.

    A module is wrapped by ``fedtailor.from_module`` and loses its weights: every run draws new ones
    from its seed. To keep pretrained weights, return ``from_module(module, ..., init="given")``.

    Raises:
        ConfigError: the name or an option is unknown, the function cannot be found or fails, or the
            model cannot be used with these inputs.

    Example:
        >>> build_model("mlp", (1, 28, 28), 10, {"hidden": 20}).feature_dim
        20
    """
    shape = tuple(input_shape)
    options = options or {}
    if ":" not in spec:
        name = find_name("model", spec, MODELS, key="model.name")
        function = pkgutil.resolve_name(f"{__name__}.{MODELS[name].module}:{name}")
        model: Model = _call(function, name, shape, num_classes, options)
        return model

    from fedtailor.core.rng import new_key
    from fedtailor.core.targets import find_target
    from fedtailor.models.module import wrap
    from fedtailor.models.module_model import seeded_generator

    # A user's function may draw weights from PyTorch's generator.
    function = find_target(spec, what="model", key="model.name")
    with seeded_generator(new_key(0, purpose="model function")):
        result = _call(function, spec, shape, num_classes, options)

    return wrap(result, input_shape=shape, num_classes=num_classes, name=spec)


def _call(
    function: Callable[..., Any],
    target: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: Mapping[str, Any],
) -> Any:
    """Call ``function(input_shape, num_classes, **options)``; its exceptions become sentences."""
    _check_options(function, target, options)
    written = [f"{name}={value!r}" for name, value in options.items()]
    call = f"{target}({', '.join([str(input_shape), str(num_classes), *written])})"
    with calling(call, key="model.name", got=target):
        return function(input_shape, num_classes, **options)


def _check_options(function: Callable[..., Any], target: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a function does not take."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C have no signature
        return

    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return

    # The first two are the shape of the inputs and the number of classes.
    names = [parameter.name for parameter in parameters[2:]]
    for option in options:
        if option not in names:
            allowed = f"Allowed: {', '.join(names)}." if names else "It takes none."
            hint = did_you_mean(option, names) or "."
            raise ConfigError(
                f"unknown option '{option}' of model '{target}'{hint} {allowed}",
                key=f"model.options.{option}",
                allowed=names,
                got=option,
            )


def default_model(input_shape: tuple[int, ...], *, frozen: bool = False) -> str:
    """Return the name of the default model for inputs of a shape.

    Series get ``series_cnn``, images of at least 32 x 32 pixels ``cifar_cnn``, images of at least
    12 x 12 pixels ``emnist_cnn``, and all other inputs ``mlp``. If the body stays as it starts
    (``frozen``), it is ``linear``, whose features are the inputs.

    Example:
        >>> default_model((3, 32, 32)), default_model((1, 16, 16)), default_model((64,))
        ('cifar_cnn', 'emnist_cnn', 'mlp')
        >>> default_model((6, 100))
        'series_cnn'
    """
    if frozen:
        return "linear"
    if len(input_shape) == 2:
        return "series_cnn"

    smaller_side = min(input_shape[1:]) if len(input_shape) == 3 else 0
    if smaller_side >= 32:
        return "cifar_cnn"
    if smaller_side >= 12:
        return "emnist_cnn"
    return "mlp"
