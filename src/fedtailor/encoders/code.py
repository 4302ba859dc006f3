"""The digest of a module that encodes: its weights, its code, and the constants of both."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)
"""Types of constants that are part of a digest."""


def digest_of_module(function: Callable[[], nn.Module], module: nn.Module) -> str:
    """Return the SHA-256 of a module, the same on every machine.

    It covers all parameters and buffers; the source of the function, of the classes of the module
    and its parts, and of what these name in their own files, with plain constants there; and the
    plain attributes of all parts. Classes of PyTorch count by their names.

    Args:
        function: of the user, which has made the module.
        module: what it returned.
    """
    digest = hashlib.sha256()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        _add_tensor(digest, name, tensor)

    sources: dict[str, str] = {}
    _add_source(function, sources)
    for name, part in module.named_modules():
        _add_source(type(part), sources)
        digest.update(f"{name}: {_name_of(type(part))}\n".encode())
        for key, value in sorted(vars(part).items()):
            if isinstance(value, Tensor):
                _add_tensor(digest, key, value)
            elif _is_plain(value):
                digest.update(f"{key} = {value!r}\n".encode())

    for name, source in sorted(sources.items()):
        digest.update(f"{name}\n{source}\n".encode())

    return digest.hexdigest()


def _add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    """Add name, type, shape and bytes of a tensor."""
    # As bytes, because NumPy lacks types such as bfloat16.
    values = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
    digest.update(np.ascontiguousarray(values.reshape(-1).view(torch.uint8).numpy()))


def _add_source(value: Any, sources: dict[str, str]) -> None:
    """Add the source of a function or class, and of all that it names in its own file."""
    name = _name_of(value)
    if name in sources:
        return

    is_of_torch = name.split(".")[0] == "torch"
    sources[name] = "" if is_of_torch else _source_of(value)
    if is_of_torch:
        return

    module = sys.modules.get(value.__module__)
    for used in sorted(set(_names_in(value))):
        other = getattr(module, used, None)
        if isinstance(other, FunctionType | type):
            if other.__module__ == value.__module__:
                _add_source(other, sources)
        elif _is_plain(other):
            sources[f"{value.__module__}.{used}"] = repr(other)


def _source_of(value: Any) -> str:
    """Return the text of a function or class; empty if there is none, as in a session of Python."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return ""


def _names_in(value: Any) -> Iterator[str]:
    """Yield the global names that a function, or the methods of a class, use."""
    functions = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for function in functions:
        if isinstance(function, FunctionType):
            yield from _names_of_code(function.__code__)

    if isinstance(value, type):
        yield from (base.__name__ for base in value.__bases__)


def _names_of_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of_code(constant)


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_plain(value: Any) -> bool:
    """Return whether a value is a constant, or lists and tables of constants."""
    if isinstance(value, Mapping):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)
