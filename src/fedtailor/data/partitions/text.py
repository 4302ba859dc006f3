"""Parser of texts such as ``dirichlet(alpha=0.5)``: a name with named options. No code in them is
run.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from typing import Any

from fedtailor.core.errors import ConfigError, find_name
from fedtailor.core.options import build
from fedtailor.data import PARTITIONS
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
    cls: type[Partition] = PARTITIONS[name].resolve()
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for field in fields.values():
        if (
            field.default is dataclasses.MISSING
            and field.name not in options
            and set(options) <= set(fields)
        ):
            key = f"{name}.{field.name}"
            raise ConfigError(
                f"{key} must be given, got '{text}'.", key=key, allowed="a value", got=text
            )

    return build(cls, options, section=name)


def read_expression(
    text: str, *, key: str, example: str = "name(option=1)"
) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text ``name`` or ``name(option=value, ...)``.

    Values are numbers, quoted texts, True and False. The error message shows ``key`` and
    ``example``.

    Raises:
        ConfigError: the text has another form.

    Example:
        >>> read_expression("cifar_s(clients=50, pairing='release')", key="data.shift")
        ('cifar_s', {'clients': 50, 'pairing': 'release'})
    """
    if len(text) > _MAX_TEXT:
        raise _unreadable(text, key, example)

    try:
        node = _parse(text.strip())
        if isinstance(node, ast.Name):
            return node.id, {}

        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            names = [keyword.arg for keyword in node.keywords]
            if None not in names and len(set(names)) == len(names):
                return node.func.id, {str(each.arg): _literal(each.value) for each in node.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text, key, example) from error

    raise _unreadable(text, key, example)


def _parse(text: str) -> ast.expr:
    """Return the syntax tree, after hyphens in the name became underscores; Python's warnings
    become SyntaxErrors.
    """
    name, parenthesis, options = text.partition("(")
    spelled = re.sub(r"(?<=[a-zA-Z0-9])-(?=[a-zA-Z])", "_", name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ast.parse(spelled + parenthesis + options, mode="eval").body


def _literal(node: ast.expr) -> Any:
    """Return the value of a number, a text, True or False."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if type(value) in (int, float):
            return -value
    raise ValueError("not a plain value")


def _unreadable(text: str, key: str, example: str) -> ConfigError:
    allowed = f"a name with named options, such as {example}"
    shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    return ConfigError(
        f"{key} must be {allowed}, got {shown!r}.", key=key, allowed=allowed, got=shown
    )
