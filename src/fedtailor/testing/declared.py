"""What can be said of a class before anything runs: signatures, and names that have no effect."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from fedtailor.core.algorithm import Algorithm

_PLAIN = (bool, int, float, str)


def faults(cls: type[Any]) -> list[str]:
    """Return which methods cannot be called as those of the base class are, in sentences."""
    sentences = []
    for base, name, value in _own(cls):
        inherited = inspect.getattr_static(Algorithm, name, None)
        if not isinstance(value, FunctionType):
            continue
        if isinstance(inherited, property):
            sentences.append(f"{base.__name__}.{name} is a method, and must be a property: write @property above it.")
        elif isinstance(inherited, FunctionType) and not _callable_alike(value, inherited):
            own, expected = (f"({', '.join(_names(function))})" for function in (value, inherited))
            sentences.append(f"{base.__name__}.{name} takes {own}, must be {expected}.")
    return sentences


def suspicions(cls: type[Any]) -> list[str]:
    """Return which names of a class look as if they should have an effect and have none, in sentences."""
    known = [name for name in dir(Algorithm) if not name.startswith("_")]
    sentences = []
    for base, name, value in _own(cls):
        if name in known or name in inspect.get_annotations(base):
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if isinstance(value, FunctionType | property | classmethod | staticmethod):
            if close and close[0] not in vars(base):
                sentences.append(f"{base.__name__}.{name} is never called; perhaps '{close[0]}' is meant.")
        elif isinstance(value, _PLAIN):
            kind = type(value).__name__
            sentences.append(
                f"{base.__name__}.{name} = {value!r} is no option, as it has no annotation: annotate it, "
                f"{name}: {kind} = {value!r} (a constant: {name}: ClassVar[{kind}] = {value!r})."
            )
    return sentences


def _own(cls: type[Any]) -> Iterator[tuple[type[Any], str, Any]]:
    """Yield class, name and value of what the classes between an algorithm and the base class define for others."""
    for base in cls.__mro__:
        if issubclass(base, Algorithm) and base is not Algorithm:
            yield from ((base, name, value) for name, value in vars(base).items() if not name.startswith("_"))


def _callable_alike(own: FunctionType, expected: FunctionType) -> bool:
    """Return whether a method takes what the base class's is given, in the same order; other names are allowed."""
    given = inspect.signature(expected).parameters.values()
    named = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
    try:
        inspect.signature(own).bind(*(each.name for each in given if each.name not in named), **named)
    except TypeError:
        return False
    names, wanted = _names(own), _names(expected)
    return all(names.index(name) == wanted.index(name) for name in names if name in wanted)


def _names(function: FunctionType) -> list[str]:
    return list(inspect.signature(function).parameters)
