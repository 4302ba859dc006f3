"""A perceptron with one hidden layer; its activations are the features."""

from __future__ import annotations

import math
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.options import Range, check_value
from fedtailor.core.rng import Key
from fedtailor.core.task import Params
from fedtailor.models.layers import LinearHeadModel, Shape


class Perceptron(LinearHeadModel):
    """Flatten, one hidden linear layer, ReLU; then the head."""

    def __init__(self, input_shape: Shape, num_classes: int, hidden: int) -> None:
        body = {"hidden.weight": (hidden, math.prod(input_shape)), "hidden.bias": (hidden,)}
        super().__init__(body, hidden, num_classes)

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, hidden) and no buffers."""
        return F.relu(F.linear(x.flatten(1), params["hidden.weight"], params["hidden.bias"])), {}


def mlp(input_shape: Shape, num_classes: int, *, hidden: int = 100) -> Perceptron:
    """Build a perceptron; ``hidden`` is the width of its hidden layer.

    Raises:
        ConfigError: ``hidden`` is not a whole number >= 1.
    """
    check_value(hidden, Annotated[int, Range(ge=1)], key="model.options.hidden")
    return Perceptron(tuple(input_shape), num_classes, hidden)
