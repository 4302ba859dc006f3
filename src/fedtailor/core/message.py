"""Messages: what a client uploads, how the server may see it, and the checks at its border.

``Algorithm.messages`` declares every field once. The declaration is the single source for
validation of uploads, byte counts, documentation and disclosure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import HOST, to_host
from fedtailor.core.errors import describe_error
from fedtailor.core.reduction import ArrivingSum

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

    ``rows``: 1 for the rows that are sent, or () for all.
    """

    value: tree.Tree
    rows: Tensor | tuple[()] = ()


class Each(NamedTuple):
    """The server sees the value of every single client (refused under secure aggregation)."""

    value: tree.Tree


Upload = Mapping[str, Mean | Sum | Each]

_ENTRIES: Mapping[str, type[Any]] = {"mean": Mean, "sum": Sum, "each": Each}
"""The class of an upload's field by its declared reduction."""


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

        def choose(new: Tensor, kept: Tensor) -> Tensor:
            sent = spread(self.total_weight, new) > 0
            return torch.where(sent, new, kept)

        return tree.map(choose, self.value, old)


def spread(weight: Tensor, leaf: Tensor) -> Tensor:
    """Shape a weight so that it broadcasts over the leading axes of ``leaf``."""
    return weight.reshape(weight.shape + (1,) * (leaf.dim() - weight.dim()))


Received = Mapping[str, Reduced]
"""The fields that the server received in a round, by name."""


class PartialSum(NamedTuple):
    """The sum of one field over some clients, in float64.

    It can be sent, and added where the other clients are.
    """

    is_mean: bool
    """Whether the sum is divided by the weight in the end."""
    like: tree.Tree
    """The structure and the types of a value, without its numbers: of the lowest of the clients."""
    weight: Tensor
    """The sum of their weights."""
    leaves: dict[str, Tensor]
    """The weighted sums of their values, by path."""


class FieldSum:
    """One field of a cohort's uploads, reduced in float64 while they arrive, in any order.

    None of them is kept.

    Means and sums are added in a binary tree over client ids (:mod:`fedtailor.core.reduction`), so
    their bits depend on who sent the field and on nothing else. A leaf comes back in its own dtype.
    """

    def __init__(self, clients: Iterable[int]) -> None:
        """Begin with the ids of the clients who may send the field."""
        self._total = ArrivingSum[PartialSum](clients, _joined)

    def add(self, client: int, entry: Mean | Sum | PartialSum) -> None:
        """Add what a client sent, or one of the :meth:`parts` of another sum under its id.

        What a client sent stays as it is, and can be dropped. The memory of a part is used. The
        other clients that are in the part must be skipped.

        Raises:
            KeyError: the client is not expected, or not any more.
        """
        self._total.add(client, entry if isinstance(entry, PartialSum) else _weighted(entry))

    def skip(self, client: int) -> None:
        """Note that nothing of a client counts, or that it is in the part of another one.

        Raises:
            KeyError: the client is not expected, or not any more.
        """
        self._total.skip(client)

    @property
    def num_parts(self) -> int:
        """How many sums of clients are in memory."""
        return self._total.num_parts

    def parts(self) -> dict[int, PartialSum]:
        """Return the sums that are in memory, each by the lowest id of those who are in it."""
        return self._total.parts()

    def result(self) -> Reduced:
        """Return the mean or sum over those who sent the field.

        Raises:
            ValueError: somebody may still come, or nobody came.
        """
        part = self._total.result()
        if part is None:
            raise ValueError("nobody sent the field")

        weight = torch.where(part.weight > 0, part.weight, 1.0)
        reduced = []
        for path, like in tree.paths(part.like).items():
            result = part.leaves[path]
            result = result + 0.0  # zero has one sign: rows of weight zero change nothing
            if part.is_mean:
                result /= spread(weight, result)

            # the memory layout does not depend on who was first
            plain = torch.empty(result.shape, dtype=like.dtype, device=like.device)
            reduced.append(plain.copy_(result))

        return Reduced(tree.rebuild(part.like, iter(reduced)), part.weight)


def _weighted(entry: Mean | Sum) -> PartialSum:
    weight = _weight_of(entry)
    leaves = {}
    for path, leaf in tree.paths(entry.value).items():
        copied = leaf.to(torch.float64, copy=True)
        leaves[path] = copied.mul_(spread(weight, copied))
    like = tree.map(lambda leaf: leaf.new_empty(0), entry.value)
    return PartialSum(isinstance(entry, Mean), like, weight, leaves)


def _joined(left: PartialSum, right: PartialSum) -> PartialSum:
    """Return the sum of two parts, in the memory of the left one.

    Its clients have the lower ids.
    """
    for path, leaf in left.leaves.items():
        leaf.add_(right.leaves[path])
    shorter, longer = sorted(
        (left.weight, right.weight), key=Tensor.dim
    )  # own weights can be for fewer axes
    return left._replace(weight=longer + spread(shorter, longer))


def _weight_of(entry: Mean | Sum) -> Tensor:
    """Return the float64 factor of an entry in its sum."""
    if isinstance(entry, Mean):
        return entry.weight.to(torch.float64, copy=True)
    if isinstance(entry.rows, Tensor):
        return entry.rows.to(torch.float64, copy=True)
    return torch.ones((), dtype=torch.float64)


def reduce_field(entries: Mapping[int, Mean | Sum | Each]) -> Reduced:
    """Reduce one field over the cohort, given by client id, in float64.

    Means and sums are what :class:`FieldSum` makes of them. :class:`Each` values are stacked along
    a new leading axis, in the order of ids.
    """
    ids = sorted(entries)
    if isinstance(entries[ids[0]], Each):
        return Reduced(
            tree.stack([entries[client].value for client in ids]), torch.tensor(float(len(ids)))
        )

    total = FieldSum(ids)
    for client in ids:
        entry = entries[client]
        assert not isinstance(entry, Each)
        total.add(client, entry)

    return total.result()


class Problem(NamedTuple):
    """Why something that a client returns cannot be used.

    ``str`` of it is a sentence without its period.
    """

    kind: Literal[
        "failure",
        "fields",
        "reduction",
        "leaves",
        "shape",
        "type",
        "not finite",
        "range",
        "covariance",
        "weight",
        "state",
        "metric",
        "round",
    ]
    field: str
    """Name of the field of the upload; empty if the problem is not in a field."""
    text: str

    def __str__(self) -> str:
        return f"field '{self.field}': {self.text}" if self.field else self.text


LARGEST_VALUE = 1e30
"""The largest number of an upload, so that sums over clients stay finite in float32."""


def problem_with(upload: Any, messages: Messages, num_train: int | None = None) -> Problem | None:
    """Return why an upload must not be used, or None if it can be.

    Whatever the upload holds is no error.

    Args:
        upload: anything.
        messages: the declaration.
        num_train: number of the client's training examples, which declared weights must agree with;
            None: not known.
    """
    try:
        return _problem_with_upload(upload, messages, num_train)
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as error:  # the values of an upload may raise anything when they are looked at
        return Problem("failure", "", f"the upload cannot be checked: {describe_error(error)}")


def _problem_with_upload(upload: Any, messages: Messages, num_train: int | None) -> Problem | None:
    """Return what is wrong with an upload."""
    if not isinstance(upload, Mapping):
        return Problem(
            "fields", "", f"the upload is of type {type(upload).__name__}, not a mapping"
        )

    expected = {name for name, field in messages.items() if field.reduction != "none"}
    if set(upload) != expected:
        found = sorted(map(str, upload))
        return Problem("fields", "", f"the upload has fields {found} instead of {sorted(expected)}")

    for name, entry in upload.items():
        problem = _problem_with_form(name, entry, messages[name])
        if problem is not None:
            return problem

    numbers = {name: _numbers_of(entry, messages[name]) for name, entry in upload.items()}
    numbers = to_host(numbers, "the check of an upload")
    for name, of_entry in numbers.items():
        problem = _problem_with_numbers(name, of_entry, messages[name], num_train)
        if problem is not None:
            return problem

    return _problem_between_weights(numbers, messages)


def _problem_between_weights(numbers: Mapping[str, _Numbers], messages: Messages) -> Problem | None:
    """Return what is wrong if fields of one kind of weight have different weights.

    The weight is sent once.
    """
    first: dict[str, tuple[str, Tensor]] = {}
    for name, found in numbers.items():
        kind = messages[name].weight
        if messages[name].reduction != "mean" or kind in ("own", "equal"):
            continue

        assert isinstance(found.weight, Tensor)
        other, weight = first.setdefault(kind, (name, found.weight))
        if found.weight.dtype != weight.dtype or not torch.equal(found.weight, weight):
            return Problem(
                "weight", name, f"weight differs from that of '{other}', which is of the same kind"
            )

    return None


def _problem_with_form(name: str, entry: Mean | Sum | Each, field: Field) -> Problem | None:
    """Return what is wrong with the entry of a field, as far as no number of it is looked at."""
    if type(entry) is not _ENTRIES[field.reduction]:
        return Problem(
            "reduction", name, f"sent as {type(entry).__name__}, declared as {field.reduction}"
        )

    shapes = field.leaf_shapes()
    try:
        leaves = tree.paths(entry.value)
    except TypeError as error:
        return Problem("leaves", name, str(error))

    if set(leaves) != set(shapes) or len(leaves) != len(tree.leaves(entry.value)):
        return Problem("leaves", name, f"leaves {sorted(leaves)} instead of {sorted(shapes)}")

    text = _fault_of_containers(entry.value, field.shapes)
    if text:
        return Problem("leaves", name, text)

    for path, leaf in leaves.items():
        which = _which(path)
        if tuple(leaf.shape) != shapes[path]:
            return Problem(
                "shape", name, f"{which} has shape {tuple(leaf.shape)} instead of {shapes[path]}"
            )

        if leaf.dtype != torch.get_default_dtype():
            return Problem(
                "type",
                name,
                f"{which} is of type {leaf.dtype} instead of {torch.get_default_dtype()}",
            )

    text = ""
    if isinstance(entry, Mean):
        text = _fault_of_form("weight", entry.weight, field)
    elif isinstance(entry, Sum) and not isinstance(entry.rows, tuple):
        text = _fault_of_form("rows", entry.rows, field)

    return Problem("weight", name, text) if text else None


def _fault_of_containers(value: tree.Tree, shapes: Shapes) -> str:
    """Return in what the containers of a value differ from the declaration.

    The server's arithmetic gets them.
    """
    if isinstance(shapes, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(shapes):
            return (
                f"sent as {type(value).__name__}, declared as a mapping with the keys "
                f"{list(shapes)}"
            )

        faults = [_fault_of_containers(value[key], shapes[key]) for key in shapes]
    elif hasattr(shapes, "_fields"):
        if type(value) is not type(shapes):
            return f"sent as {type(value).__name__}, declared as {type(shapes).__name__}"

        faults = [
            _fault_of_containers(part, shape) for part, shape in zip(value, shapes, strict=True)
        ]
    elif not isinstance(value, Tensor):
        return f"sent as {type(value).__name__}, declared as a tensor"
    else:
        return ""

    return next(filter(None, faults), "")


def _fault_of_form(what: Literal["weight", "rows"], weight: Any, field: Field) -> str:
    """Return what is wrong with the type or shape of a weight or a row mask, or an empty string.

    It must fit the leading axes of every leaf, and the declaration.
    """
    if not isinstance(weight, Tensor):
        return f"{what} is of type {type(weight).__name__}, not a tensor"

    shape = tuple(weight.shape)
    fits = all(leaf_shape[: len(shape)] == shape for leaf_shape in field.leaf_shapes().values())
    if what == "weight":
        axes = {"num_train": 0, "equal": 0, "class_counts": 1}
        fits = fits and len(shape) == axes.get(field.weight, len(shape))

    if not fits:
        return (
            f"{what} of shape {shape} does not fit the leading axes of the value, or the "
            "declaration"
        )
    if not weight.is_floating_point():
        return f"{what} of type {weight.dtype} instead of floating point"

    return ""


class _LeafNumbers(NamedTuple):
    """What is checked of the numbers of a leaf."""

    ends: tuple[Tensor, ...]
    """The least and the greatest; both are NaN if any is. Empty if there are none."""
    are_counts: Tensor | tuple[()] = ()
    are_covariances: Tensor | tuple[()] = ()


class _Numbers(NamedTuple):
    """What is checked of the numbers of an entry."""

    leaves: dict[str, _LeafNumbers]
    """By path."""
    weight: Tensor | tuple[()]
    """The weight of a mean or the rows of a sum; () if there are none."""


def _numbers_of(entry: Mean | Sum | Each, field: Field) -> _Numbers:
    """Return what is checked of the numbers of an entry, where they lie.

    Nothing is looked at yet.
    """
    leaves = {}
    for path, leaf in tree.paths(entry.value).items():
        are_counts: Tensor | tuple[()] = ()
        are_covariances: Tensor | tuple[()] = ()
        if field.kind == "counts":
            are_counts = ((leaf >= 0) & (leaf == leaf.round())).all()
        if field.kind == "covariance":
            are_covariances = _are_covariances(leaf)

        ends = tuple(torch.aminmax(leaf)) if leaf.numel() else ()  # one pass
        leaves[path] = _LeafNumbers(ends, are_counts, are_covariances)

    weight: Tensor | tuple[()] = ()
    if isinstance(entry, Mean):
        weight = entry.weight
    elif isinstance(entry, Sum):
        weight = entry.rows

    return _Numbers(leaves, weight)


def _problem_with_numbers(
    name: str, numbers: _Numbers, field: Field, num_train: int | None
) -> Problem | None:
    """Return what is wrong with the numbers of an entry, which are on the host."""
    for path, leaf in numbers.leaves.items():
        problem = _problem_with_leaf(name, path, leaf, field)
        if problem is not None:
            return problem

    if not isinstance(numbers.weight, Tensor):
        return None

    text = _fault_of_weight(numbers.weight, field)
    if not text and field.reduction == "mean" and num_train is not None:
        text = _fault_of_count(numbers.weight, field, num_train)

    return Problem("weight", name, text) if text else None


def _problem_with_leaf(name: str, path: str, leaf: _LeafNumbers, field: Field) -> Problem | None:
    """Return what is wrong with the numbers of one tensor of an entry."""
    which = _which(path)
    if leaf.ends:
        least, most = leaf.ends
        if not (math.isfinite(least) and math.isfinite(most)):
            return Problem("not finite", name, f"{which} has values that are not finite")

        if bool(least < field.low) or bool(most > field.high):
            return Problem(
                "range", name, f"{which} has values outside [{field.low:g}, {field.high:g}]"
            )

        if max(-float(least), float(most)) > LARGEST_VALUE:
            return Problem("range", name, f"{which} has values beyond {LARGEST_VALUE:g}")

    if isinstance(leaf.are_counts, Tensor) and not bool(leaf.are_counts):
        return Problem("range", name, f"{which} has values that are not counts")

    if isinstance(leaf.are_covariances, Tensor) and not bool(leaf.are_covariances):
        return Problem(
            "covariance", name, f"{which} is not a symmetric positive semi-definite matrix"
        )

    return None


def _which(path: str) -> str:
    return f"'{path}'" if path else "it"


def _fault_of_weight(weight: Tensor, field: Field) -> str:
    """Return what is wrong with the numbers of a weight or a row mask, or an empty string."""
    what = "weight" if field.reduction == "mean" else "rows"
    if not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
        return f"{what} is negative or not finite"
    if what == "rows" and not bool(((weight == 0) | (weight == 1)).all()):
        return "rows must be 0 or 1"
    if what == "weight" and field.weight == "equal" and not bool((weight == 1).all()):
        return "weight must be 1, as declared"
    return ""


def _fault_of_count(weight: Tensor, field: Field, num_train: int) -> str:
    """Return in what a weight disagrees with the client's number of training examples, or ""."""
    expected = float(torch.tensor(float(num_train), dtype=weight.dtype, device=HOST))
    if field.weight == "num_train" and float(weight) != expected:
        return f"weight is {float(weight):g}, but the client has {num_train} training examples"

    if field.weight == "class_counts":
        if not bool((weight == weight.round()).all()):
            return "weight is not the number of examples by class"
        if float(weight.double().sum()) != num_train:
            return f"weight is for {float(weight.sum()):g} examples, but the client has {num_train}"

    return ""


def _are_covariances(matrices: Tensor) -> Tensor:
    """Return whether matrices (..., d, d) are symmetric and positive semi-definite, ().

    Both up to rounding.
    """
    matrices = matrices.double()
    tolerance = 1e-5 * matrices.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30)
    symmetric = ((matrices - matrices.mT).abs() <= tolerance).all()
    identity = torch.eye(matrices.shape[-1], dtype=torch.float64, device=matrices.device)
    failed: Tensor = torch.linalg.cholesky_ex(matrices + tolerance * identity).info
    return symmetric & (failed == 0).all()


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
