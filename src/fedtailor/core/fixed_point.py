"""Uploads as whole numbers, whose sum is exact and can be made under masks.

A value v with weight w becomes ``e = round(v w 2^s)`` in the ring of 64-bit integers, where sums
wrap around. Whole numbers add up to the same sum in any order, so that a simulation and real sites
have equal bits, whoever is absent. The number of fraction bits s of a field follows from its
declared bound, the largest weight of one client, and how many clients there can be: no sum within
these bounds leaves the ring.

All rows are sent, rows of weight 0 as zeros: which rows are missing would tell a client's classes.

Source: the arithmetic of secure aggregation, Bonawitz et al., CCS 2017, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import to_host
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import Each, Field, Mean, Messages, Sum, Upload
from fedtailor.core.upload_checks import Problem
from fedtailor.core.upload_layout import layout_of, shape_of_weight, triangle, with_both_halves

_RING_BYTES = 8
"""Of one whole number."""
_RING_BITS = 62
"""Bits of a sum without its sign, and one to spare."""
_FEWEST_BITS = 16
"""Fraction bits below which values would become too coarse."""
_CONFIDENCE_BITS = 30
"""Fraction bits of weights that are no whole numbers, at most."""


class FixedField(NamedTuple):
    """How the values and the weights of one field become whole numbers."""

    value_bits: int
    """Fraction bits of values times weights (s)."""
    weight_bits: int
    """Fraction bits of weights; 0: they are whole numbers."""
    bound: float
    """Largest absolute value."""
    most_weight: float
    """Largest weight of one client."""
    rare_classes: tuple[int, ...] = ()
    """Classes of too few clients, whose weights are left out of sums by class."""
    weight_axes: int = 0
    """Axes of a weight or a mask, at most."""
    is_symmetric: bool = False
    """Whether values are symmetric matrices: their upper triangles count."""

    def sent_weight(self, weight: Tensor) -> Tensor:
        """Return a weight in which rare classes count nothing. It stays as it is."""
        if not self.rare_classes:
            return weight

        weight = weight.clone()
        weight[list(self.rare_classes)] = 0.0
        return weight

    def encode_value(self, value: Tensor) -> Tensor:
        """Return a value times its weight as whole numbers, int64."""
        numbers = _encode(value, self.value_bits)
        return with_both_halves(triangle(numbers), value.shape) if self.is_symmetric else numbers

    def encode_weight(self, weight: Tensor) -> Tensor:
        """Return a weight as whole numbers, int64."""
        return _encode(weight, self.weight_bits)

    def decode_value(self, total: Tensor) -> Tensor:
        """Return a sum of values times weights, float64."""
        return _decode(total, self.value_bits)

    def decode_weight(self, total: Tensor) -> Tensor:
        """Return a sum of weights, float64."""
        return _decode(total, self.weight_bits)


class FixedPoint(NamedTuple):
    """How the uploads of a run become whole numbers."""

    fields: Mapping[str, FixedField]
    """By the name of every field that is uploaded."""
    entries: int
    """How many whole numbers an upload becomes."""

    @property
    def num_bytes(self) -> int:
        """The bytes of an upload: of all rows, and every weight once."""
        return _RING_BYTES * self.entries

    def problem_with(self, upload: Upload) -> Problem | None:
        """Return the first number of an upload that is beyond the bound of its field, or None.

        The vector of an upload also has no place for weights with more axes than declared.
        """
        for name, entry in upload.items():
            axes = _weight_axes(entry)
            most = self.fields[name].weight_axes
            if axes > most:
                text = f"a weight with {axes} axes, declared with weight_axes = {most}"
                return Problem("weight", name, text)

        ends = {name: _largest(entry) for name, entry in upload.items()}
        ends = to_host(ends, "the range of an upload")
        for name, (value, weight) in ends.items():
            field = self.fields[name]
            if value > field.bound:
                text = f"a value of {float(value):,.7g} is beyond the bound {field.bound:,.7g}"
                return Problem("range", name, f"{text} of secure sums")
            if weight > field.most_weight:
                text = f"a weight of {float(weight):,.7g} is beyond {field.most_weight:,.7g}"
                return Problem("range", name, f"{text}, the largest in secure sums")

        return None


def make_fixed_point(
    messages: Messages,
    *,
    population: int,
    most_examples: int,
    rare_classes: Sequence[int] = (),
) -> FixedPoint:
    """Return how the uploads of a run become whole numbers.

    Args:
        messages: the declaration of the method.
        population: how many clients can take part.
        most_examples: the most training examples of one client.
        rare_classes: classes that are left out of means weighted by class.

    Raises:
        ConfigError: too few bits are left for a field.

    Example:
        >>> model = Field(kind="model", shapes=(2,), weight="num_train")
        >>> point = make_fixed_point({"model": model}, population=4, most_examples=2**20)
        >>> point.fields["model"].value_bits
        30
    """
    fields = {}
    for name, field in messages.items():
        if field.reduction in ("mean", "sum"):
            fields[name] = _fixed_field(name, field, population, most_examples, rare_classes)
    return FixedPoint(fields, layout_of(messages).entries)


def _fixed_field(
    name: str, field: Field, population: int, most_examples: int, rare_classes: Sequence[int]
) -> FixedField:
    most_weight = 1.0
    weight_bits = 0
    if field.reduction == "mean" and field.weight in ("num_train", "class_counts"):
        most_weight = float(most_examples)
    elif field.reduction == "mean" and field.weight == "own":
        most_weight = field.weight_bound
        weight_bits = min(_CONFIDENCE_BITS, _RING_BITS - _bits(population * most_weight))

    value_bits = _RING_BITS - _bits(field.bound) - _bits(population * most_weight)
    if value_bits < _FEWEST_BITS:
        raise ConfigError(
            f"field '{name}' has only {value_bits} fraction bits in secure sums of {population} "
            f"clients, and needs {_FEWEST_BITS}: set privacy.most_examples to a smaller number.",
            key="privacy.most_examples",
        )

    by_class = field.reduction == "mean" and field.weight == "class_counts"
    return FixedField(
        value_bits=value_bits,
        weight_bits=weight_bits,
        bound=field.bound,
        most_weight=most_weight,
        rare_classes=tuple(rare_classes) if by_class else (),
        weight_axes=len(shape_of_weight(field)),
        is_symmetric=field.kind == "covariance",
    )


def _bits(largest: float) -> int:
    """Return how many bits hold numbers up to the largest one."""
    return math.ceil(math.log2(largest))


def _encode(numbers: Tensor, bits: int) -> Tensor:
    return (numbers * 2.0**bits).round().to(torch.int64)


def _decode(total: Tensor, bits: int) -> Tensor:
    return total.to(torch.float64) * 2.0**-bits


def _weight_axes(entry: Mean | Sum | Each) -> int:
    """Return the number of axes of the weight or mask of an entry."""
    if isinstance(entry, Mean):
        return entry.weight.dim()
    return entry.mask.dim() if isinstance(entry, Sum) and isinstance(entry.mask, Tensor) else 0


def _largest(entry: Mean | Sum | Each) -> tuple[Tensor, Tensor]:
    """Return the largest absolute value of an entry, and its largest weight."""
    leaves = [leaf.abs().amax() for leaf in tree.leaves(entry.value) if leaf.numel()]
    value = torch.stack(leaves).amax() if leaves else torch.zeros(())
    weight = entry.weight.amax() if isinstance(entry, Mean) else torch.zeros(())
    return value, weight
