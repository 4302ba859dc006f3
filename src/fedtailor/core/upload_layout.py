"""Where the numbers of an upload are in one vector of all of them.

The vector has the values of all fields in the order of the declaration, row by row, of symmetric
matrices their upper triangles; after them every kind of weight once. All rows are in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.message import Field, Messages, num_scalars

_SUMMED = ("mean", "sum")


class Part(NamedTuple):
    """Where one tensor of an upload is in the vector."""

    field: str
    """Of a weight: the first of the fields that have it."""
    path: str | None
    """Of a leaf of the value; None: it is a weight."""
    shape: tuple[int, ...]
    """As in an upload."""
    is_symmetric: bool
    start: int
    end: int

    def read(self, total: Tensor) -> Tensor:
        """Return the tensor from a sum of vectors."""
        numbers = total[self.start : self.end]
        if self.is_symmetric:
            return with_both_halves(numbers, self.shape)
        return numbers.reshape(self.shape)


class Layout(NamedTuple):
    """Where the tensors of an upload are in its vector."""

    values: tuple[Part, ...]
    weights: Mapping[str, Part]
    """By kind; those of one field only, by its name."""
    kinds: Mapping[str, str]
    """The kind of every field's weight; empty: it is 1."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All tensors, in their order."""
        return (*self.values, *self.weights.values())

    @property
    def entries(self) -> int:
        """The length of the vector."""
        return max((part.end for part in self.parts), default=0)

    def weight_of(self, name: str) -> Part | None:
        """Return where the weight of a field is; None: it is 1."""
        return self.weights.get(self.kinds[name])


def layout_of(messages: Messages) -> Layout:
    """Return the layout of the uploads of a method; fields of single values are left out."""
    fields = {name: field for name, field in messages.items() if field.reduction in _SUMMED}
    end = 0
    values = []
    for name, field in fields.items():
        for path, shape in field.leaf_shapes().items():
            start = end
            end += num_scalars(field.kind, shape)
            values.append(Part(name, path, shape, field.kind == "covariance", start, end))

    # Fields of one kind of weight share it.
    kinds = {name: _kind_of_weight(name, field) for name, field in fields.items()}
    weights: dict[str, Part] = {}
    for name, kind in kinds.items():
        if kind and kind not in weights:
            start = end
            shape = shape_of_weight(fields[name])
            end += math.prod(shape)
            weights[kind] = Part(name, None, shape, False, start, end)

    return Layout(tuple(values), weights, kinds)


def triangle(matrices: Tensor) -> Tensor:
    """Return the upper triangles of matrices (..., d, d), row by row, (..., d (d + 1) / 2)."""
    d = matrices.shape[-1]
    rows, columns = torch.triu_indices(d, d)
    return matrices[..., rows, columns].contiguous()


def with_both_halves(numbers: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return symmetric matrices, (..., d, d), from their upper triangles.

    Args:
        numbers: of the triangles, in any shape of so many numbers.
        shape: of the matrices.
    """
    d = shape[-1]
    rows, columns = torch.triu_indices(d, d)
    numbers = numbers.reshape(*shape[:-2], d * (d + 1) // 2)
    matrices = numbers.new_empty(shape)
    matrices[..., rows, columns] = numbers
    matrices[..., columns, rows] = numbers
    return matrices


def _kind_of_weight(name: str, field: Field) -> str:
    if field.reduction == "sum" or field.weight == "own":
        return f"own {name}"
    return "" if field.weight == "equal" else field.weight


def shape_of_weight(field: Field) -> tuple[int, ...]:
    """Return the shape of the weight of a mean, or of the mask of a sum, in the vector."""
    axes = field.weight_axes
    if field.reduction == "mean" and field.weight != "own":
        axes = 1 if field.weight == "class_counts" else 0
    return next(iter(field.leaf_shapes().values()), ())[:axes]
