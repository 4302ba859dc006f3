"""Plain outputs: what a client's program returns, as values that no longer depend on the program.

A program may return anything. What uses an output later must not be surprised, so it is copied at
once, where a failure is the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.core.devices import current

_DEEPEST = 32
"""Levels of nested values."""
_LONGEST_NAME = 500
"""Characters of a name in a mapping."""
LARGEST_EXPANDED = 2**28
"""Bytes of a tensor that repeats its values without storing them."""

_TYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
)
"""The types of tensors that can be stored and sent."""
CLASSES: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)
"""The classes of tensors that can be stored and sent."""
_HARMLESS = frozenset({bool, int, float, str, type(None), torch.dtype})
"""Types of values that are not tensors, and stay as they are: where a tensor is expected, they are
refused by name."""


def plain(value: Any, where: str = "", depth: int = 0) -> Any:
    """Return a copy of nested mappings and tuples with tensors in memory of their own.

    Raises:
        TypeError: it holds something else, or a tensor that cannot be stored; the message names the
            place.
    """
    if depth > _DEEPEST:
        raise TypeError(f"the output is nested more than {_DEEPEST} levels deep")
    if isinstance(value, Tensor):
        return _plain_tensor(value, where)

    if isinstance(value, Mapping):
        result = {}
        for name, child in value.items():
            _check_name(name, where)
            result[name] = plain(child, _join(where, name), depth + 1)
        return result

    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", range(len(value)))
        children = []
        for name, child in zip(names, value, strict=True):
            children.append(plain(child, _join(where, name), depth + 1))
        return type(value)(*children) if hasattr(type(value), "_fields") else tuple(children)

    if type(value) in _HARMLESS:
        return value

    kind = type(value).__name__
    raise TypeError(f"the output holds a value of type {kind}{_at(where)}, which is not a tensor")


def _check_name(name: Any, where: str) -> None:
    if type(name) is int:
        return
    if type(name) is not str:
        kind = type(name).__name__
        raise TypeError(f"the output has a name of type {kind}{_at(where)}, which is not text")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise TypeError(
            f"the output has a name{_at(where)} that is longer than {_LONGEST_NAME} characters or "
            "cannot be printed"
        )


def _plain_tensor(tensor: Tensor, where: str) -> Tensor:
    """Return a copy of a tensor with the same layout in memory, unless its values overlap."""
    problem = ""
    if type(tensor) not in CLASSES:
        problem = f"is of the class {type(tensor).__name__}"
    elif tensor.layout != torch.strided or tensor.is_nested:
        problem = "is nested" if tensor.is_nested else f"has the layout {tensor.layout}"
    elif tensor.device != current():
        problem = f"is on the device {tensor.device}"
    elif tensor.dtype not in _TYPES:
        problem = f"is of type {tensor.dtype}"
    elif tensor.nbytes > LARGEST_EXPANDED and tensor.nbytes > tensor.untyped_storage().nbytes():
        problem = f"repeats its values up to {tensor.nbytes} bytes"

    if problem:
        raise TypeError(
            f"the output holds a tensor{_at(where)} that {problem}; it cannot be stored or sent"
        )

    return tensor.detach().clone()


def _join(where: str, name: Any) -> str:
    return f"{where}/{name}" if where else str(name)


def _at(where: str) -> str:
    return f" at '{where}'" if where else ""
