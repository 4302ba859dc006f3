"""What built-in models share: initialization from a key, a linear head, the check for images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import Key, uniform
from fedtailor.core.task import Params

Shape = tuple[int, ...]


def check_images(name: str, input_shape: Shape, smallest: int = 1) -> Shape:
    """Return the shape (channels, height, width) of the inputs of the model ``name``.

    Raises:
        ConfigError: the inputs are not images, or have a height or width of fewer than ``smallest``
            pixels.
    """
    shape = tuple(input_shape)
    if len(shape) == 3 and min(shape[1:]) >= smallest:
        return shape

    allowed = "images (channels, height, width)"
    if smallest > 1:
        allowed += f" of at least {smallest} x {smallest} pixels"

    got = f"({', '.join(str(size) for size in shape)})"
    raise ConfigError(
        f"model '{name}' needs {allowed}, got inputs of shape {got}.",
        key="model.name",
        allowed=allowed,
        got=got,
    )


def default_init(shapes: Mapping[str, Shape], key: Key) -> Params:
    """Draw weights and biases of linear and convolution layers from PyTorch's default distribution.

    ``LAYER.weight`` and ``LAYER.bias`` are uniform within +-1/sqrt(fan-in), as in
    ``torch.nn.Linear`` and ``torch.nn.Conv2d``. Each name has its own stream of random numbers.
    They are the same in every default dtype up to rounding.
    """
    params: Params = {}
    for name, shape in shapes.items():
        layer = name.rpartition(".")[0]
        bound = 1 / math.sqrt(math.prod(shapes[f"{layer}.weight"][1:]))
        params[name] = (2 * uniform(key.fold(name), shape) - 1) * bound
    return params


class LinearHeadModel(ABC):
    """A model without buffers whose head is one linear layer, ``head.weight`` and ``head.bias``.

    Subclasses define the shapes of the body, and ``features``; they satisfy ``core.task.Model``.
    """

    norm: frozenset[str] = frozenset()

    def __init__(self, body: Mapping[str, Shape], feature_dim: int, num_classes: int) -> None:
        self.feature_dim = feature_dim
        self.shapes: dict[str, Shape] = {
            **body,
            "head.weight": (num_classes, feature_dim),
            "head.bias": (num_classes,),
        }
        groups = dict.fromkeys(body, "body")
        self.groups = {**groups, "head.weight": "head", "head.bias": "head"}

    def init(self, key: Key) -> Params:
        """Return fresh parameters in torch's default dtype."""
        return default_init(self.shapes, key)

    @abstractmethod
    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, d) and no buffers."""

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Return logits (n, classes) of features (n, d)."""
        return F.linear(z, params["head.weight"], params["head.bias"])
