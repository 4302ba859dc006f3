"""Sums over the features of a client's examples, as they are sent: what several methods share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import class_sums, tree

_ROUNDING = 1e-6
"""By how much long features are shortened further, for the rounding of their numbers."""


def as_messages(value: Any) -> Any:
    """Return a tree of numbers in the type of messages."""
    return tree.map(lambda leaf: leaf.to(torch.get_default_dtype()), value)


def shortened(z: Tensor, longest: float) -> Tensor:
    """Return features (n, d) of a norm of at most ``longest``; 0: as they are."""
    if not longest:
        return z

    norm = z.double().norm(dim=1, keepdim=True)
    most = longest * (1 - _ROUNDING)
    bounded: Tensor = z.double() * (most / norm.clamp_min(most))
    return bounded.to(torch.get_default_dtype())


def finite_rows(z: Tensor) -> Tensor:
    """Return features (n, d) in which an example that is not finite has none.

    In a sum, no noise would hide it.
    """
    is_finite = torch.isfinite(z).all(dim=1, keepdim=True)
    return torch.where(is_finite, z, 0.0)


def sum_fields(
    num_classes: int, d: int, squares: class_sums.Squares, feature_clip: float = 0.0
) -> dict[str, ft.Field]:
    """Declare the sums over a client's examples."""
    # Sums grow with the examples of a client, sums of squares also with the scale of features.
    bounds = {"counts": 2.0**20, "sums": 2.0**24, "squares": 2.0**28}
    if feature_clip:
        # With room for noise.
        most = 2.0**22
        bounds = {"counts": most, "sums": most * feature_clip, "squares": most * feature_clip**2}

    field = partial(ft.Field, reduction="sum", down=False)
    by_class = field if feature_clip else partial(field, weight_axes=1)
    fields = {
        "counts": by_class(kind="counts", shapes=(num_classes,), bound=bounds["counts"]),
        "sums": by_class(kind="statistics", shapes=(num_classes, d), bound=bounds["sums"]),
    }
    if squares != "none":
        shape = class_sums.squares_shape(squares, num_classes, d)
        declare = by_class if len(shape) == 2 else field
        fields["squares"] = declare(kind="statistics", shapes=shape, bound=bounds["squares"])
    return fields


def upload_of(sums: class_sums.ClassSums, *, all_rows: bool = False) -> dict[str, ft.Sum]:
    """Return sums as fields of an upload, rounded once to the type of messages.

    Rows of classes without examples are not sent, unless all are.
    """
    rounded = as_messages(sums)
    if all_rows:
        values = rounded._asdict()
        return {name: ft.Sum(value) for name, value in values.items() if value.numel()}

    is_sent = (rounded.counts > 0).to(rounded.counts.dtype)
    upload = {"counts": ft.Sum(rounded.counts, is_sent), "sums": ft.Sum(rounded.sums, is_sent)}
    if rounded.squares.dim() == 2:
        upload["squares"] = ft.Sum(rounded.squares, is_sent)
    elif rounded.squares.shape[0]:
        upload["squares"] = ft.Sum(rounded.squares)
    return upload


def received_sums(received: ft.Received) -> class_sums.ClassSums:
    """Return the sums over all clients of a round, in float64."""
    sums = received["sums"].value
    squares = received["squares"].value if "squares" in received else sums.new_zeros(0)
    counts = received["counts"].value
    return class_sums.ClassSums(counts.double(), sums.double(), squares.double())


def repaired_sums(
    received: ft.Received, noise: Mapping[str, float], longest: float
) -> dict[str, ft.Reduced]:
    """Return received sums as some that features of a norm of at most ``longest`` could have.

    Their means are within the bound, and their scatter is above the noise. Other fields stay.

    Args:
        received: with the fields of the sums.
        noise: its standard deviation on every number, by field.
        longest: bound of the norm of features.
    """
    deviations = class_sums.SumsNoise(**{"squares": 0.0, **noise})
    sums = class_sums.repaired(received_sums(received), deviations, longest)
    values = as_messages(sums)._asdict()
    return {
        name: field._replace(value=values[name]) if name in values else field
        for name, field in received.items()
    }
