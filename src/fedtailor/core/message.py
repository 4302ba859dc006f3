"""Messages: what a client uploads, how the server may see it, and the bytes that it takes.

``Algorithm.messages`` declares every field once. The declaration is the single source for
validation of uploads, byte counts, documentation and disclosure.

A message leaves out what the receiver can put back: the lower half of a covariance, rows of weight
0, the same weight beside several fields. Sites send messages so (:mod:`fedtailor.deployment
.packing`); a simulation, where none travels, counts them so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import to_host

Shapes = Any
"""A tuple of integers, or a mapping / NamedTuple of such."""


class Mean(NamedTuple):
    """The server sees the weighted mean over the cohort.

    The weight broadcasts over the leading axes of every leaf of ``value``: a scalar (examples),
    class counts (classes,) for class means (classes, d), a confidence. Rows of weight 0 are not
    sent.
    """

    value: tree.Tree
    weight: Tensor


class Sum(NamedTuple):
    """The server sees the sum over the cohort.

    ``mask``: 1 for the rows of the value that are sent, or () for all.
    """

    value: tree.Tree
    mask: Tensor | tuple[()] = ()


class Each(NamedTuple):
    """The server sees the value of every single client (refused under secure aggregation)."""

    value: tree.Tree


Upload = Mapping[str, Mean | Sum | Each]


@dataclass(frozen=True, kw_only=True)
class Field:
    """Declaration of one field of the messages."""

    kind: Literal["model", "class_means", "counts", "covariance", "confidence", "statistics"]
    shapes: Shapes
    """Shape of the value: a tuple, or a mapping or NamedTuple of shapes. The value has the same
    containers."""
    reduction: Literal["mean", "sum", "each", "none"] = "mean"
    """How the server sees uploads of the field; ``none``: it is only sent down."""
    weight: Literal["num_train", "class_counts", "own", "equal"] = "num_train"
    """Weight of a mean; each kind of weight is sent once per upload, ``equal`` not at all."""
    rows: int = 0
    """Rows of the first axis that a client sends at most, for announced byte counts; 0: all. Not
    checked."""
    down: bool = True
    """Whether the server sends the field to the cohort."""
    low: float = -math.inf
    high: float = math.inf
    """Range of every entry of an upload."""
    bound: float = 2.0**10
    """Largest absolute value of an entry in secure sums."""
    weight_bound: float = 2.0**20
    """Largest weight of kind ``own`` in secure sums."""
    weight_axes: int = 0
    """Leading axes of a weight of kind ``own``, or of the mask of a sum, in secure sums."""

    @property
    def has_own_weights(self) -> bool:
        """Whether clients weigh a mean by numbers that say what it is of, not by their size."""
        return self.reduction == "mean" and self.weight in ("class_counts", "own")

    def leaf_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every leaf by path."""
        return _flatten_shapes(self.shapes, "")

    def scalars(self) -> int:
        """Return how many numbers a value takes; a symmetric matrix counts packed."""
        return sum(num_scalars(self.kind, shape) for shape in self.leaf_shapes().values())


Messages = Mapping[str, Field]
"""Every field of a download or upload, by name."""
BYTES_PER_SCALAR = 4
"""Messages count as float32, as the papers count them."""


class Reduced(NamedTuple):
    """A reduced field at the server.

    The mean with its total weight, or the sum, or the single values.
    """

    value: tree.Tree
    total_weight: Tensor

    def or_else(self, old: tree.Tree) -> tree.Tree:
        """Return the mean, and ``old`` in the rows that no client sent."""

        def choose(new: Tensor, old: Tensor) -> Tensor:
            is_sent = spread(self.total_weight, new) > 0
            return torch.where(is_sent, new, old)

        return tree.map(choose, self.value, old)


Received = Mapping[str, Reduced]
"""The fields that the server received in a round, by name."""


def spread(weight: Tensor, leaf: Tensor) -> Tensor:
    """Shape a weight so that it broadcasts over the leading axes of ``leaf``."""
    return weight.reshape(weight.shape + (1,) * (leaf.dim() - weight.dim()))


def sent_values(shared: Any, messages: Messages) -> dict[str, tree.Tree | None]:
    """Return what a broadcast holds in every field; None where it holds no such field."""
    values: dict[str, tree.Tree | None] = {}
    for name, field in messages.items():
        value = shared.get(name) if isinstance(shared, Mapping) else getattr(shared, name, None)
        values[name] = value if _has_declared_shapes(value, field) else None
    return values


def _has_declared_shapes(value: Any, field: Field) -> bool:
    try:
        shapes = {path: tuple(leaf.shape) for path, leaf in tree.paths(value).items()}
    except TypeError:
        return False
    return shapes == field.leaf_shapes()


def with_noise_on_counts(messages: Messages) -> Messages:
    """Return a declaration in which counts may have noise, so that they are not whole numbers."""
    return {
        name: replace(field, kind="statistics") if field.kind == "counts" else field
        for name, field in messages.items()
    }


def num_scalars(kind: str, shape: tuple[int, ...]) -> int:
    """Return how many numbers a tensor takes; a symmetric matrix (..., d, d) counts packed."""
    if kind == "covariance":
        d = shape[-1]
        return math.prod(shape[:-2]) * d * (d + 1) // 2
    return math.prod(shape)


def _flatten_shapes(shapes: Shapes, prefix: str) -> dict[str, tuple[int, ...]]:
    parts = shapes._asdict() if hasattr(shapes, "_fields") else shapes
    if isinstance(parts, Mapping):
        result: dict[str, tuple[int, ...]] = {}
        for name, inner in parts.items():
            result.update(_flatten_shapes(inner, f"{prefix}/{name}" if prefix else str(name)))
        return result
    return {prefix: tuple(shapes)}


def tree_bytes(value: tree.Tree) -> int:
    """Return the bytes of the numbers of a tree, as if the default type were float32.

    Example:
        >>> tree_bytes({"w": torch.zeros(3), "bits": torch.zeros(2, dtype=torch.uint8)})
        14
    """
    return sum(leaf.numel() * _bytes_per_number(leaf) for leaf in tree.leaves(value))


def download_bytes(messages: Messages) -> int:
    """Return the bytes of a download, the values for single clients included."""
    return BYTES_PER_SCALAR * sum(field.scalars() for field in messages.values() if field.down)


def upload_bytes(upload: Upload, messages: Messages) -> int:
    """Return the bytes of a sound upload."""
    total = 0
    weights: dict[str, int] = {}
    masks = {name: sent_rows(entry) for name, entry in upload.items()}
    masks = to_host(masks, "the bytes of an upload")

    for name, entry in upload.items():
        field = messages[name]

        # Fields share the weights of their kind, which are sent once.
        if isinstance(entry, Mean) and field.weight != "equal":
            key = name if field.weight == "own" else f"shared {field.weight}"
            weights[key] = tree_bytes(entry.weight)

        if isinstance(entry, Sum) and isinstance(entry.mask, Tensor):
            total += bytes_of_rows(tuple(entry.mask.shape))

        mask = masks[name]
        num_rows = int(mask.count_nonzero())
        for leaf in tree.leaves(entry.value):
            row_shape = tuple(leaf.shape[mask.dim() :])
            total += num_rows * num_scalars(field.kind, row_shape) * _bytes_per_number(leaf)

    return total + sum(weights.values())


def bytes_of_rows(shape: tuple[int, ...]) -> int:
    """Return the bytes of the mask of the rows of a sum: a bit for each, in whole bytes."""
    if not shape:
        return 1
    return math.prod(shape[:-1]) * math.ceil(shape[-1] / 8)


def sent_rows(entry: Mean | Sum | Each) -> Tensor:
    """Return true for the rows that are sent; () if there is one weight for all of them."""
    if isinstance(entry, Mean):
        return entry.weight > 0
    if isinstance(entry, Sum) and isinstance(entry.mask, Tensor):
        return entry.mask > 0
    return torch.ones((), dtype=torch.bool)


def _bytes_per_number(leaf: Tensor) -> int:
    """Return the bytes of one number of a tensor, as if the default type were float32."""
    size = leaf.element_size()
    if leaf.is_floating_point():
        return size * BYTES_PER_SCALAR // torch.get_default_dtype().itemsize
    return size
