"""The number of floating-point operations of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.core import rng
from fedtailor.core.engine import one_thread
from fedtailor.models import build_model


def count_operations(
    spec: str, input_shape: tuple[int, ...], options: Mapping[str, Any] | None = None
) -> int:
    """Return the floating-point operations of a prediction for one example: matrix products and
    convolutions only.

    Args:
        spec: a model, as in :func:`fedtailor.models.build_model`. It is built for ten classes.
        input_shape: shape of an example.
        options: options of the model.

    Example:
        >>> count_operations("mlp", (1, 28, 28), {"hidden": 100})
        158800
    """
    with one_thread():  # more threads only wait for each other on one example
        model = build_model(spec, input_shape, 10, options)
        params = {name: torch.zeros(shape) for name, shape in model.shapes.items()}
        key = rng.new_key(0, purpose="operations")
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            x = torch.zeros(1, *input_shape)
            features, _ = model.features(params, x, weight=torch.ones(1), key=key, training=False)
            model.head(params, features)

    return counter.get_total_flops()
