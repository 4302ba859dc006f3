"""Messages as they travel between the server and its sites.

An upload or a broadcast holds numbers that need not be sent: the lower half of a symmetric matrix,
rows of weight 0, the same weight beside several fields. They are left out, and the receiver puts
them back, so that all that is computed from a message has the same bits as in a simulation, whose
count of bytes (:mod:`fedtailor.core.message`) is that of these messages.

A packed upload is a tree of three dicts::

    {"values": {field: value}, "weights": {kind of weight or field: tensor}, "rows": {field: bits}}

A tensor of a value has only the rows that are sent, one after the other along one axis, if there
are others; the last two axes of symmetric matrices are one axis with their upper triangle, row by
row. What a receiver cannot put back stays as it came: the check of the upload refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import DataError, one_line
from fedtailor.core.message import Each, Field, Mean, Messages, Sum, Upload, sent_rows
from fedtailor.core.upload_checks import problem_with
from fedtailor.core.upload_layout import triangle, with_both_halves

VALUE_PROBLEMS = ("not finite", "range", "covariance")
"""Kinds of problems with values. Such an upload can travel, and the server refuses it as a
simulation does."""
_SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""A type of whole numbers by the bytes of a number: equal bits are equal whole numbers."""


def pack_upload(upload: Upload, messages: Messages) -> tree.Tree:
    """Return an upload as a tree that :func:`fedtailor.core.codec.encode` takes.

    An upload with wrong values is packed with all its rows, so that the server sees what is wrong
    and refuses it.

    Args:
        upload: of one client.
        messages: the declaration.

    Raises:
        DataError: the upload is not as declared in another way than by its values, and cannot
            travel.
    """
    problem = problem_with(upload, messages)
    if problem is not None and problem.kind not in VALUE_PROBLEMS:
        raise DataError(f"upload: {problem}.", key=problem.field or None)

    values: dict[str, tree.Tree] = {}
    weights: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}

    for name, entry in upload.items():
        field = messages[name]

        # Fields of one kind of weight share one tensor.
        if isinstance(entry, Mean) and field.weight != "equal":
            weights[_weight_key(name, field)] = entry.weight
        if isinstance(entry, Sum) and isinstance(entry.mask, Tensor):
            rows[name] = _to_bits(entry.mask)

        # Rows that are left out would hide what is wrong in them.
        sent = sent_rows(entry) if problem is None else torch.ones((), dtype=torch.bool)
        leaves = [_packed_leaf(leaf, sent, field) for leaf in tree.leaves(entry.value)]
        values[name] = tree.rebuild(entry.value, iter(leaves))

    return {"values": values, "weights": weights, "rows": rows}


def unpack_upload(packed: tree.Tree, messages: Messages) -> Upload:
    """Return the upload that :func:`pack_upload` packed.

    Rows that were not sent are 0, or the number nearest to 0 that the field allows. What the
    declaration says is not checked here: :func:`fedtailor.core.upload_checks.problem_with` does
    that.

    Args:
        packed: from anyone, as :func:`fedtailor.core.codec.decode` returned it.
        messages: the declaration.

    Raises:
        DataError: it has another form than a packed upload of this declaration.
    """
    try:
        if not isinstance(packed, Mapping):
            raise TypeError("it is not a mapping")

        values = packed["values"]
        weights = packed["weights"]
        rows = packed["rows"]
        if not all(isinstance(part, Mapping) for part in (values, weights, rows)):
            raise TypeError("its parts are not mappings")

        upload: dict[str, Mean | Sum | Each] = {}
        for name, value in values.items():
            upload[name] = _unpacked_entry(name, messages[name], value, weights, rows)
        return upload
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as reason:
        what = one_line(f"{type(reason).__name__}: {reason}")
        raise DataError(f"a message is not a packed upload of this method: {what}.") from reason


def _unpacked_entry(
    name: str, field: Field, value: Any, weights: Mapping[str, Any], rows: Mapping[str, Any]
) -> Mean | Sum | Each:
    if field.reduction == "mean":
        equal = field.weight == "equal"
        weight = torch.ones(()) if equal else weights[_weight_key(name, field)]
        return Mean(_unpacked(value, field, weight > 0), weight)

    if name in rows:
        mask = _from_bits(rows[name], field)
        return Sum(_unpacked(value, field, mask), mask.to(torch.get_default_dtype()))

    whole = _unpacked(value, field, torch.ones((), dtype=torch.bool))
    return Sum(whole) if field.reduction == "sum" else Each(whole)


def _unpacked(value: tree.Tree, field: Field, sent: Tensor) -> tree.Tree:
    """Return a value with the rows that were not sent, and with whole matrices."""
    shapes = field.leaf_shapes()
    leaves = []
    for path, leaf in tree.paths(value).items():
        shape = shapes[path]

        # The shape if only the rows with a weight were sent.
        some = (int(sent.count_nonzero()), *shape[sent.dim() :])
        if field.kind == "covariance":
            leaf = _with_both_halves(leaf, shape, some)
        if leaf.shape != shape and leaf.shape == some:
            leaf = _with_other_rows(leaf, shape, field, sent)
        leaves.append(leaf)

    return tree.rebuild(value, iter(leaves))


def _with_other_rows(rows: Tensor, shape: tuple[int, ...], field: Field, sent: Tensor) -> Tensor:
    """Return a tensor with the rows that were sent, and the number nearest to 0 elsewhere."""
    # A count of 0 may not be allowed, and the check of the upload looks at all rows.
    low = math.ceil(field.low) if field.kind == "counts" and math.isfinite(field.low) else field.low
    result = torch.full(shape, min(max(0.0, low), field.high), dtype=rows.dtype)
    result[sent] = rows
    return result


def pack_download(shared: tree.Tree, messages: Messages) -> tree.Tree:
    """Return a broadcast with symmetric matrices as their upper triangles; all else stays as it is.

    Args:
        shared: what :meth:`fedtailor.core.algorithm.Algorithm.broadcast` returned.
        messages: the declaration. Fields are found in ``shared`` by their names.
    """
    return _with_covariances(shared, messages, lambda leaf, shape: _packed_matrices(leaf))


def unpack_download(packed: tree.Tree, messages: Messages) -> tree.Tree:
    """Return the broadcast that :func:`pack_download` packed, with the same bits and layout.

    Args:
        packed: as :func:`fedtailor.core.codec.decode` returned it.
        messages: the declaration.
    """
    return _with_covariances(packed, messages, _with_both_halves)


def _with_covariances(
    shared: Any, messages: Messages, change: Callable[[Tensor, tuple[int, ...]], Tensor]
) -> tree.Tree:
    """Return a broadcast, a mapping or a NamedTuple, with its covariances changed.

    ``change`` gets every leaf, and the shape that the declaration names for it, () if it names
    none.
    """
    is_mapping = isinstance(shared, Mapping)
    values = shared if is_mapping else getattr(shared, "_asdict", dict)()
    new = {}
    for name, field in messages.items():
        if field.kind == "covariance" and field.down and name in values:
            shapes = field.leaf_shapes()
            paths = tree.paths(values[name])
            leaves = [change(leaf, shapes.get(path, ())) for path, leaf in paths.items()]
            new[name] = tree.rebuild(values[name], iter(leaves))

    if not new:
        return shared
    return {**shared, **new} if is_mapping else shared._replace(**new)


# Weights and rows


def _weight_key(name: str, field: Field) -> str:
    """Return the name of a weight: fields of one kind share it, unless they have their own."""
    return f"own {name}" if field.weight == "own" else field.weight


def _packed_leaf(leaf: Tensor, sent: Tensor, field: Field) -> Tensor:
    """Return the rows of a leaf that are sent, along one axis; the leaf itself if all are."""
    rows = leaf if bool(sent.all()) else leaf[sent].contiguous()
    return triangle(rows) if field.kind == "covariance" and _are_symmetric(rows) else rows


def _to_bits(rows: Tensor) -> Tensor:
    """Return a mask with eight entries of its last axis in every byte."""
    mask = (rows > 0).numpy()
    return torch.from_numpy(np.packbits(mask, axis=-1) if mask.ndim else mask.astype(np.uint8))


def _from_bits(bits: Tensor, field: Field) -> Tensor:
    """Return the mask that was packed, which fits the leading axes of the leaves."""
    shape = next(iter(field.leaf_shapes().values()))[: bits.dim()]

    # No bits of many rows would still become a mask of all of them.
    if tuple(bits.shape[:-1]) != shape[:-1]:
        raise ValueError(f"bits of shape {tuple(bits.shape)} for rows of shape {shape}")

    mask = np.unpackbits(bits.numpy(), axis=-1, count=shape[-1]) if shape else bits.numpy()
    if mask.shape != shape:
        raise ValueError(f"bits of shape {tuple(bits.shape)} for rows of shape {shape}")
    return torch.from_numpy(mask).bool()


# Symmetric matrices


def _are_symmetric(matrices: Tensor) -> bool:
    """Return whether matrices (..., d, d) are symmetric in every bit."""
    if matrices.dim() < 2 or matrices.shape[-1] != matrices.shape[-2]:
        return False
    if matrices.element_size() not in _SAME_SIZE:
        return False

    # As whole numbers, NaN equals itself, and 0 differs from -0.
    bits = matrices.view(_SAME_SIZE[matrices.element_size()])
    return torch.equal(bits, bits.mT)


def _packed_matrices(leaf: Tensor) -> Tensor:
    """Return the triangles of matrices that come back as they are, with their place in memory."""
    # Sums depend on the order in memory, which a triangle loses.
    plain = torch.empty(leaf.shape, device="meta").stride()
    return triangle(leaf) if leaf.stride() == plain and _are_symmetric(leaf) else leaf


def _with_both_halves(leaf: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """Return matrices (..., d, d) if a leaf is the triangles of one of these shapes."""
    for shape in filter(None, shapes):
        *leading, size, _ = shape
        if leaf.shape == (*leading, size * (size + 1) // 2):
            return with_both_halves(leaf, shape)
    return leaf
