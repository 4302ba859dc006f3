"""Docstrings as Markdown."""

import ast
import dataclasses
import inspect
import re
import textwrap
from functools import cache
from itertools import pairwise
from types import ModuleType


def inline(text: str) -> str:
    """Turn the references and literals of reStructuredText into those of Markdown.

    >>> inline("see :class:`Training` and ``x``")
    'see `Training` and `x`'
    """
    return re.sub(r":(?:class|func|mod|meth|data):`~?([^`]+)`", r"`\1`", text.replace("``", "`"))


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the text below each field of a class, inherited ones too, as one line."""
    texts = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
            texts.update(_texts_below(tree.body[0].body))

    return texts


def constant_docstrings(module: ModuleType) -> dict[str, str]:
    """Return the text below each constant of a module, as one line."""
    return _texts_below(ast.parse(inspect.getsource(module)).body)


def assigned_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement assigns to."""
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _texts_below(statements: list[ast.stmt]) -> dict[str, str]:
    """Return the strings that stand right below an assignment, by the name it assigns to."""
    texts = {}
    for statement, below in pairwise(statements):
        if not isinstance(below, ast.Expr) or not isinstance(below.value, ast.Constant):
            continue

        for name in assigned_names(statement):
            texts[name] = inline(" ".join(inspect.cleandoc(str(below.value.value)).split()))

    return texts
