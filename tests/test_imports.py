"""The direction of imports between the parts, and what stays out of them."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "fedtailor"
FILES = sorted(SOURCE.rglob("*.py"))
IDS = [str(path.relative_to(SOURCE)) for path in FILES]

NO_TORCH = {"core.errors", "core.options"}
"""The parts of core that records and the command line may use: they import nothing but the standard library."""

PARTS = {"core", "algorithms", "models", "data", "engines", "flower", "privacy"}

MAY_USE = {
    "__init__": {"contract", "core", "config", "experiment", "models", "records"},
    "__main__": {"cli"},
    "core": set(),
    "algorithms": {"core"},
    "models": {"core"},
    "data": {"core", "atomic"},
    "engines": {"core"},
    "contract": {"core", "algorithms", "engines", "models"},
    "privacy": {"core"},
    "flower": {"core", "engines"},
    "atomic": NO_TORCH,
    "records": {"atomic"} | NO_TORCH,
    "report": {"atomic", "records"} | NO_TORCH,
    "config": {"core", "algorithms", "data", "engines"},
    "summary": {"core"},
    "provenance": {"data", "engines"},
    "algorithm_card": {"algorithms", "core"},
    "catalog": {"algorithm_card", "provenance"} | PARTS,
    "progress": set(),
    "preconditions": {"config", "core"},
    "assembly": {"config", "preconditions", "progress"} | PARTS,
    "experiment": {"assembly", "config", "summary", "provenance", "progress", "atomic", "records"} | PARTS,
    "demo": {"config", "experiment", "progress", "records"},
    "terminal": set(),
    "terminal_data": {"terminal"},
    "terminal_progress": {"terminal"},
    "shell": {"terminal", "atomic"} | NO_TORCH,
    "cli_options": set(),
    "cli_data": {"cli_options", "shell", "config", "data", "terminal", "terminal_data", "atomic"} | NO_TORCH,
    "paper_format": NO_TORCH,
    "papers": {"paper_format", "algorithms", "models", "data"} | NO_TORCH,
    "paper_records": {"papers", "atomic"} | NO_TORCH,
    "paper_runs": {"papers", "paper_records", "config", "experiment", "progress"},
    "terminal_experiments": {"terminal"},
    "cli_experiments": {
        "cli_options",
        "papers",
        "paper_records",
        "paper_runs",
        "shell",
        "terminal",
        "terminal_experiments",
        "terminal_progress",
    }
    | NO_TORCH,
    "cli": {"config", "experiment", "demo", "catalog", "terminal", "terminal_progress", "report", "shell"}
    | {"cli_options", "cli_data", "cli_experiments"}
    | NO_TORCH,
}
"""Part -> the parts it may import, besides itself."""

CORE_LIBRARIES = {"torch", "numpy", "jaxtyping"}


def imports_of(path):
    """Return the modules that a file imports anywhere, as absolute names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def fedtailor_modules(path):
    return {name.removeprefix("fedtailor.") for name in imports_of(path) if name.startswith("fedtailor.")}


def allowed(name, part):
    permitted = MAY_USE[part] | {part}
    return any(name == other or name.startswith(f"{other}.") for other in permitted)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_imports_follow_the_arrows(path):
    part = part_of(path)
    assert part in MAY_USE, f"say in MAY_USE what {part} may import"
    wrong = sorted(name for name in fedtailor_modules(path) if not allowed(name, part) and name != "__version__")
    assert not wrong, f"{part} must not import {wrong}"


@pytest.mark.parametrize("path", [p for p in FILES if part_of(p) == "core"], ids=lambda p: p.name)
def test_core_uses_few_libraries(path):
    libraries = {name.split(".")[0] for name in imports_of(path)} - {"fedtailor", "__future__"}
    assert libraries - set(sys.stdlib_module_names) <= CORE_LIBRARIES


@pytest.mark.parametrize("part", ["atomic", "records", "report", "terminal", "cli"])
def test_no_torch_where_none_is_needed(part):
    for path in (path for path in FILES if part_of(path) == part):
        assert not {name for name in imports_of(path) if name.split(".")[0] == "torch"}, path


@pytest.mark.parametrize("name", sorted(NO_TORCH))
def test_errors_and_options_import_the_standard_library_only(name):
    libraries = {module.split(".")[0] for module in imports_of(SOURCE / f"{name.replace('.', '/')}.py")}
    assert libraries - {"fedtailor"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_nothing_loads_code_from_data(path):
    text = path.read_text()
    for dangerous in ("torch.load(", "allow_pickle=True", "yaml.load(", "eval("):
        assert dangerous not in text.replace(".eval(", ""), f"{path} uses {dangerous}"


def test_pickle_has_one_user():
    users = [str(path.relative_to(SOURCE)) for path in FILES if "pickle" in {n.split(".")[0] for n in imports_of(path)}]
    assert len(users) <= 1 and all(user.startswith("data/") for user in users), users


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) < 300, f"{path} is too long: one idea per file"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length < 40, f"{path}: {node.name} has {length} lines"


SEEDS = {"fedcr.py", "fedlda.py", "pfedfda.py", "pfedvem.py"}
"""The methods that the project is about: theirs are longer."""


@pytest.mark.parametrize("path", sorted((SOURCE / "algorithms").glob("[a-z]*.py")), ids=lambda path: path.name)
def test_a_baseline_is_short(path):
    assert path.name in SEEDS or len(path.read_text().splitlines()) < 150
