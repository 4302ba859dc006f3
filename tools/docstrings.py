"""Docstrings as Markdown."""

import ast
import dataclasses
import inspect
import re
import textwrap
from itertools import pairwise
from types import ModuleType

SECTIONS = {
    "Args": "Arguments",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Raises",
    "Example": "Example",
}
"""Heading of a section of a docstring -> heading on a page."""


def inline(text: str) -> str:
    """Turn the references and literals of reStructuredText into those of Markdown.

    >>> inline("see :class:`Training` and ``x``")
    'see `Training` and `x`'
    """
    return re.sub(r":(?:class|func|mod|meth|data):`~?([^`]+)`", r"`\1`", text.replace("``", "`"))


def markdown(docstring: str) -> str:
    """Turn a docstring with sections into Markdown: arguments as a list, examples as code."""
    paragraphs = []
    for block in re.split(rf"^(?=(?:{'|'.join(SECTIONS)}):$)", docstring, flags=re.MULTILINE):
        heading, _, rest = block.partition(":\n")
        if heading in SECTIONS:
            paragraphs.append(_section(heading, textwrap.dedent(rest).strip()))
        else:
            paragraphs.append(inline(block.strip()))
    return "\n\n".join(paragraphs)


def _section(heading: str, text: str) -> str:
    title = f"**{SECTIONS[heading]}**"
    if heading == "Example":
        return f"{title}\n\n```python\n{text.replace('  # doctest: +SKIP', '')}\n```"
    if heading in ("Returns", "Yields"):
        return f"{title}: {inline(text)}"
    items = re.split(r"\n(?=\S)", text)
    return f"{title}\n\n" + "\n".join(
        re.sub(r"^([\w.*]+):", r"* `\1`:", inline(item)) for item in items
    )


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
