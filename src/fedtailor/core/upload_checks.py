"""Checks of uploads at the border of the server: each is used whole, or not at all.

An upload may come from a faulty or hostile client. Its containers, shapes, types and numbers, and
the weights with which it would count, are compared with the declaration of the fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import HOST, to_host
from fedtailor.core.errors import describe_error
from fedtailor.core.message import Each, Field, Mean, Messages, Shapes, Sum

Kind = Literal[
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
]
"""What kind of problem there is with something that a client returns."""

LARGEST_VALUE = 1e30
"""The largest number of an upload, so that sums over clients stay finite in float32."""
_ENTRIES: Mapping[str, type[Any]] = {"mean": Mean, "sum": Sum, "each": Each}
"""The class of an upload's field by its declared reduction."""
_WEIGHT_AXES = {"num_train": 0, "equal": 0, "class_counts": 1}
"""The axes of a weight by its kind; one of kind ``own`` has any number."""


class Problem(NamedTuple):
    """Why something that a client returns cannot be used.

    ``str`` of it is a sentence without its period.
    """

    kind: Kind
    field: str
    """Name of the field of the upload; empty if the problem is not in a field."""
    text: str

    def __str__(self) -> str:
        return f"field '{self.field}': {self.text}" if self.field else self.text


def problem_with(upload: Any, messages: Messages, num_train: int | None = None) -> Problem | None:
    """Return why an upload must not be used, or None if it can be. Any upload is accepted.

    Args:
        upload: anything.
        messages: the declaration.
        num_train: number of the client's training examples, which declared weights must agree with;
            None: not known.
    """
    try:
        _check_upload(upload, messages, num_train)
    except _Refused as refusal:
        return refusal.problem
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The values of an upload may raise anything when they are read.
        return Problem("failure", "", f"the upload cannot be checked: {describe_error(error)}")

    return None


class _Refused(Exception):
    """Ends the checks of an upload at its first problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _check_upload(upload: Any, messages: Messages, num_train: int | None) -> None:
    if not isinstance(upload, Mapping):
        text = f"the upload is of type {type(upload).__name__}, not a mapping"
        raise _Refused(Problem("fields", "", text))

    expected = {name for name, field in messages.items() if field.reduction != "none"}
    if set(upload) != expected:
        text = f"the upload has fields {sorted(map(str, upload))} instead of {sorted(expected)}"
        raise _Refused(Problem("fields", "", text))

    # Forms first: only of a tensor with the declared shape and type can numbers be compared.
    checks = {name: _FieldCheck(name, messages[name]) for name in upload}
    for name, check in checks.items():
        check.check_form(upload[name])

    # What is needed of the numbers of all fields comes to the host in one copy.
    numbers = {name: check.numbers_of(upload[name]) for name, check in checks.items()}
    numbers = to_host(numbers, "the check of an upload")
    for name, check in checks.items():
        check.check_numbers(numbers[name], num_train)

    # Fields with one kind of weight share it: it is sent once.
    first: dict[str, tuple[str, Tensor]] = {}
    for name, check in checks.items():
        weight = numbers[name].weight
        kind = check.field.weight
        if check.field.reduction != "mean" or kind in ("own", "equal"):
            continue

        assert isinstance(weight, Tensor)
        other, shared = first.setdefault(kind, (name, weight))
        if weight.dtype != shared.dtype or not torch.equal(weight, shared):
            check.refuse(
                "weight", f"weight differs from that of '{other}', which is of the same kind"
            )


class _LeafNumbers(NamedTuple):
    """What is checked of the numbers of a leaf."""

    ends: tuple[Tensor, ...]
    """The least and the greatest; both are NaN if any is. Empty if there are none."""
    are_of_kind: Tensor
    """Whether they are counts or covariances, where the field holds such."""


class _Numbers(NamedTuple):
    """What is checked of the numbers of an entry."""

    leaves: dict[str, _LeafNumbers]
    """By path."""
    weight: Tensor | tuple[()]
    """The weight of a mean or the mask of a sum; () if there are none."""


class _FieldCheck(NamedTuple):
    """The checks of one field of an upload."""

    name: str
    field: Field

    def refuse(self, kind: Kind, text: str) -> NoReturn:
        raise _Refused(Problem(kind, self.name, text))

    def check_form(self, entry: Any) -> None:
        """Check classes, containers, shapes and types."""
        if type(entry) is not _ENTRIES[self.field.reduction]:
            text = f"sent as {type(entry).__name__}, declared as {self.field.reduction}"
            self.refuse("reduction", text)

        try:
            leaves = tree.paths(entry.value)
        except TypeError as error:
            self.refuse("leaves", str(error))

        # Two leaves of one path would hide each other.
        shapes = self.field.leaf_shapes()
        if set(leaves) != set(shapes) or len(leaves) != len(tree.leaves(entry.value)):
            self.refuse("leaves", f"leaves {sorted(leaves)} instead of {sorted(shapes)}")
        self.check_containers(entry.value, self.field.shapes)

        dtype = torch.get_default_dtype()
        for path, leaf in leaves.items():
            if tuple(leaf.shape) != shapes[path]:
                text = f"has shape {tuple(leaf.shape)} instead of {shapes[path]}"
                self.refuse("shape", f"{_quoted(path)} {text}")
            if leaf.dtype != dtype:
                self.refuse("type", f"{_quoted(path)} is of type {leaf.dtype} instead of {dtype}")

        if isinstance(entry, Mean):
            self.check_form_of_weight("weight", entry.weight)
        elif isinstance(entry, Sum) and not isinstance(entry.mask, tuple):
            self.check_form_of_weight("mask", entry.mask)

    def check_containers(self, value: tree.Tree, shapes: Shapes) -> None:
        """Check that the server's arithmetic gets the declared containers."""
        sent = f"sent as {type(value).__name__}"
        if isinstance(shapes, Mapping):
            if not isinstance(value, Mapping) or set(value) != set(shapes):
                keys = f"declared as a mapping with the keys {list(shapes)}"
                self.refuse("leaves", f"{sent}, {keys}")
            for key in shapes:
                self.check_containers(value[key], shapes[key])
        elif hasattr(shapes, "_fields"):
            if type(value) is not type(shapes):
                self.refuse("leaves", f"{sent}, declared as {type(shapes).__name__}")
            for part, shape in zip(value, shapes, strict=True):
                self.check_containers(part, shape)
        elif not isinstance(value, Tensor):
            self.refuse("leaves", f"{sent}, declared as a tensor")

    def check_form_of_weight(self, what: Literal["weight", "mask"], weight: Any) -> None:
        """Check that a weight or a row mask fits the leading axes of every leaf."""
        if not isinstance(weight, Tensor):
            self.refuse("weight", f"{what} is of type {type(weight).__name__}, not a tensor")

        shape = tuple(weight.shape)
        leading = [leaf[: len(shape)] for leaf in self.field.leaf_shapes().values()]
        fits = all(axes == shape for axes in leading)
        if what == "weight":
            fits = fits and len(shape) == _WEIGHT_AXES.get(self.field.weight, len(shape))

        if not fits:
            text = "does not fit the leading axes of the value, or the declaration"
            self.refuse("weight", f"{what} of shape {shape} {text}")
        if not weight.is_floating_point():
            self.refuse("weight", f"{what} of type {weight.dtype} instead of floating point")

    def numbers_of(self, entry: Mean | Sum | Each) -> _Numbers:
        """Return what is checked of the numbers of an entry, on the device where they lie."""
        leaves = {}
        for path, leaf in tree.paths(entry.value).items():
            are_of_kind = torch.ones((), dtype=torch.bool)
            if self.field.kind == "counts":
                are_of_kind = ((leaf >= 0) & (leaf == leaf.round())).all()
            elif self.field.kind == "covariance":
                are_of_kind = _are_covariances(leaf)

            ends = tuple(torch.aminmax(leaf)) if leaf.numel() else ()  # one pass
            leaves[path] = _LeafNumbers(ends, are_of_kind)

        weight: Tensor | tuple[()] = ()
        if isinstance(entry, Mean):
            weight = entry.weight
        elif isinstance(entry, Sum):
            weight = entry.mask

        return _Numbers(leaves, weight)

    def check_numbers(self, numbers: _Numbers, num_train: int | None) -> None:
        """Check numbers that are on the host."""
        for path, leaf in numbers.leaves.items():
            self.check_leaf(_quoted(path), leaf)

        weight = numbers.weight
        if isinstance(weight, tuple):
            return
        if self.field.reduction == "sum":
            self.check_mask(weight)
        else:
            self.check_weight(weight, num_train)

    def check_leaf(self, which: str, numbers: _LeafNumbers) -> None:
        """Check the numbers of one tensor, which messages name ``which``."""
        if numbers.ends:
            least, most = numbers.ends
            low = self.field.low
            high = self.field.high
            if not (math.isfinite(least) and math.isfinite(most)):
                self.refuse("not finite", f"{which} has values that are not finite")
            if least < low or most > high:
                self.refuse("range", f"{which} has values outside [{low:g}, {high:g}]")
            if max(-float(least), float(most)) > LARGEST_VALUE:
                self.refuse("range", f"{which} has values beyond {LARGEST_VALUE:g}")

        if not numbers.are_of_kind:
            if self.field.kind == "counts":
                self.refuse("range", f"{which} has values that are not counts")
            text = "is not a symmetric positive semi-definite matrix"
            self.refuse("covariance", f"{which} {text}")

    def check_mask(self, mask: Tensor) -> None:
        """Check the mask of a sum."""
        if not _are_weights(mask):
            self.refuse("weight", "mask is negative or not finite")
        if not ((mask == 0) | (mask == 1)).all():
            self.refuse("weight", "mask must be 0 or 1")

    def check_weight(self, weight: Tensor, num_train: int | None) -> None:
        """Check the numbers of a weight, also against the client's number of examples."""
        kind = self.field.weight
        if not _are_weights(weight):
            self.refuse("weight", "weight is negative or not finite")
        if kind == "equal" and not (weight == 1).all():
            self.refuse("weight", "weight must be 1, as declared")
        if num_train is None:
            return

        if kind == "num_train":
            # As the type of the weight holds the number.
            expected = float(torch.tensor(float(num_train), dtype=weight.dtype, device=HOST))
            if float(weight) != expected:
                claim = f"weight is {float(weight):g}"
                self.refuse("weight", f"{claim}, but the client has {num_train} training examples")

        if kind == "class_counts":
            if not (weight == weight.round()).all():
                self.refuse("weight", "weight is not the number of examples by class")
            if float(weight.double().sum()) != num_train:
                claim = f"weight is for {float(weight.sum()):g} examples"
                self.refuse("weight", f"{claim}, but the client has {num_train}")


def _quoted(path: str) -> str:
    """Return the name of a leaf for a message; a value that is one tensor has none."""
    return f"'{path}'" if path else "it"


def _are_weights(weight: Tensor) -> bool:
    return bool((torch.isfinite(weight) & (weight >= 0)).all())


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
