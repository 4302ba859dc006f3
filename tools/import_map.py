"""The map of the code: its packages, and which may import which.

A package is a folder or a module directly under ``src/fedtailor``. tests/test_imports.py enforces
the map, and tools/architecture_page.py draws it.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fedtailor"

LAYERS = (
    ("cli",),
    ("deployment", "testing"),
    ("serving",),
    ("report",),
    ("experiment",),
    ("simulation", "models", "baselines", "data", "algorithms"),
    ("encoders",),
    ("toolkit",),
    ("statistics",),
    ("training",),
    ("privacy",),
    ("core",),
)
"""The packages from top to bottom. A package imports packages of lower layers only."""

TORCH_FREE = frozenset(
    {
        "core.atomic",
        "core.errors",
        "core.extras",
        "core.folders",
        "core.metrics",
        "core.options",
        "core.reading",
        "core.text",
    }
)
"""Parts of core that import the standard library only, so that the command line starts without
torch."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    "cli": frozenset(
        {"deployment", "report", "testing", "serving", "experiment", "data", "privacy"}
    )
    | TORCH_FREE,
    "deployment": frozenset(
        {
            *("serving", "experiment", "simulation", "models"),
            *("data", "algorithms", "encoders", "privacy", "core"),
        }
    ),
    "testing": frozenset({"simulation", "privacy", "models", "algorithms", "training", "core"}),
    "serving": frozenset(
        {
            *("experiment", "simulation", "models", "baselines", "statistics"),
            *("data", "algorithms", "encoders", "privacy", "core"),
        }
    ),
    "report": frozenset({"experiment", "data", "privacy.claims"}) | TORCH_FREE,
    "experiment": frozenset(
        {"simulation", "models", "data", "algorithms", "baselines", "privacy", "core"}
    ),
    "simulation": frozenset({"training", "privacy", "core"}),
    "models": frozenset({"core"}),
    "baselines": frozenset({"core"}),
    "data": frozenset({"encoders", "core"}),
    "algorithms": frozenset({"toolkit", "core.algorithm", "core.errors", "core.targets"}),
    "encoders": frozenset({"core"}),
    "toolkit": frozenset({"statistics", "training", "core"}),
    "statistics": frozenset({"training", "core"}),
    "training": frozenset({"core"}),
    "privacy": frozenset({"core"}),
    "core": frozenset(),
}
"""Package -> the packages, or parts of packages, that it may import besides itself."""

ENTRANCES: dict[str, frozenset[str]] = {
    "__init__": frozenset({"testing", "core", "serving", "experiment", "models"}),
    "__main__": frozenset({"cli"}),
}
"""The modules through which users come in, and what they may import: the public names, and the
command line."""


@cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its name without ``fedtailor.``.

    The package itself is ``__init__``.
    """
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def package_of(module: str) -> str:
    """Return the package of a module.

    >>> package_of("core.rng")
    'core'
    """
    return module.partition(".")[0]


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Return what a file imports anywhere, as absolute names.

    Imports inside functions and for type checkers count too.
    """
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level > 0:
                raise ValueError(f"{path}:{node.lineno}: imports are absolute")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def imported_modules(module: str) -> frozenset[str]:
    """Return the modules of the package that a module imports.

    The version is a constant and does not count.
    """
    found = set()
    for name in imported_names(modules()[module]) - {"fedtailor.__version__"}:
        if name == "fedtailor" or name.startswith("fedtailor."):
            found.add(_module_of(name.removeprefix("fedtailor").removeprefix(".")))
    return frozenset(found - {module})


def _module_of(name: str) -> str:
    """Return the module that holds a name: ``core.rng`` for ``core.rng.fold``."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or "__init__"


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    edges = {module: imported_modules(module) for module in modules()}
    reached = {module: _reachable(module, edges) for module in edges}
    groups = set()
    for module, others in reached.items():
        if module in others:
            groups.add(frozenset(other for other in others if module in reached[other]))
    return sorted(sorted(group) for group in groups)


def _reachable(start: str, edges: dict[str, frozenset[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(edges[module])
    return found
