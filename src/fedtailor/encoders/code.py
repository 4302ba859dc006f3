"""The digest of a module that encodes: its weights, its code, and the constants of both."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)
"""Types of constants that are part of a digest."""
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that PyTorch gives all modules; they differ between its versions."""

_OF_EVERY_FILE = frozenset(("__file__", "__path__", "__spec__", "__cached__", "__builtins__"))
"""Globals that Python gives all files; they say where these are."""


def digest_of_module(function: Callable[[], nn.Module], module: nn.Module) -> str:
    """Return the SHA-256 of a module, the same on every machine.

    It covers all parameters and buffers; the source of the function, of the classes of the module
    and its parts, and of what these name in their own files; and those attributes of all parts, and
    global values of these files, that are plain, are arrays, or can be called, such as transforms.
    Classes of PyTorch count by their names. Other objects, such as settings, do not count.

    Args:
        function: of the user, which has made the module.
        module: what it returned.
    """
    digest = hashlib.sha256()
    sources: dict[str, str] = {}
    seen: set[int] = set()
    if hasattr(function, "__qualname__"):
        _add_source(function, sources, seen)
    else:  # a partial, or another object that can be called
        _add_value(digest, "function", function, sources, seen)

    _add_value(digest, "", module, sources, seen)
    for name, source in sorted(sources.items()):
        digest.update(f"{name}\n{source}\n".encode())

    return digest.hexdigest()


def _add_value(digest: Any, path: str, value: Any, sources: dict[str, str], seen: set[int]) -> None:
    """Add an attribute to a digest, and all that it consists of."""
    if isinstance(value, Tensor):
        _add_tensor(digest, path, value)
    elif isinstance(value, np.ndarray):
        _add_array(digest, path, value)
    elif _is_plain(value):
        digest.update(f"{path} = {value!r}\n".encode())
    elif isinstance(value, FunctionType | type):
        digest.update(f"{path}: {_name_of(value)}\n".encode())
        _add_source(value, sources, seen)
    elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            _add_value(digest, f"{path}.{key}", item, sources, seen)
    elif callable(value) and id(value) not in seen:
        seen.add(id(value))
        own_name = getattr(value, "__qualname__", "")  # of functions in C
        digest.update(f"{path}: {_name_of(type(value))} {own_name}\n".encode())
        _add_source(type(value), sources, seen)
        for key, item in _attributes_of(value):
            _add_value(digest, f"{path}.{key}", item, sources, seen)


def _attributes_of(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object by name; of a module also its weights and parts."""
    if isinstance(value, partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if not isinstance(value, nn.Module):
        return sorted(getattr(value, "__dict__", {}).items())

    own = [item for item in vars(value).items() if item[0] not in _OF_EVERY_MODULE]
    weights = [*value.named_parameters(recurse=False), *value.named_buffers(recurse=False)]
    return [*weights, *sorted(own), *value.named_children()]


def _add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    """Add name, type, shape and bytes of a tensor."""
    # As bytes, because NumPy lacks types such as bfloat16.
    values = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
    digest.update(np.ascontiguousarray(values.reshape(-1).view(torch.uint8).numpy()))


def _add_array(digest: Any, name: str, array: np.ndarray) -> None:
    """Add name, type, shape and bytes of an array; of one of objects, what it prints if plain."""
    digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
    if array.dtype.hasobject:
        objects = array.tolist()
        digest.update(repr(objects).encode() if _is_plain(objects) else b"")
        return

    digest.update(np.ascontiguousarray(array).tobytes())


def _add_source(value: Any, sources: dict[str, str], seen: set[int]) -> None:
    """Add the source of a function or class, and of all that it names in its own file."""
    name = _name_of(value)

    # All lambdas of a file have one name.
    if "<lambda>" in name:
        name = f"{name} {_source_of(value)}"
    if name in sources:
        return

    # To find a source can take long.
    is_of_torch = name.split(".")[0] == "torch"
    sources[name] = "" if is_of_torch else _source_of(value)
    if is_of_torch:
        return

    # Names of attributes are among them too.
    in_file = vars(sys.modules.get(value.__module__, object))
    for used in sorted((set(_names_in(value)) & set(in_file)) - _OF_EVERY_FILE):
        other = in_file[used]
        if isinstance(other, FunctionType | type):
            if other.__module__ == value.__module__:
                _add_source(other, sources, seen)
        else:
            _add_global(f"{value.__module__}.{used}", other, sources, seen)


def _add_global(name: str, value: Any, sources: dict[str, str], seen: set[int]) -> None:
    """Add a global value of a file, such as a mean or a transform."""
    is_counted = _is_plain(value) or callable(value)
    is_counted |= isinstance(value, Tensor | np.ndarray | Mapping | list | tuple)
    if name in sources or not is_counted:
        return

    # Before what it consists of, which may use it.
    sources[name] = ""
    digest = hashlib.sha256()
    _add_value(digest, "", value, sources, seen)
    sources[name] = digest.hexdigest()


def _source_of(value: Any) -> str:
    """Return the text of a function or class; empty if there is none, as in a session of Python."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return ""


def _names_in(value: Any) -> Iterator[str]:
    """Yield the global names that a function, or the methods of a class, use."""
    for function in _functions_in(value):
        yield from _names_of_code(function.__code__)

    if isinstance(value, type):
        yield from (base.__name__ for base in value.__bases__)


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """Yield a function, or those of a class; also what decorators wrap."""
    members = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for member in members:
        parts = [member]
        if isinstance(member, property):
            parts = [member.fget, member.fset, member.fdel]

        for part in parts:
            function = getattr(part, "__func__", part)  # of static and class methods
            while function is not None:
                if isinstance(function, FunctionType):
                    yield function
                function = getattr(function, "__wrapped__", None)


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
