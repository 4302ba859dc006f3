"""The page docs/api.md: the public names and their docstrings."""

import ast
import importlib
import inspect
import typing
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any

import fedtailor
from docstrings import assigned_names, constant_docstrings, field_docstrings, inline, markdown
from import_map import imported_names, modules

INTRODUCTION = """# Public names

What programs may use: every name below keeps its meaning from one version to the next, and the
changelog names what changes. Other modules of the package may change at any time. The commands are
described in [running.md](running.md).
"""
TITLES = {
    "fedtailor": "What a program imports to run experiments, to read their results and to define "
    "its own methods.",
    "fedtailor.toolkit": "What a method is written with; [new-algorithm.md](new-algorithm.md) "
    "shows how.",
}
WIDTH = 100


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    parts = [INTRODUCTION]
    for package, names in public_names().items():
        links = [f"* [`{name}`](#{name.lower()}): {summary(package, name)}" for name in names]
        parts.append(f"## {package}\n\n{TITLES[package]}\n")
        parts.append("\n".join(links) + "\n")
        parts += [entry(package, name) for name in names]

    return {"api.md": "\n".join(parts)}


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


def summary(package: str, name: str) -> str:
    """Return the first line of a docstring."""
    return inline(documentation(package, name).split("\n\n")[0].replace("\n", " "))


def entry(package: str, name: str) -> str:
    """Return the part of the page about a name."""
    value = getattr(importlib.import_module(package), name)
    parts = [f"### {name}"]
    if inspect.ismodule(value):
        parts += [inline(inspect.getdoc(value) or ""), *functions(value)]
    elif inspect.isclass(value):
        parts += [signature(name, value), markdown(inspect.getdoc(value) or ""), *members(value)]
    elif inspect.isroutine(value):
        parts += [signature(name, value), markdown(inspect.getdoc(value) or "")]
    else:
        parts += [f"```python\n{assignment(package, name)}\n```", documentation(package, name)]
    return "\n\n".join(part for part in parts if part) + "\n"


def functions(module: ModuleType) -> Iterator[str]:
    """Yield the public functions and classes that a module defines."""
    for name, value in vars(module).items():
        is_defined_here = getattr(value, "__module__", "") == module.__name__
        is_code = inspect.isroutine(value) or inspect.isclass(value)
        if is_defined_here and is_code and not name.startswith("_"):
            text = inline(inspect.getdoc(value) or "")
            yield "\n\n".join([signature(name, value), text.split("\n\n")[0]])


def members(cls: type) -> Iterator[str]:
    """Yield the fields, the public properties and the public methods that a class defines."""
    if fields := field_docstrings(cls):
        yield listed("Fields", fields)

    properties = {}
    methods = []
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property | cached_property):
            properties[name] = inline(inspect.getdoc(value) or "")
        elif inspect.isroutine(getattr(cls, name)) and inspect.getdoc(getattr(cls, name)):
            methods.append(name)

    if properties:
        yield listed("Properties", properties)

    for name in methods:
        method = getattr(cls, name)
        text = markdown(inspect.getdoc(method) or "")
        yield "\n\n".join([f"#### {cls.__name__}.{name}", signature(name, method), text])


def listed(title: str, texts: Mapping[str, str]) -> str:
    """Return names with their texts as a list."""
    return f"**{title}**\n\n" + "\n".join(f"* `{name}`: {text}" for name, text in texts.items())


def signature(name: str, value: Any) -> str:
    """Return a signature as code; one parameter a line where it is long."""
    try:
        described = inspect.signature(value)
    except ValueError:  # a class that takes what its base takes
        return ""

    parameters = list(_parameters(described))
    returns = "" if inspect.isclass(value) else f" -> {annotation(described.return_annotation)}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) > WIDTH:
        lines = "".join(f"    {parameter},\n" for parameter in parameters)
        line = f"{name}(\n{lines}){returns}"

    return f"```python\n{line}\n```"


def _parameters(described: inspect.Signature) -> Iterator[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    keywords_only = False
    for parameter in described.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keywords_only:
            keywords_only = True
            yield "*"

        text = stars.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {annotation(parameter.annotation)}"

        if parameter.default is not inspect.Parameter.empty:
            default = repr(parameter.default)
            text += " = ..." if default.startswith("<") else f" = {default}"

        yield text


def annotation(value: Any) -> str:
    """Return a type as it is written in the source."""
    if isinstance(value, typing.ForwardRef):
        return value.__forward_arg__
    return value if isinstance(value, str) else inspect.formatannotation(value)
