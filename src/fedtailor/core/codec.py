"""Trees of tensors as bytes, and back.

One form for checkpoints, stores of client states, and models.

The bytes are a safetensors file. It holds the leaves under their paths, such as
``body/conv1.weight``, so that every reader of safetensors can use it. Its metadata holds the
structure of the tree as JSON: dicts with the order of their keys, tuples, NamedTuples by module and
name, and the memory layout of leaves that do not lie in the plain order of their axes. A tree that
is read back has the same bits, types and strides.

Bytes may come from a stranger. Nothing in them is executed or imported: a NamedTuple is made only
if it belongs to a module that the reader allows and that is loaded already, and the number of
bytes, of leaves, of axes and of levels is limited, before anything is made of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import DataError, one_line
from fedtailor.core.reading import UNEXPECTED, most_values

CODEC_VERSION = 1
"""Of the form. A reader refuses other versions."""
_METADATA = "fedtailor"
"""The key of the metadata; there is one only, because safetensors does not keep their order."""
_VALUES_OF_LEAF = 32
"""Values of JSON that describe a leaf beside its axes, and the containers around it."""
_ALIGNMENT = 64
"""Bytes. PyTorch aligns memory to it, and the last bit of a sum can depend on it."""


class Limits(NamedTuple):
    """How large a tree may be."""

    size: int = 2**33
    """Bytes of the encoded tree."""
    leaves: int = 2**17
    """Leaves, and other nodes of the tree without children."""
    depth: int = 32
    """Levels of the tree."""
    header: int = 100_000_000
    """Bytes of the names, shapes and structure; safetensors has the same limit."""
    axes: int = 64
    """Axes of a leaf; PyTorch allows no more in most of its operations."""


LIMITS = Limits()


def encode(
    value: tree.Tree, *, modules: Collection[str] | None = None, limits: Limits = LIMITS
) -> bytes:
    """Return a tree as bytes.

    Args:
        value: the tree. The keys of its dicts are text or whole numbers.
        modules: names of modules; if given, a reader who allows these can decode the bytes.
        limits: how large the tree may be.

    Raises:
        TypeError: the tree holds something else than tensors, or a NamedTuple that could not be
            decoded, or is too large; the message names the place.

    Example:
        >>> decode(encode({"w": torch.arange(3), "nothing": ()}))
        {'w': tensor([0, 1, 2]), 'nothing': ()}
    """
    writer = _Writer(modules, limits)
    structure = writer.structure(value, "", 0)
    header = json.dumps({"version": CODEC_VERSION, "tree": structure}, separators=(",", ":"))
    data = save(writer.leaves, metadata={_METADATA: header})
    if len(data) > limits.size:
        raise TypeError(f"the tree takes {len(data)} bytes, more than {limits.size}")
    return data


def decode(data: bytes, *, modules: Collection[str] = (), limits: Limits = LIMITS) -> tree.Tree:
    """Return the tree that :func:`encode` wrote.

    Args:
        data: the bytes.
        modules: names of the modules whose NamedTuples are allowed, the modules within them
            included. They must be loaded already.
        limits: how large the tree may be.

    Raises:
        DataError: the bytes are damaged, too many, or of another form, or hold a NamedTuple that is
            not allowed.
    """
    if len(data) > limits.size:
        raise _unreadable(f"{len(data)} bytes are more than {limits.size}")

    structure = _read_structure(data, limits)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as reason:
        raise _unreadable(str(reason)) from reason

    reader = _Reader(tensors, modules, limits)
    value = reader.value(structure, 0)
    if reader.unused:
        example = sorted(reader.unused)[0]
        raise _unreadable(f"it holds tensors that are not in the tree, such as {example!r}")

    return value


def compact(value: tree.Tree) -> tree.Tree:
    """Return the tree with every leaf in memory of its own, as if it had just been decoded.

    A leaf may be a view into something larger, which it would keep in memory, or begin at an odd
    address, on which the last bit of a result can depend.
    """
    return tree.map(_compact_leaf, value)


class _Writer:
    """Collects the leaves of a tree and describes its structure."""

    def __init__(self, modules: Collection[str] | None, limits: Limits) -> None:
        self.leaves: dict[str, Tensor] = {}
        self._modules = modules
        self._limits = limits
        self._nodes = 0

    def structure(self, value: Any, path: str, depth: int) -> Any:
        """Return the structure of a part of the tree, ready for JSON."""
        if depth > self._limits.depth:
            raise TypeError(f"'{path}' lies more than {self._limits.depth} levels deep")

        self._nodes += 1
        if self._nodes > 2 * self._limits.leaves:
            raise TypeError(f"the tree has more than {self._limits.leaves} leaves")

        if isinstance(value, Tensor):
            return self._leaf(value, path)
        if isinstance(value, Mapping):
            return self._dict(value, path, depth)
        if isinstance(value, tuple):
            return self._tuple(value, path, depth)

        raise TypeError(f"'{path or '.'}' must be a tensor, got {type(value).__name__}")

    def _dict(self, value: Mapping[Any, Any], path: str, depth: int) -> Any:
        # Pairs, because objects of JSON have keys of text only.
        items = []
        for key, child in value.items():
            _check_key(key, path)
            items.append([key, self._child(child, path, key, depth)])
        return {"dict": items}

    def _tuple(self, value: tuple[Any, ...], path: str, depth: int) -> Any:
        """Return the structure of a tuple, or of a NamedTuple: with the names of its fields."""
        names = getattr(value, "_fields", range(len(value)))
        children = {}
        for name, child in zip(names, value, strict=True):
            children[name] = self._child(child, path, name, depth)
        if not hasattr(value, "_fields"):
            return {"tuple": list(children.values())}

        # What a reader could not find again is refused here, and not when it is needed.
        class_name = _name_of(type(value))
        if self._modules is not None and _find_class(class_name, self._modules) is not type(value):
            raise TypeError(
                f"'{path or '.'}' is a {class_name.replace(':', '.')}, which cannot be read back: "
                "define it at the top level of the method's module, or of a module that this one "
                "imports"
            )

        return {"type": class_name, "fields": children}

    def _child(self, value: Any, path: str, name: Any, depth: int) -> Any:
        return self.structure(value, f"{path}/{name}" if path else str(name), depth + 1)

    def _leaf(self, leaf: Tensor, path: str) -> Any:
        """Collect a leaf, and return its name and its memory layout."""
        _check_leaf(leaf, path)
        if len(self.leaves) == self._limits.leaves:
            raise TypeError(f"the tree has more than {self._limits.leaves} leaves")

        # Two paths can look alike: {"a/b": ..., "a": {"b": ...}}.
        name = path
        while name in self.leaves or name == "__metadata__":
            name += "~"

        # safetensors stores the plain order of axes, so another one is noted beside it.
        leaf = leaf.detach()
        strides = leaf.stride()
        stored = leaf.clone(memory_format=torch.contiguous_format)
        self.leaves[name] = stored
        if strides == stored.stride() or not _is_dense(leaf.shape, strides):
            return {"leaf": name}
        return {"leaf": name, "strides": list(strides)}


def _check_key(key: Any, path: str) -> None:
    """Refuse a key of a dict that JSON would change."""
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise TypeError(
            f"'{path or '.'}' has a key of type {type(key).__name__}; keys are text or whole "
            "numbers"
        )


def _check_leaf(leaf: Tensor, path: str) -> None:
    """Refuse a tensor that safetensors cannot store."""
    is_plain = leaf.layout is torch.strided and not leaf.is_quantized and not leaf.is_complex()
    if not is_plain or leaf.device.type != "cpu":
        raise TypeError(
            f"'{path or '.'}' is a tensor of layout {leaf.layout} and type {leaf.dtype} on "
            f"{leaf.device}"
        )


class _Reader:
    """Rebuilds a tree from its structure and its leaves."""

    def __init__(
        self, tensors: Mapping[str, Tensor], modules: Collection[str], limits: Limits
    ) -> None:
        self._tensors = tensors
        self.unused = set(tensors)
        """The names of leaves that the tree has not used."""
        self._modules = modules
        self._limits = limits
        self._nodes = 0

    def value(self, node: Any, depth: int) -> tree.Tree:
        """Return the part of the tree that a node of the structure describes."""
        self._nodes += 1
        if depth > self._limits.depth:
            raise _unreadable(f"it has more than {self._limits.depth} levels")
        if self._nodes > 2 * self._limits.leaves or len(self._tensors) > self._limits.leaves:
            raise _unreadable(f"it has more than {self._limits.leaves} leaves")

        match node:
            case {"leaf": str(name), **rest}:
                return self._leaf(name, rest)
            case {"dict": list(items), **rest} if not rest:
                return self._dict(items, depth)
            case {"tuple": list(children), **rest} if not rest:
                return tuple(self.value(child, depth + 1) for child in children)
            case {"type": str(name), "fields": dict(fields), **rest} if not rest:
                return self._named_tuple(name, fields, depth)

        raise _unreadable("the structure of the tree is of another form")

    def _leaf(self, name: str, rest: Mapping[Any, Any]) -> Tensor:
        if name not in self.unused:
            raise _unreadable(f"the tensor {name!r} is missing or used twice")

        self.unused.remove(name)
        stored = self._tensors[name]
        strides: Any = rest.get("strides", stored.stride())

        # Strides with gaps or overlaps could ask for any amount of memory.
        are_possible = _are_strides(strides, stored.dim()) and _is_dense(stored.shape, strides)
        if not are_possible or set(rest) - {"strides"}:
            raise _unreadable(f"the memory layout of the tensor {name!r} is impossible")

        # A copy: what is stored is neither aligned nor independent of the other leaves.
        leaf = torch.empty_strided(stored.shape, strides, dtype=stored.dtype, device="cpu")
        return leaf.copy_(stored)

    def _dict(self, items: Sequence[Any], depth: int) -> dict[str | int, tree.Tree]:
        value: dict[str | int, tree.Tree] = {}
        for item in items:
            match item:
                case [key, child] if type(key) in (str, int) and key not in value:
                    value[key] = self.value(child, depth + 1)
                case _:
                    raise _unreadable("the structure of the tree is of another form")

        return value

    def _named_tuple(self, name: str, fields: Mapping[str, Any], depth: int) -> tree.Tree:
        cls = _find_class(name, self._modules)
        if cls is None:
            reason = "which is not allowed or does not exist here"
            raise _unreadable(f"it holds a NamedTuple {name!r}, {reason}")
        if list(cls._fields) != list(fields):
            here = list(cls._fields)
            raise _unreadable(f"{name!r} has fields {here} here, and {list(fields)} there")

        # This way runs no code of the class.
        children = [self.value(child, depth + 1) for child in fields.values()]
        return tuple.__new__(cls, children)


def _read_structure(data: bytes, limits: Limits) -> Any:
    """Return the structure of the tree from the metadata of a safetensors file.

    Raises:
        DataError: the file is damaged, has none, or names more or larger tensors than allowed.
    """
    try:
        # A file begins with the length of its header in 8 bytes; then follows the header, in JSON.
        length = int.from_bytes(data[:8], "little")
        if length > limits.header:
            raise _unreadable(f"its header has {length} bytes, more than {limits.header}")

        # A leaf stands in the header and in the structure, with some values of its own.
        raw = data[8 : 8 + length]
        if most_values(raw) > (_VALUES_OF_LEAF + 2 * limits.axes) * limits.leaves:
            raise _unreadable(f"it has more than {limits.leaves} leaves")

        header = json.loads(raw)
        description = json.loads(header.pop("__metadata__")[_METADATA])
        _check_shapes(header, limits)
        version = description["version"]
        structure = description["tree"]
    except UNEXPECTED as reason:
        raise _unreadable("it does not begin with the structure of a tree") from reason

    if version != CODEC_VERSION:
        raise _unreadable(
            f"its form is of version {version!r:.40}, and this reads version {CODEC_VERSION}"
        )

    return structure


def _check_shapes(header: Mapping[str, Any], limits: Limits) -> None:
    """Check the number of tensors and of their axes before any is made: views take their square."""
    if len(header) > limits.leaves:
        raise _unreadable(f"it has more than {limits.leaves} leaves")

    for name, entry in header.items():
        axes = len(entry["shape"])
        if axes > limits.axes:
            raise _unreadable(f"the tensor {name!r:.80} has {axes} axes, more than {limits.axes}")


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _find_class(name: str, modules: Collection[str]) -> Any:
    """Return a class of NamedTuples by module and name; None if it is not allowed or not there."""
    module, _, qualified = name.partition(":")
    if not any(module == allowed or module.startswith(f"{allowed}.") for allowed in modules):
        return None

    # Nothing is imported, and no attribute is computed.
    value: Any = sys.modules.get(module)
    for part in qualified.split("."):
        value = vars(value).get(part) if hasattr(value, "__dict__") else None

    # A name may lead to another object, or to a class that has this name elsewhere.
    is_tuple = isinstance(value, type) and issubclass(value, tuple)
    if not is_tuple or not hasattr(value, "_fields") or _name_of(value) != name:
        return None
    return value


def _are_strides(strides: Any, dimensions: int) -> bool:
    if not isinstance(strides, list | tuple) or len(strides) != dimensions:
        return False
    return all(type(step) is int and 0 <= step < 2**62 for step in strides)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor fills its memory, each element once."""
    if 0 in shape:
        return True

    # An axis of one element has no step.
    axes = [(step, size) for size, step in zip(shape, strides, strict=True) if size > 1]

    # From the axis whose neighbors lie next to each other, each step is the size of all before.
    expected = 1
    for step, size in sorted(axes):
        if step != expected:
            return False

        expected *= size

    return True


def _compact_leaf(leaf: Tensor) -> Tensor:
    leaf = leaf.detach()
    strides = leaf.stride()
    if not _is_dense(leaf.shape, strides):
        return leaf.clone(memory_format=torch.contiguous_format)

    # As it is, if it fills its memory and begins where PyTorch would put it.
    fills_memory = leaf.untyped_storage().nbytes() == leaf.nbytes
    if fills_memory and leaf.data_ptr() % _ALIGNMENT == 0:
        return leaf

    copied = torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=leaf.device)
    return copied.copy_(leaf)


def _unreadable(reason: str) -> DataError:
    return DataError(f"not a tree of tensors: {one_line(reason)}.")
