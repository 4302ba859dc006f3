"""The pages of the public names: which they are. Sphinx takes the rest from the docstrings."""

import ast
import importlib
import inspect
import textwrap
from types import ModuleType

import fedtailor
from docstrings import assigned_names, constant_docstrings
from import_map import imported_names, modules

INTRODUCTION = """# Python: {package}

{title} Every name on this page keeps its meaning from one version to the next, and the changelog
names what changes. Other modules of the package may change at any time.
"""
TITLES = {
    "fedtailor": "What a program imports to run experiments, to read their results and to define "
    "its own methods.",
    "fedtailor.toolkit": "What a method is written with; [Write a method]"
    "(../tutorials/write-a-method.md) shows how.",
}
FILES = {"fedtailor": "reference/api.md", "fedtailor.toolkit": "reference/toolkit.md"}


def pages() -> dict[str, str]:
    """Return the texts of the pages by their paths below docs."""
    texts = {}
    for package, names in public_names().items():
        parts = [INTRODUCTION.format(package=package, title=TITLES[package])]
        for name in names:
            parts.append(f"## {name}\n\n```{{eval-rst}}\n{entry(package, name)}```\n")

        texts[FILES[package]] = "\n".join(parts)

    return texts


def public_names() -> dict[str, list[str]]:
    """Return the public names by the module that they are imported from, each name once."""
    first = sorted(set(fedtailor.__all__) - {"__version__"})
    imported = imported_names(modules()["toolkit"])
    passed_on = [name for name in imported if name.startswith("fedtailor.")]
    toolkit = sorted(name.rpartition(".")[2] for name in passed_on)
    return {"fedtailor": first, "fedtailor.toolkit": toolkit}


def documentation(package: str, name: str) -> str:
    """Return the docstring of a public name; that of a constant stands below it in its module."""
    value = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return constant_docstrings(importlib.import_module(home(package, name))).get(name, "")

    # Dataclasses and NamedTuples without a docstring have their signature in its place.
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if text.startswith(f"{name}(") else text


def home(package: str, name: str) -> str:
    """Return the module that defines a name, from the imports of the package that passes it on."""
    module = package.removeprefix("fedtailor").removeprefix(".") or "__init__"
    imports = imported_names(modules()[module])
    (origin,) = (origin for origin in imports if origin.rpartition(".")[2] == name)
    return origin.rpartition(".")[0]


def assignment(package: str, name: str) -> str:
    """Return the statement that defines a constant."""
    source = inspect.getsource(importlib.import_module(home(package, name)))
    for statement in ast.parse(source).body:
        if name in assigned_names(statement):
            return ast.get_source_segment(source, statement) or ""

    raise ValueError(f"{package} passes on {name}, which {home(package, name)} does not define")


def entry(package: str, name: str) -> str:
    """Return the directives of Sphinx that document a name."""
    value = getattr(importlib.import_module(package), name)
    if inspect.ismodule(value):
        return module_entry(value)
    if inspect.isclass(value):
        return f".. autoclass:: {package}.{name}\n   :members:\n"
    if inspect.isroutine(value):
        return f".. autofunction:: {package}.{name}\n"

    # A constant: its statement, and the text below it.
    code = textwrap.indent(assignment(package, name), "      ")
    text = textwrap.indent(documentation(package, name), "   ")
    return f".. py:data:: {package}.{name}\n\n   .. code-block:: python\n\n{code}\n\n{text}\n"


def module_entry(module: ModuleType) -> str:
    """Return the directives for a module of the toolkit: its text, and what it defines."""
    names = []
    for name, value in vars(module).items():
        is_defined_here = getattr(value, "__module__", "") == module.__name__
        is_code = inspect.isroutine(value) or inspect.isclass(value)
        if is_defined_here and is_code and not name.startswith("_"):
            names.append(name)

    return f".. automodule:: {module.__name__}\n   :members: {', '.join(names)}\n"
