"""Options: the fields of frozen dataclasses, checked against their annotations.

One mechanism serves hyper-parameters, the ``[training]`` section and every other section of a
configuration: the annotation gives the type, :class:`Range` the bounds, ``Literal`` the choices.
Values are never converted silently, but for an integer where a float is expected, and another
spelling of a choice (``Workers`` for ``workers``).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin
from weakref import WeakKeyDictionary

from fedtailor.core.errors import ConfigError, FedtailorError, match_name, unknown_name

T = TypeVar("T")

_LONGEST_VALUE = 200
"""Characters of a value in a message."""
_DEEPEST_VALUE = 4
"""Levels of lists and tables in a message."""
_LARGEST_INTEGER = 10**100
"""Whole numbers from here on are not written out."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number: ``ge``/``gt`` from below, ``le``/``lt`` from above.

    NaN is never inside.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether ``value`` is inside."""
        return not (
            math.isnan(value)
            or (self.ge is not None and value < self.ge)
            or (self.gt is not None and value <= self.gt)
            or (self.le is not None and value > self.le)
            or (self.lt is not None and value >= self.lt)
        )

    def __str__(self) -> str:
        signs = ((">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt))
        return " and ".join(f"{sign} {_show(bound)}" for sign, bound in signs if bound is not None)


NonNegativeInt = Annotated[int, Range(ge=0)]
"""A whole number from 0 on, such as epochs."""
PositiveInt = Annotated[int, Range(ge=1)]
"""A whole number from 1 on."""
NonNegativeFloat = Annotated[float, Range(ge=0)]
"""A number from 0 on, such as the weight of a penalty."""
PositiveFloat = Annotated[float, Range(gt=0)]
"""A number above 0, such as a learning rate."""
Share = Annotated[float, Range(ge=0, le=1)]
"""A part of a whole: from 0 to 1."""


@dataclass(frozen=True)
class AsReleased:
    """Marks, in an annotation, an option that exists because of a bug of a released code."""

    bug: str
    """What the released code does, in a sentence without its period."""


@dataclass(frozen=True)
class AtZero:
    """Says, in an annotation, what becomes of a method where an option is 0."""

    consequence: str
    """The end of a sentence that begins with the option."""


@dataclass(frozen=True)
class NoResult:
    """Marks, in an annotation, an option that changes no result, such as a number of threads.

    A run can be resumed with another value, and it is not part of the name of a run folder.
    """


@dataclass(frozen=True)
class Flag:
    """An option of the command line that sets a field, in the annotation of that field.

    ``fedtailor run``, ``compare`` and ``sweep`` have an option for every such field of the
    configuration. It reads what the field holds: a number, a text, or neither for a bool.
    """

    option: str
    metavar: str
    help: str
    short: str = ""


_HINTS: WeakKeyDictionary[type[Any], Mapping[str, Any]] = WeakKeyDictionary()


def hints_of(cls: type[Any]) -> Mapping[str, Any]:
    """Return the annotations of a dataclass by the names of fields; they are read once."""
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls, include_extras=True)
    return _HINTS[cls]


def marks_of(cls: type[Any], kind: type[T]) -> dict[str, T]:
    """Return the marks of one kind in the annotations of a dataclass, by the names of fields."""
    return marks_in(hints_of(cls), kind)


def marks_in(hints: Mapping[str, Any], kind: type[T]) -> dict[str, T]:
    """Return the marks of one kind in annotations, by the names of these."""
    marks = {}
    for name, hint in hints.items():
        extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        for extra in extras:
            if isinstance(extra, kind):
                marks[name] = extra
    return marks


def plain_type(hint: Any) -> type[bool | int | float | str] | None:
    """Return the type of all values that an annotation allows; None if they have several.

    >>> plain_type(Annotated[float, Range(gt=0)]), plain_type(Literal["sgd", "adam"])
    (<class 'float'>, <class 'str'>)
    """
    if get_origin(hint) is Annotated:
        return plain_type(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return str if all(isinstance(choice, str) for choice in get_args(hint)) else None
    return hint if hint in (bool, int, float, str) else None


def _show(bound: float) -> str:
    """Write a bound: whole numbers exactly, as far as floats hold them."""
    return str(int(bound)) if bound == int(bound) and abs(bound) <= 2**53 else f"{bound:g}"


def check_options(
    instance: Any, *, owner: str | None = None, keys: Mapping[str, str] | None = None
) -> None:
    """Check every field of a dataclass instance against its annotation.

    An integer in a float field becomes a float. Messages call a field ``owner.field`` (default
    owner: the class name), or what ``keys`` says.

    Raises:
        ConfigError: naming owner and field, what is allowed and what was given.
    """
    owner = owner or type(instance).__name__
    keys = keys or {}
    hints = hints_of(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        checked = check_value(
            value, hints[field.name], key=keys.get(field.name, f"{owner}.{field.name}")
        )
        if checked is not value:
            object.__setattr__(instance, field.name, checked)


def check_value(value: Any, hint: Any, *, key: str, bounds: Range | None = None) -> Any:
    """Return ``value`` if it fits the annotation ``hint``.

    An int becomes a float where one is due.

    ``bounds`` hold for every number within the value, unless the annotation has closer ones.
    """
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        bounds = next((extra for extra in extras if isinstance(extra, Range)), bounds)

    # Of several alternatives, such as ``int | Literal["auto"]``, the first that fits counts.
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    value = _as_choice(value, kinds)
    kind = next((kind for kind in kinds if _fits(value, kind)), None)
    if kind is None:
        raise wrong_value(key, " or ".join(_describe(kind) for kind in kinds), value)
    if get_origin(kind) is Annotated:
        return check_value(value, kind, key=key, bounds=bounds)
    if isinstance(value, tuple) and get_origin(kind) is tuple:
        item_hint = get_args(kind)[0]
        if item_hint is str:
            return value  # all of them are text, and there may be millions

        return tuple(check_value(item, item_hint, key=key, bounds=bounds) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _check_number(value, kind, key, bounds)

    return value


def _check_number(value: int | float, kind: Any, key: str, bounds: Range | None) -> int | float:
    """Check a number's bounds; what no float can hold counts as not finite."""
    try:
        as_float = float(value)
    except OverflowError:
        as_float = math.inf

    if not math.isfinite(as_float):
        raise wrong_value(key, "a finite number", value)
    if bounds is not None and not bounds.holds(value):
        raise wrong_value(key, str(bounds), as_float if kind is float else value)

    return as_float if kind is float else value


def _as_choice(value: Any, kinds: Iterable[Any]) -> Any:
    """Return the choice that a text stands for, where the annotation lists choices.

    Any other value as it is.
    """
    if not isinstance(value, str):
        return value

    choices: list[str] = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            choices += [choice for choice in get_args(kind) if isinstance(choice, str)]

    return match_name(value, choices) or value


def _fits(value: Any, kind: Any) -> bool:
    """Return whether ``value`` is of one plain kind; a bool is not a number."""
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(kind))
    if get_origin(kind) is Annotated:
        return _fits(value, get_args(kind)[0])
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)

    plain = get_origin(kind) or kind
    if plain is tuple and isinstance(value, tuple):
        (inner, *_) = get_args(kind) or (Any,)
        return all(_fits(item, inner) for item in value)

    return isinstance(value, plain)


_KINDS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    dict: "a section with keys",
    Mapping: "a section with keys",
}
_ITEMS = {float: "numbers", int: "whole numbers", str: "text values"}


def _describe(kind: Any) -> str:
    """Return the words for a kind of value."""
    if kind is type(None):
        return "nothing"
    if get_origin(kind) is Annotated:
        return _describe(get_args(kind)[0])

    if get_origin(kind) is Literal:
        choices = ", ".join(repr(choice) for choice in get_args(kind))
        return choices if len(get_args(kind)) == 1 else f"one of {choices}"

    plain = get_origin(kind) or kind
    if plain is tuple:
        items = _ITEMS.get(get_args(kind)[0]) if get_args(kind) else None
        return f"a list of {items}" if items else "a list"

    return _KINDS.get(plain, str(getattr(plain, "__name__", plain)))


def wrong_value(
    key: str,
    allowed: str,
    got: object,
    hint: str = "",
    *,
    kind: type[FedtailorError] = ConfigError,
    path: str | Path | None = None,
) -> FedtailorError:
    """Return the error for a wrong value of an option: what is allowed, what it is, and a hint.

    >>> str(wrong_value("training.lr", "above 0", -1, "Try 0.1."))
    'training.lr must be above 0, got -1. Try 0.1.'
    """
    text = show(got)
    message = f"{key} must be {allowed}, got {text}. {hint}".rstrip()
    return kind(message, key=key, path=path, allowed=allowed, got=text)


def show(value: Any) -> str:
    """Return a value about as a configuration file would write it, and cut if it is long."""
    text = _written(value, depth=0)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} ..."


def _written(value: Any, depth: int) -> str:
    """Return a value in the form of TOML; what is nested too deep is left out."""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LARGEST_INTEGER:
        return "a whole number of many digits"
    if isinstance(value, list | tuple | Mapping) and depth == _DEEPEST_VALUE:
        return "..."
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(item, depth + 1) for item in value)}]"
    if isinstance(value, Mapping):
        items = [f"{key} = {_written(item, depth + 1)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"

    return str(value)


def check_names(names: Iterable[str], allowed: Sequence[str], *, section: str) -> None:
    """Check that every key of a section is allowed.

    Raises:
        ConfigError: one is not; the message names the nearest.
    """
    for name in map(str, names):
        if name not in allowed:
            raise unknown_name("option", name, allowed, of=section, key=f"{section}.{name}")


def build(cls: type[T], values: Mapping[str, Any], *, section: str) -> T:
    """Build a dataclass from a mapping; unknown keys are an error that names the nearest one.

    Args:
        cls: checks its own fields, with :func:`check_options`.
        values: by the names of fields.
        section: for the message.

    Raises:
        ConfigError: an unknown key, or a value that does not fit its field.
    """
    names = [field.name for field in dataclasses.fields(cast(Any, cls))]
    check_names(values, names, section=section)
    return cls(**values)
