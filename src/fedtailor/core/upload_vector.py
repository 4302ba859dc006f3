"""An upload as one vector of whole numbers, and a sum of such vectors as sums of fields.

Under masks, a server sees nothing but a sum of vectors. A vector has the values of all fields, in
the order of the declaration, row by row, of symmetric matrices their upper triangles; after them
every kind of weight once. Its numbers are those that a simulation adds
(:mod:`fedtailor.core.fixed_point`), so both have the same sums.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.fixed_point import FixedPoint
from fedtailor.core.message import Messages, Shapes, Upload, spread
from fedtailor.core.reduction import PartialSum, encoded
from fedtailor.core.upload_layout import layout_of, triangle


class UploadVector:
    """How the uploads of a run become vectors."""

    def __init__(self, messages: Messages, fixed: FixedPoint) -> None:
        """Lay out the vector.

        Args:
            messages: the declaration of the method.
            fixed: how its numbers become whole numbers.
        """
        self._fields = {name: messages[name] for name in fixed.fields}
        self._fixed = fixed
        self._layout = layout_of(messages)
        self.entries = fixed.entries
        """Length of a vector."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of what is where, and how fine it is: vectors of one digest can be added."""
        lines = []
        for part in self._layout.parts:
            field = self._fields[part.field]
            fixed = self._fixed.fields[part.field]
            kinds = [field.kind, field.reduction, field.weight]
            bits = [fixed.value_bits, fixed.weight_bits, list(fixed.rare_classes)]
            lines.append([part.field, part.path, list(part.shape), *kinds, *bits])

        text = json.dumps(lines, separators=(",", ":")).encode()
        return hashlib.sha256(b"layout\0" + struct.pack("<I", len(text)) + text).digest()

    def encode(self, upload: Upload) -> Tensor:
        """Return a sound upload as a vector, (entries,), int64."""
        sums = {}
        for name, fixed in self._fixed.fields.items():
            entry: Any = upload[name]
            sums[name] = encoded(entry, fixed)

        vector = torch.empty(self.entries, dtype=torch.int64)
        for part in self._layout.values:
            leaf = sums[part.field].leaves[str(part.path)]
            numbers = triangle(leaf) if part.is_symmetric else leaf
            vector[part.start : part.end] = numbers.reshape(-1)

        for part in self._layout.weights.values():
            numbers = vector[part.start : part.end].view(part.shape)
            numbers.copy_(spread(sums[part.field].weight, numbers))

        return vector

    def problem_with_sum(self, total: Tensor, senders: int) -> str:
        """Return why a sum of vectors cannot be one of sound uploads; empty if it can be.

        Args:
            total: the sum, (entries,), int64.
            senders: how many vectors are in it.
        """
        for part in self._layout.parts:
            fixed = self._fixed.fields[part.field]
            numbers = total[part.start : part.end]
            if part.path is None:
                sums = fixed.decode_weight(numbers)
                most = senders * fixed.most_weight
                least = 0.0
            else:
                sums = fixed.decode_value(numbers)
                most = senders * fixed.bound * fixed.most_weight
                least = -most
            if len(sums) and not least <= float(sums.min()) <= float(sums.max()) <= most:
                return f"field '{part.field}': the sum is beyond {senders} times the bound"

        return ""

    def decode(self, total: Tensor, senders: int) -> dict[str, PartialSum]:
        """Return the sums of all fields.

        Args:
            total: the sum of vectors, (entries,), int64.
            senders: how many vectors are in it.
        """
        leaves: dict[str, dict[str, Tensor]] = {name: {} for name in self._fields}
        for part in self._layout.values:
            leaves[part.field][str(part.path)] = part.read(total)

        sums = {}
        for name, field in self._fields.items():
            place = self._layout.weight_of(name)

            # Everybody's weight is 1.
            weight = torch.tensor(senders) if place is None else place.read(total)
            like = _without_numbers(field.shapes)
            sums[name] = PartialSum(field.reduction == "mean", like, weight, leaves[name])

        return sums


def _without_numbers(shapes: Shapes) -> tree.Tree:
    """Return a tree of the containers of a value, whose tensors are empty."""
    if isinstance(shapes, Mapping):
        return {name: _without_numbers(inner) for name, inner in shapes.items()}
    if hasattr(shapes, "_fields"):
        return type(shapes)(*map(_without_numbers, shapes))
    return torch.empty(0)
