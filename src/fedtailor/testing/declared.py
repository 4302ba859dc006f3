"""Checks of a class before anything runs: signatures, and names that have no effect."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from fedtailor.core.algorithm import Algorithm

_METHODS = (FunctionType, property, classmethod, staticmethod)
_PLAIN = (bool, int, float, str)


def faults(cls: type[Any]) -> list[str]:
    """Return which methods cannot be called like those of the base class, in sentences."""
    sentences = []
    for base, name, value in _definitions(cls):
        inherited = inspect.getattr_static(Algorithm, name, None)
        if not isinstance(value, FunctionType):
            continue

        if isinstance(inherited, property):
            sentences.append(
                f"{base.__name__}.{name} is a method but must be a property: write @property above "
                "it."
            )
        elif isinstance(inherited, FunctionType) and not _takes_the_same(value, inherited):
            parameters = ", ".join(_parameters(value))
            expected = ", ".join(_parameters(inherited))
            sentences.append(
                f"{base.__name__}.{name} takes ({parameters}) but must take ({expected})."
            )

    return sentences


def suspicions(cls: type[Any]) -> list[str]:
    """Return which names of a class look as if they had an effect but have none, in sentences."""
    inherited_names = [name for name in dir(Algorithm) if not name.startswith("_")]
    methods = [
        name
        for name in inherited_names
        if isinstance(inspect.getattr_static(Algorithm, name), _METHODS)
    ]
    sentences = []
    for base, name, value in _definitions(cls):
        if name in inherited_names or name in inspect.get_annotations(base):
            continue

        # A method nobody calls is likely misspelt; a plain value likely lacks its annotation.
        nearest = difflib.get_close_matches(name, methods, n=1, cutoff=0.8)
        if isinstance(value, _METHODS):
            if nearest and nearest[0] not in vars(base):
                sentences.append(
                    f"{base.__name__}.{name} is never called; perhaps you meant '{nearest[0]}'."
                )
        elif isinstance(value, _PLAIN):
            kind = type(value).__name__
            sentences.append(
                f"{base.__name__}.{name} = {value!r} is not an option because it has no "
                f"annotation: annotate it, {name}: {kind} = {value!r} (or, if it is a constant, "
                f"{name}: ClassVar[{kind}] = {value!r})."
            )

    return sentences


def _definitions(cls: type[Any]) -> Iterator[tuple[type[Any], str, Any]]:
    """Yield class, name and value of every public definition below the base class."""
    for base in cls.__mro__:
        if not issubclass(base, Algorithm) or base is Algorithm:
            continue
        for name, value in vars(base).items():
            if not name.startswith("_"):
                yield base, name, value


def _takes_the_same(method: FunctionType, inherited: FunctionType) -> bool:
    """Return whether a method takes the arguments of the inherited one, in the same order.

    Names may differ.
    """
    parameters = inspect.signature(inherited).parameters.values()
    by_name = {
        parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    }
    by_position = [parameter.name for parameter in parameters if parameter.name not in by_name]
    try:
        inspect.signature(method).bind(*by_position, **by_name)
    except TypeError:
        return False

    # Names that both have must stand at the same place: swapped arguments would bind, too.
    names = _parameters(method)
    expected = _parameters(inherited)
    return all(names.index(name) == expected.index(name) for name in names if name in expected)


def _parameters(function: FunctionType) -> list[str]:
    return list(inspect.signature(function).parameters)
