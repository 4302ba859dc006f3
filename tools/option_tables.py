"""Tables of options: the fields of dataclasses with their defaults, ranges and docstrings."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from docstrings import field_docstrings
from fedtailor.core.options import AsReleased, Range, hints_of, marks_of

_NAMES = {int: "whole number", float: "number", bool: "true, false", str: "text", Any: "any"}


HEAD = "| option | default | allowed | meaning |\n|---|---|---|---|\n"


def option_table(cls: type, names: Iterable[str]) -> str:
    """Return the table of some fields of a dataclass of options."""
    return HEAD + "".join(option_row(cls, name) for name in names)


def option_row(cls: type, name: str, key: str = "") -> str:
    """Return the row of a field, which a configuration may call by another key."""
    (field,) = [field for field in dataclasses.fields(cls) if field.name == name]
    meaning = cell(field_docstrings(cls).get(name, ""))
    mark = marks_of(cls, AsReleased).get(name)
    if mark:
        meaning += f" *As released (bug)*: {mark.bug}."

    words = allowed(hints_of(cls)[name])
    return f"| `{key or name}` | {default_of(field)} | {words} | {meaning} |\n"


def default_of(field: "dataclasses.Field[Any]") -> str:
    """Return the default of an option as code in TOML; a dash if it must be given."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "-"

    if value is None or dataclasses.is_dataclass(value):
        return f"`{value}`"

    return f"`{json.dumps(value)}`"


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("*<", r"\*<").replace("|", r"\|")


def allowed(hint: Any, marks: Sequence[Any] = ()) -> str:
    """Return the allowed values of an option, in words.

    >>> allowed(typing.Annotated[int, Range(ge=1)] | typing.Literal["auto"])
    'whole number >= 1 or `"auto"`'
    """
    if typing.get_origin(hint) is typing.Annotated:
        hint, *marks = typing.get_args(hint)

    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return " or ".join(allowed(kind, marks) for kind in kinds)
    if origin is typing.Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in typing.get_args(hint))
    if origin is tuple:
        return f"list of: {allowed(typing.get_args(hint)[0])}"
    if origin is dict or hint is dict:
        return "table"

    ranges = [str(mark) for mark in marks if isinstance(mark, Range)]
    return " ".join([_NAMES.get(hint, hint.__name__), *ranges])
