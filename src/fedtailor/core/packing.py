"""Messages as they travel, and how many bytes that takes.

An upload or a broadcast holds numbers that need not be sent: the lower half of a symmetric matrix,
rows of weight 0, the same weight beside several fields. :func:`pack_upload` and
:func:`pack_download` leave them out, and the receiver puts them back, so that all that is computed
from a message has the same bits as without. Bytes are counted as if every message travelled so,
also in a simulation, where none travels.

A packed upload is a tree of three dicts::

    {"values": {field: {path: tensor}},
     "weights": {"shared": {kind of weight: tensor}, "own": {field: tensor}},
     "rows": {field: bits of the rows that a sum holds}}

A tensor has only the rows that are sent, one after the other along one axis, if there are others;
the last two axes of symmetric matrices are one axis with their upper triangle, row by row. The
weights that fields share by their kind (``num_train``, ``class_counts``) are there once, those that
are ``equal`` not at all. Types of containers, shapes and ranges are not sent: the declaration has
them, and a sender cannot change them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import are_equal, to_host
from fedtailor.core.errors import DataError, one_line
from fedtailor.core.message import (
    BYTES_PER_SCALAR,
    Each,
    Field,
    Mean,
    Messages,
    Sum,
    Upload,
    problem_with,
)

_VALUES = ("not finite", "range", "covariance")
"""Kinds of problems with values. Such an upload can travel, and the server refuses it as a
simulation does."""
_WEIGHT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""A type of whole numbers by the bytes of a number: equal bits are equal whole numbers."""
_SHOWN = 5
"""Keys that a message shows."""


# Counting


def packed_bytes(value: tree.Tree) -> int:
    """Return the bytes of the numbers of a tree; those of the default type count as float32,
    whatever it is.

    Example:
        >>> packed_bytes({"w": torch.zeros(3), "bits": torch.zeros(2, dtype=torch.uint8)})
        14
    """
    return sum(leaf.numel() * _bytes_each(leaf) for leaf in tree.leaves(value))


def upload_bytes(upload: Upload, messages: Messages) -> int:
    """Return the bytes of a sound upload as :func:`pack_upload` packs it, without packing it."""
    total = 0
    weights: dict[str, int] = {}
    masks = to_host(
        {name: _mask_of(entry) for name, entry in upload.items()}, "the bytes of an upload"
    )

    for name, entry in upload.items():
        field = messages[name]
        if isinstance(entry, Mean) and field.weight != "equal":
            key = name if field.weight == "own" else f"shared {field.weight}"
            weights[key] = packed_bytes(entry.weight)

        if isinstance(entry, Sum) and isinstance(entry.rows, Tensor):
            total += bytes_of_rows(tuple(entry.rows.shape))

        for leaf in tree.leaves(entry.value):
            total += _bytes_of_leaf(leaf, masks[name], field)

    return total + sum(weights.values())


def download_bytes(messages: Messages, shared: tree.Tree = ()) -> int:
    """Return the bytes of a download, the values for single clients included.

    Args:
        messages: the declaration.
        shared: what is broadcast. A matrix in it that cannot be packed counts in full. () counts
            all as packed.
    """
    total = BYTES_PER_SCALAR * sum(field.scalars() for field in messages.values() if field.down)
    for value in _covariances(shared, messages).values():
        for leaf in tree.leaves(value):
            if not _is_packable(leaf):
                total += (leaf.numel() - _packed_numbers(leaf)) * BYTES_PER_SCALAR
    return total


def bytes_of_rows(shape: tuple[int, ...]) -> int:
    """Return the bytes of the mask that says which rows a sum holds: a bit for each, in whole
    bytes.
    """
    if not shape:
        return 1
    return math.prod(shape[:-1]) * math.ceil(shape[-1] / 8)


def _bytes_each(leaf: Tensor) -> int:
    """Return the bytes of one number of a tensor, as if the default type were float32."""
    size = leaf.element_size()
    if leaf.is_floating_point():
        return size * BYTES_PER_SCALAR // torch.get_default_dtype().itemsize
    return size


def _bytes_of_leaf(leaf: Tensor, mask: Tensor, field: Field) -> int:
    """Return the bytes of one tensor of an upload."""
    if field.kind == "covariance":
        kept = _kept(leaf, mask)
        numbers = _packed_numbers(kept) if _are_symmetric(kept) else kept.numel()
    else:
        rest = math.prod(leaf.shape[mask.dim() :])
        numbers = int(mask.count_nonzero()) * rest
    return numbers * _bytes_each(leaf)


# Uploads


def pack_upload(upload: Upload, messages: Messages) -> tree.Tree:
    """Return an upload as a tree of dicts and tensors that :func:`fedtailor.core.codec.encode`
    takes.

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
    whole = problem is not None
    if problem is not None and problem.kind not in _VALUES:
        raise DataError(f"upload: {problem}.", key=problem.field or None)

    packed = _Packed({}, {}, {}, {})
    for name, entry in upload.items():
        if whole:
            _refuse_untransportable(name, entry, messages[name])

        _pack_entry(packed, name, entry, messages[name], whole=whole)

    return packed.as_tree()


class _Packed(NamedTuple):
    """The parts of a packed upload."""

    values: dict[str, dict[str, Tensor]]
    shared_weights: dict[str, Tensor]
    own_weights: dict[str, Tensor]
    rows: dict[str, Tensor]

    def as_tree(self) -> tree.Tree:
        """Return them as they travel."""
        weights = {"shared": self.shared_weights, "own": self.own_weights}
        return {"values": self.values, "weights": weights, "rows": self.rows}


def _refuse_untransportable(name: str, entry: Any, field: Field) -> None:
    """Raise if an entry of an upload that has a problem is not as declared in another way than by
    its values.

    Raises:
        DataError: it is not.
    """
    problem = problem_with({name: entry}, {name: field})
    if problem is not None and problem.kind not in _VALUES:
        raise DataError(f"upload: {problem}.", key=name)


def _pack_entry(
    packed: _Packed, name: str, entry: Mean | Sum | Each, field: Field, *, whole: bool
) -> None:
    """Pack the entry of one field; ``whole``: with all its rows."""
    if isinstance(entry, Mean) and field.weight != "equal":
        if entry.weight.dtype not in _WEIGHT_TYPES:
            raise _refuse(
                name, "weight", "of a type of floating point with 16 to 64 bits", entry.weight.dtype
            )

        if field.weight == "own":
            packed.own_weights[name] = entry.weight
        else:
            packed.shared_weights[field.weight] = entry.weight

    if isinstance(entry, Sum) and isinstance(entry.rows, Tensor):
        packed.rows[name] = _to_bits(entry.rows)

    mask = torch.ones((), dtype=torch.bool) if whole else _mask_of(entry)
    leaves = {}
    for path, leaf in tree.paths(entry.value).items():
        kept = _kept(leaf, mask)
        if field.kind == "covariance" and _are_symmetric(kept):
            kept = _triangle(kept)

        leaves[path] = kept

    packed.values[name] = leaves


def unpack_upload(packed: tree.Tree, messages: Messages) -> Upload:
    """Return the upload that :func:`pack_upload` packed.

    Rows that were not sent are 0, or the number nearest to 0 that the field allows. What the
    declaration says of values and weights is not checked here:
    :func:`fedtailor.core.message.problem_with` does that.

    Args:
        packed: from anyone, as :func:`fedtailor.core.codec.decode` returned it.
        messages: the declaration.

    Raises:
        DataError: it is not a packed upload of this declaration; the message names the field.
    """
    parts = _dict_of(packed, "upload", {"values", "weights", "rows"})
    declared = {name: field for name, field in messages.items() if field.reduction != "none"}
    values = _dict_of(parts["values"], "values of an upload", set(declared))
    weights = _dict_of(parts["weights"], "weights of an upload", {"shared", "own"})
    means = {name: field for name, field in declared.items() if field.reduction == "mean"}
    kinds = {field.weight for field in means.values()} - {"own", "equal"}
    shared = _dict_of(weights["shared"], "shared weights of an upload", kinds)
    names = {name for name, field in means.items() if field.weight == "own"}
    own = _dict_of(weights["own"], "own weights of an upload", names)
    sums = {name for name, field in declared.items() if field.reduction == "sum"}
    masked = sums & set(parts["rows"]) if isinstance(parts["rows"], dict) else sums
    rows = _dict_of(parts["rows"], "rows of an upload", masked)

    upload: dict[str, Mean | Sum | Each] = {}

    for name, leaves in values.items():
        field = declared[name]
        if field.reduction == "mean":
            weight = _weight_for(name, field, shared, own)
            upload[name] = Mean(_unpack_value(name, field, leaves, weight > 0), weight)
        elif name in rows:
            mask = _from_bits(name, field, rows[name])
            upload[name] = Sum(
                _unpack_value(name, field, leaves, mask), mask.to(torch.get_default_dtype())
            )
        else:
            value = _unpack_value(name, field, leaves, torch.ones((), dtype=torch.bool))
            upload[name] = Sum(value) if field.reduction == "sum" else Each(value)

    return upload


def _weight_for(
    name: str, field: Field, shared: Mapping[str, Any], own: Mapping[str, Any]
) -> Tensor:
    """Return the weight of a field, which has floating point numbers and fits the leading axes of
    all its leaves.
    """
    if field.weight == "equal":
        return torch.ones(())

    weight = own[name] if field.weight == "own" else shared[field.weight]
    if not isinstance(weight, Tensor) or weight.dtype not in _WEIGHT_TYPES:
        raise _refuse(
            name, "weight", "a tensor of floating point numbers with 16 to 64 bits", _shown(weight)
        )

    shape = tuple(weight.shape)
    if any(leaf_shape[: len(shape)] != shape for leaf_shape in field.leaf_shapes().values()):
        raise _refuse(name, "weight", "of a shape that fits the leading axes of the value", shape)

    return weight


def _unpack_value(name: str, field: Field, leaves: Any, mask: Tensor) -> tree.Tree:
    """Return the value of a field from what was sent of it.

    Args:
        name: of the field.
        field: its declaration.
        leaves: what was sent, by path.
        mask: true for the rows that the weight or the rows of a sum say were sent; it fits the
            leaves.
    """
    shapes = field.leaf_shapes()
    checked = _dict_of(leaves, f"upload, field '{name}'", set(shapes), name)
    full = {
        path: _unpack_leaf(name, path, leaf, shapes[path], field, mask)
        for path, leaf in checked.items()
    }
    places = {path: place for place, path in enumerate(full)}
    return _arranged(field.shapes, full, places, "").value


def _unpack_leaf(
    name: str, path: str, leaf: Any, shape: tuple[int, ...], field: Field, mask: Tensor
) -> Tensor:
    """Return a tensor of the declared shape from the numbers of it that were sent."""
    where = f"'{path}'" if path else "the value"
    if not isinstance(leaf, Tensor) or leaf.dtype != torch.get_default_dtype():
        raise _refuse(name, where, f"a tensor of type {torch.get_default_dtype()}", _shown(leaf))

    rows_sent = int(mask.count_nonzero())
    some = (rows_sent, *shape[mask.dim() :])
    forms = [shape] if rows_sent == mask.numel() else [shape, some]
    got = tuple(leaf.shape)
    for form in forms:
        if field.kind == "covariance" and got == _packed_shape(form):
            leaf = _from_triangle(leaf, form[-1])
        if tuple(leaf.shape) == form:
            return leaf if form == shape else _with_other_rows(leaf, shape, field, mask)

    if field.kind == "covariance":
        forms += [_packed_shape(form) for form in forms]

    raise _refuse(name, where, f"of shape {' or '.join(map(str, forms))}", got)


def _with_other_rows(rows: Tensor, shape: tuple[int, ...], field: Field, mask: Tensor) -> Tensor:
    """Return a tensor with the rows that were sent, and in the others the number nearest to 0 that
    is allowed.
    """
    low = math.ceil(field.low) if field.kind == "counts" and math.isfinite(field.low) else field.low
    result = torch.full(shape, min(max(0.0, low), field.high), dtype=rows.dtype)
    result[mask] = rows
    return result


class _Arranged(NamedTuple):
    """A part of a value."""

    value: tree.Tree
    place: int
    """Of its first leaf in the order in which leaves were sent."""


def _arranged(
    shapes: Any, leaves: Mapping[str, Tensor], places: Mapping[str, int], path: str
) -> _Arranged:
    """Return the leaves below a path in the containers of the declaration.

    Keys of dicts are in the order in which they were sent: a method that goes over them adds
    numbers in it.
    """
    if isinstance(shapes, Mapping):
        children = {
            key: _arranged(shape, leaves, places, _below(path, key))
            for key, shape in shapes.items()
        }
        ordered = sorted(children, key=lambda key: children[key].place)
        first = min((child.place for child in children.values()), default=len(leaves))

        return _Arranged({key: children[key].value for key in ordered}, first)

    names = getattr(shapes, "_fields", None)
    if names is not None:
        parts = [
            _arranged(shapes[at], leaves, places, _below(path, name))
            for at, name in enumerate(names)
        ]
        first = min((part.place for part in parts), default=len(leaves))

        return _Arranged(type(shapes)(*(part.value for part in parts)), first)

    return _Arranged(leaves[path], places[path])


def _below(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


# Downloads


def pack_download(shared: tree.Tree, messages: Messages) -> tree.Tree:
    """Return a broadcast with symmetric matrices as their upper triangles; all else stays as it is.

    Args:
        shared: what :meth:`fedtailor.core.algorithm.Algorithm.broadcast` returned.
        messages: the declaration. Fields are found in ``shared`` by their names.

    Raises:
        DataError: a covariance in ``shared`` is not of the declared shape.
    """
    _check_covariances(shared, messages, packed=False)
    return _replaced(
        shared, messages, lambda leaf, shape: _triangle(leaf) if _is_packable(leaf) else leaf
    )


def unpack_download(packed: tree.Tree, messages: Messages) -> tree.Tree:
    """Return the broadcast that :func:`pack_download` packed, with the same bits, types and memory
    layout.

    Args:
        packed: as :func:`fedtailor.core.codec.decode` returned it.
        messages: the declaration.

    Raises:
        DataError: a covariance has neither the declared nor the packed shape; the message names the
            field.
    """
    _check_covariances(packed, messages, packed=True)

    def unpacked(leaf: Tensor, shape: tuple[int, ...]) -> Tensor:
        return leaf if tuple(leaf.shape) == shape else _from_triangle(leaf, shape[-1])

    return _replaced(packed, messages, unpacked)


def _check_covariances(shared: tree.Tree, messages: Messages, *, packed: bool) -> None:
    """Check the shapes of covariances that are sent down; ``packed``: they may be packed.

    Raises:
        DataError: a shape is wrong.
    """
    for name, value in _covariances(shared, messages).items():
        shapes = messages[name].leaf_shapes()
        try:
            leaves = tree.paths(value)
        except TypeError as error:
            raise _refuse_download(name, "a tree of tensors", str(error)) from error

        if set(leaves) != set(shapes):
            raise _refuse_download(
                name, f"a value with the tensors {sorted(shapes)}", sorted(leaves)
            )

        for path, leaf in leaves.items():
            allowed = [shapes[path]]
            if packed:
                allowed.append(_packed_shape(shapes[path]))

            if tuple(leaf.shape) not in allowed:
                raise _refuse_download(
                    name, f"of shape {' or '.join(map(str, allowed))}", tuple(leaf.shape)
                )


def _replaced(
    shared: tree.Tree, messages: Messages, change: Callable[[Tensor, tuple[int, ...]], Tensor]
) -> tree.Tree:
    """Return a broadcast with the leaves of its covariances changed; ``change`` gets a leaf and its
    declared shape.
    """
    new = {}
    for name, value in _covariances(shared, messages).items():
        shapes = messages[name].leaf_shapes()
        leaves = [change(leaf, shapes[path]) for path, leaf in tree.paths(value).items()]
        new[name] = tree.rebuild(value, iter(leaves))
    if not new:
        return shared
    return {**shared, **new} if isinstance(shared, Mapping) else shared._replace(**new)


def _covariances(shared: Any, messages: Messages) -> dict[str, Any]:
    """Return what a broadcast, a mapping or a NamedTuple, holds in the fields that are
    covariances.
    """
    if not isinstance(shared, Mapping):
        shared = shared._asdict() if hasattr(shared, "_fields") else {}
    return {
        name: shared[name]
        for name, field in messages.items()
        if field.kind == "covariance" and field.down and name in shared
    }


# Rows, bits and triangles


def _mask_of(entry: Mean | Sum | Each) -> Tensor:
    """Return true for the rows that are sent; () if there is one weight for all of them."""
    if isinstance(entry, Mean):
        return entry.weight > 0
    if isinstance(entry, Sum) and isinstance(entry.rows, Tensor):
        return entry.rows > 0
    return torch.ones((), dtype=torch.bool)


def _kept(leaf: Tensor, mask: Tensor) -> Tensor:
    """Return the rows of a leaf that are sent, along one axis; the leaf itself if all are."""
    return leaf if bool(mask.all()) else leaf[mask].contiguous()


def _to_bits(rows: Tensor) -> Tensor:
    """Return a mask with eight entries of its last axis in every byte."""
    mask = (rows > 0).numpy()
    return torch.from_numpy(np.packbits(mask, axis=-1) if mask.ndim else mask.astype(np.uint8))


def _from_bits(name: str, field: Field, bits: Any) -> Tensor:
    """Return the mask that was packed, checked to fit the leading axes of all leaves."""
    if not isinstance(bits, Tensor) or bits.dtype != torch.uint8:
        raise _refuse(name, "rows", "a tensor of type torch.uint8", _shown(bits))

    shapes = list(field.leaf_shapes().values())
    prefixes = {shape[: bits.dim()] for shape in shapes}
    shape = next(iter(prefixes), ())
    expected = (*shape[:-1], math.ceil(shape[-1] / 8)) if shape else ()
    if len(prefixes) != 1 or len(shape) != bits.dim() or tuple(bits.shape) != expected:
        raise _refuse(
            name,
            "rows",
            "bits that fit the leading axes of the value",
            f"shape {tuple(bits.shape)}",
        )

    mask = np.unpackbits(bits.numpy(), axis=-1, count=shape[-1]) if shape else bits.numpy()
    result = torch.from_numpy(mask).bool()
    if not torch.equal(_to_bits(result), bits):
        raise _refuse(
            name, "rows", "bits that are 0 beyond the last row", bits.flatten()[-1].item()
        )

    return result


def _are_symmetric(matrices: Tensor) -> bool:
    """Return whether matrices (..., d, d) are symmetric in every bit."""
    if matrices.element_size() not in _SAME_SIZE:
        return False
    bits = matrices.view(_SAME_SIZE[matrices.element_size()])
    return are_equal([(bits, bits.mT)], "whether matrices are symmetric, for their bytes")


def _is_packable(leaf: Tensor) -> bool:
    """Return whether matrices of a broadcast come back as they are, with their place in memory."""
    plain = torch.empty(leaf.shape, device="meta").stride()
    return leaf.stride() == plain and _are_symmetric(leaf)


def _packed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    size = shape[-1]
    return (*shape[:-2], size * (size + 1) // 2)


def _packed_numbers(matrices: Tensor) -> int:
    """Return how many numbers matrices (..., d, d) have if they are packed."""
    return math.prod(_packed_shape(tuple(matrices.shape)))


def _triangle(matrices: Tensor) -> Tensor:
    """Return the upper triangles of matrices (..., d, d), row by row, (..., d (d + 1) / 2)."""
    rows, columns = torch.triu_indices(matrices.shape[-1], matrices.shape[-1])
    return matrices[..., rows, columns].contiguous()


def _from_triangle(packed: Tensor, size: int) -> Tensor:
    """Return symmetric matrices (..., d, d) from their upper triangles."""
    rows, columns = torch.triu_indices(size, size)
    matrices = torch.empty((*packed.shape[:-1], size, size), dtype=packed.dtype)
    matrices[..., rows, columns] = packed
    matrices[..., columns, rows] = packed
    return matrices


# Errors


def _dict_of(value: Any, what: str, keys: set[Any], field: str | None = None) -> dict[Any, Any]:
    """Return a value that must be a dict with these keys.

    Raises:
        DataError: it is not.
    """
    if isinstance(value, dict) and set(value) == keys:
        return value

    allowed = f"a dict with the keys {sorted(keys)}"
    raise DataError(
        f"{what} must be {allowed}, got {_shown(value)}.",
        key=field,
        allowed=allowed,
        got=_shown(value),
    )


def _shown(value: Any) -> str:
    """Return what a part of a packed message is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of type {value.dtype}"
    if isinstance(value, dict):
        return one_line(f"a dict with the keys {list(value)[:_SHOWN]}")
    return f"a {type(value).__name__}"


def _refuse(name: str, what: str, allowed: str, got: object) -> DataError:
    message = f"upload, field '{name}': {what} must be {allowed}, got {got}."
    return DataError(message, key=name, allowed=allowed, got=str(got))


def _refuse_download(name: str, allowed: str, got: object) -> DataError:
    message = f"download, field '{name}' must be {allowed}, got {got}."
    return DataError(message, key=name, allowed=allowed, got=str(got))
