"""Messages: what a client uploads, how the server may see it, and the checks at the server's border.

``Algorithm.messages`` declares every field once. The declaration is the single source for validation of
uploads, byte counts, documentation and disclosure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree

Shapes = Any
"""A tuple of integers, or a mapping / NamedTuple of such."""


class Mean(NamedTuple):
    """The server sees the weighted mean over the cohort.

    The weight broadcasts over the leading axes of every leaf of ``value``: a scalar (examples), class
    counts (classes,) for class means (classes, d), a confidence. Rows of weight 0 are not sent.
    """

    value: tree.Tree
    weight: Tensor


class Sum(NamedTuple):
    """The server sees the sum over the cohort. ``rows``: 1 for the rows that are sent, or () for all."""

    value: tree.Tree
    rows: Tensor | tuple[()] = ()


class Each(NamedTuple):
    """The server sees the value of every single client (refused under secure aggregation)."""

    value: tree.Tree


Upload = Mapping[str, Mean | Sum | Each]


@dataclass(frozen=True, kw_only=True)
class Field:
    """Declaration of one field of the messages."""

    kind: Literal["model", "class_means", "counts", "covariance", "confidence", "statistics"]
    shapes: Shapes
    """Shape of the value: a tuple, or a mapping of tuples by name."""
    reduction: Literal["mean", "sum", "each", "none"] = "mean"
    """How the server sees uploads of the field; ``none``: it is only sent down."""
    weight: Literal["num_train", "class_counts", "own", "equal"] = "num_train"
    """Weight of a mean; each kind of weight is sent once per upload, ``equal`` not at all."""
    rows: int = 0
    """Rows of the first axis that a client sends at most, for announced byte counts; 0: all. Not checked."""
    down: bool = True
    """Whether the server sends the field to the cohort."""
    low: float = -math.inf
    high: float = math.inf
    """Range of every entry of an upload."""

    def leaf_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every leaf by path."""
        return _flatten_shapes(self.shapes, "")

    def scalars(self) -> int:
        """Return how many numbers a value takes; a symmetric matrix counts packed."""
        return sum(_scalars(self.kind, shape) for shape in self.leaf_shapes().values())


Messages = Mapping[str, Field]
BYTES_PER_SCALAR = 4
"""Messages count as float32, as the papers count them."""


class Reduced(NamedTuple):
    """A reduced field at the server: the mean with its total weight, or the sum, or the single values."""

    value: tree.Tree
    total_weight: Tensor

    def or_else(self, old: tree.Tree) -> tree.Tree:
        """Return the mean, and ``old`` in the rows that nobody sent."""

        def choose(new: Tensor, kept: Tensor) -> Tensor:
            sent = spread(self.total_weight, new) > 0
            return torch.where(sent, new, kept)

        return tree.map(choose, self.value, old)


def spread(weight: Tensor, leaf: Tensor) -> Tensor:
    """Shape a weight so that it broadcasts over the leading axes of ``leaf``."""
    return weight.reshape(weight.shape + (1,) * (leaf.dim() - weight.dim()))


def reduce_field(entries: Sequence[Mean | Sum | Each]) -> Reduced:
    """Reduce one field over the cohort, in the order given (client ids), in float64.

    A leaf comes back in its own dtype. :class:`Each` values are stacked along a new leading axis.
    """
    first = entries[0]
    if isinstance(first, Each):
        return Reduced(tree.stack([entry.value for entry in entries]), torch.tensor(float(len(entries))))
    own = [_weight_of(entry) for entry in entries]
    shape = max((weight.shape for weight in own), key=len)
    weights = [weight.expand(shape) for weight in own]
    total = torch.stack(weights).sum(0)
    columns = [tree.paths(entry.value) for entry in entries]
    reduced = []
    for path, like in columns[0].items():
        result = torch.zeros(like.shape, dtype=torch.float64)
        for weight, column in zip(weights, columns, strict=True):
            result += spread(weight, like) * column[path].double()
        if isinstance(first, Mean):
            result = result / spread(torch.where(total > 0, total, 1.0), like)
        reduced.append(result.to(like.dtype))
    return Reduced(tree.rebuild(first.value, iter(reduced)), total)


def _weight_of(entry: Mean | Sum | Each) -> Tensor:
    """Return the float64 factor of an entry in its sum."""
    if isinstance(entry, Mean):
        return entry.weight.double()
    if isinstance(entry, Sum) and isinstance(entry.rows, Tensor):
        return entry.rows.double()
    return torch.ones((), dtype=torch.float64)


def problem_with(upload: Any, messages: Messages) -> str | None:
    """Return why an upload must not be used, naming the field, or None if it is sound; never raises."""
    if not isinstance(upload, Mapping):
        return f"no mapping but {type(upload).__name__}"
    expected = {name for name, field in messages.items() if field.reduction != "none"}
    if set(upload) != expected:
        return f"fields {sorted(map(str, upload))} instead of {sorted(expected)}"
    for name, entry in upload.items():
        reason = _problem_with_field(entry, messages[name])
        if reason:
            return f"field '{name}': {reason}"
    return None


def _problem_with_field(entry: Mean | Sum | Each, field: Field) -> str | None:
    if type(entry).__name__.lower() != field.reduction:
        return f"sent as {type(entry).__name__}, declared as {field.reduction}"
    shapes = field.leaf_shapes()
    try:
        leaves = tree.paths(entry.value)
    except TypeError as error:
        return str(error)
    if set(leaves) != set(shapes) or len(leaves) != len(tree.leaves(entry.value)):
        return f"leaves {sorted(leaves)} instead of {sorted(shapes)}"
    for path, leaf in leaves.items():
        reason = _problem_with_leaf(leaf, shapes[path], field)
        if reason:
            return f"{reason} {path}".rstrip()
    return _problem_with_weight(entry, field)


def _problem_with_leaf(leaf: Tensor, shape: tuple[int, ...], field: Field) -> str | None:
    if tuple(leaf.shape) != shape:
        return f"shape {tuple(leaf.shape)} instead of {shape}"
    if leaf.dtype != torch.get_default_dtype():
        return f"numbers of type {leaf.dtype} instead of {torch.get_default_dtype()}"
    if leaf.numel():
        least, most = torch.aminmax(leaf)  # one pass; not a number if any entry is none
        if not (math.isfinite(least) and math.isfinite(most)):
            return "values that are not finite"
        if bool(least < field.low) or bool(most > field.high):
            return f"values outside [{field.low:g}, {field.high:g}]"
    if field.kind == "covariance" and not _are_covariances(leaf):
        return "not a symmetric positive semi-definite matrix"
    return None


def _problem_with_weight(entry: Mean | Sum | Each, field: Field) -> str | None:
    """Check a weight or row mask: it must fit the leading axes of every leaf, and be what was declared."""
    weight = entry.weight if isinstance(entry, Mean) else entry.rows if isinstance(entry, Sum) else ()
    name = "weight" if isinstance(entry, Mean) else "rows"
    if isinstance(weight, tuple) and not isinstance(entry, Mean):
        return None
    if not isinstance(weight, Tensor):
        return f"{name} is no tensor but {type(weight).__name__}"
    shape = tuple(weight.shape)
    axes = {"num_train": (0,), "equal": (0,), "class_counts": (1,)}.get(field.weight, range(9))
    fits = all(leaf_shape[: len(shape)] == shape for leaf_shape in field.leaf_shapes().values())
    if not fits or (isinstance(entry, Mean) and len(shape) not in axes):
        return f"{name} of shape {shape} does not fit the leading axes of the value, or the declaration"
    if not weight.is_floating_point():
        return f"{name} of type {weight.dtype} instead of floating point"
    if not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
        return f"{name} is negative or not finite"
    if isinstance(entry, Sum) and not bool(((weight == 0) | (weight == 1)).all()):
        return "rows must be 0 or 1"
    if field.weight == "equal" and isinstance(entry, Mean) and not bool((weight == 1).all()):
        return "weight must be 1, as declared"
    return None


def _are_covariances(matrices: Tensor) -> bool:
    """Return whether matrices (..., d, d) are symmetric and positive semi-definite up to rounding."""
    matrices = matrices.double()
    tolerance = 1e-5 * matrices.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30)
    if bool(((matrices - matrices.mT).abs() > tolerance).any()):
        return False
    identity = torch.eye(matrices.shape[-1], dtype=torch.float64)
    return bool((torch.linalg.cholesky_ex(matrices + tolerance * identity).info == 0).all())


def upload_bytes(upload: Upload, messages: Messages) -> int:
    """Return the bytes of an upload: rows that are not sent do not count, symmetric matrices count packed."""
    scalars = 0
    weights: dict[str, int] = {}
    for name, entry in upload.items():
        field = messages[name]
        if isinstance(entry, Mean) and field.weight != "equal":
            weights[field.weight if field.weight != "own" else name] = entry.weight.numel()
        mask = _weight_of(entry)
        for leaf in tree.leaves(entry.value):
            share = float((mask > 0).double().mean())
            scalars += round(_scalars(field.kind, tuple(leaf.shape)) * share)
    return BYTES_PER_SCALAR * (scalars + sum(weights.values()))


def download_bytes(messages: Messages) -> int:
    """Return the bytes of a download."""
    return BYTES_PER_SCALAR * sum(field.scalars() for field in messages.values() if field.down)


def _scalars(kind: str, shape: tuple[int, ...]) -> int:
    if kind == "covariance":
        d = shape[-1]
        return math.prod(shape[:-2]) * d * (d + 1) // 2
    return math.prod(shape)


def _flatten_shapes(shapes: Shapes, prefix: str) -> dict[str, tuple[int, ...]]:
    if isinstance(shapes, Mapping):
        result: dict[str, tuple[int, ...]] = {}
        for name, inner in shapes.items():
            result.update(_flatten_shapes(inner, f"{prefix}/{name}" if prefix else str(name)))
        return result
    return {prefix: tuple(shapes)}
