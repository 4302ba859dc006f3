"""A hyper-network: one hidden layer, whose outputs are the parameters of a head.

Ha, Dai and Le 2017, "HyperNetworks", ICLR. Its own parameters are trained and sent like those of
any model.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor import toolkit as ft

_OUTPUT_SCALE = 0.01
"""Scale of the last layer at the start, relative to PyTorch's default: heads start near 0."""


def hyper_shapes(task: ft.Task, inputs: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the parameter shapes of a network from ``inputs`` numbers to a head."""
    outputs = sum(math.prod(shape) for shape in task.shapes("head").values())
    return {
        "inner.weight": (hidden, inputs),
        "inner.bias": (hidden,),
        "outer.weight": (outputs, hidden),
        "outer.bias": (outputs,),
    }


def init_hyper(shapes: dict[str, tuple[int, ...]], key: ft.Key) -> ft.Params:
    """Draw parameters uniform within +-1/sqrt(fan-in), as PyTorch does; the last layer smaller."""
    params = {}
    for name, shape in shapes.items():
        layer = name.split(".")[0]
        bound = 1 / math.sqrt(shapes[f"{layer}.weight"][1])
        scale = _OUTPUT_SCALE if layer == "outer" else 1.0
        params[name] = (2 * ft.uniform(key.fold(name), shape) - 1) * bound * scale
    return params


def hyper_head(task: ft.Task, network: ft.Params, x: Tensor) -> ft.Params:
    """Return the head that a network computes from its input (inputs,)."""
    inputs = x.to(network["inner.weight"].dtype)
    inner = F.relu(F.linear(inputs, network["inner.weight"], network["inner.bias"]))
    numbers = F.linear(inner, network["outer.weight"], network["outer.bias"])

    shapes = task.shapes("head")
    # cut into the parameters of the head, in their order
    parts = torch.split(numbers, [math.prod(shape) for shape in shapes.values()])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
