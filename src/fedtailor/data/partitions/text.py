"""Parser of texts such as ``dirichlet(alpha=0.5)``; nothing in them is run as code."""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from typing import Any

from fedtailor.core.errors import ConfigError, find_name
from fedtailor.core.options import build
from fedtailor.data.partitions import PARTITIONS
from fedtailor.data.partitions.base import KEY, Partition

_MAX_TEXT = 200


def parse_partition(text: str) -> Partition:
    """Read a partition such as ``dirichlet(alpha=0.5, min_size=10)``.

    Raises:
        ConfigError: a name or an option is unknown (the message gives the nearest one), or a value
            is missing or wrong.

    Example:
        >>> str(parse_partition("dirichlet(alpha=0.5)"))
        'dirichlet(alpha=0.5, min_size=10)'
    """
    name, options = read_expression(text, key=KEY, example="dirichlet(alpha=0.5) or iid")
    name = find_name("partition", name, PARTITIONS, key=KEY)
    cls = PARTITIONS[name].load()
    fields = {field.name: field for field in dataclasses.fields(cls)}

    # An unknown option is reported first, by build: it may be the absent one, misspelled.
    if set(options) <= set(fields):
        for field in fields.values():
            if field.default is dataclasses.MISSING and field.name not in options:
                key = f"{name}.{field.name}"
                message = f"{key} must be given, got '{text}'."
                raise ConfigError(message, key=key, allowed="a value", got=text)

    return build(cls, options, section=name)


def read_expression(
    text: str, *, key: str, example: str = "name(option=1)"
) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text ``name`` or ``name(option=value, ...)``.

    Values are written as in Python. The error message shows ``key`` and ``example``.

    Raises:
        ConfigError: the text has another form.

    Example:
        >>> read_expression("cifar_s(clients=50, pairing='release')", key="data.shift")
        ('cifar_s', {'clients': 50, 'pairing': 'release'})
    """
    if len(text) > _MAX_TEXT:
        raise _unreadable(f"{text[:_MAX_TEXT]}...", key, example)

    # A bare name, or a call with named options: Python's own grammar, and nothing is run.
    try:
        node = _parse(text.strip())
        if isinstance(node, ast.Name):
            return node.id, {}

        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
            if None not in options and len(options) == len(node.keywords):
                return node.func.id, {str(option): value for option, value in options.items()}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text, key, example) from error

    raise _unreadable(text, key, example)


def _parse(text: str) -> ast.expr:
    """Return the syntax tree, after hyphens in the name became underscores."""
    # A name may have hyphens, as in label-slices.
    name, parenthesis, options = text.partition("(")
    spelled = re.sub(r"(?<=[a-zA-Z0-9])-(?=[a-zA-Z])", "_", name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python only warns of strange numbers
        return ast.parse(spelled + parenthesis + options, mode="eval").body


def _unreadable(text: str, key: str, example: str) -> ConfigError:
    allowed = f"a name with named options, such as {example}"
    message = f"{key} must be {allowed}, got {text!r}."
    return ConfigError(message, key=key, allowed=allowed, got=text)
