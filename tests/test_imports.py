"""The direction of imports between the parts, and what stays out of them."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "fedtailor"
FILES = sorted(SOURCE.rglob("*.py"))
IDS = [str(path.relative_to(SOURCE)) for path in FILES]

NO_TORCH = {"core.errors", "core.options", "core.atomic"}
"""The parts of core that records and the command line may use: they import nothing but the standard library."""

MAY_USE = {
    "__init__": {"testing", "core", "experiment", "models"},
    "__main__": {"cli"},
    "core": {"training"},
    "training": {"core"},
    "statistics": {"training", "core"},
    "algorithms": {"statistics", "training", "core"},
    "models": {"core"},
    "data": {"core"},
    "simulation": {"training", "core"},
    "experiment": {"simulation", "models", "data", "algorithms", "core"},
    "papers": {"experiment", "models", "data", "algorithms"} | NO_TORCH,
    "testing": {"simulation", "models", "algorithms", "training", "core"},
    "cli": {"papers", "testing", "experiment", "data"} | NO_TORCH,
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


@pytest.mark.parametrize(
    "path", [p for p in FILES if part_of(p) in {"core", "training", "statistics"}], ids=lambda p: p.name
)
def test_core_uses_few_libraries(path):
    libraries = {name.split(".")[0] for name in imports_of(path)} - {"fedtailor", "__future__"}
    assert libraries - set(sys.stdlib_module_names) <= CORE_LIBRARIES


@pytest.mark.parametrize("part", ["core/atomic.py", "experiment/records.py", "cli"])
def test_no_torch_where_none_is_needed(part):
    for path in (path for path in FILES if path.relative_to(SOURCE).as_posix().startswith(part)):
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


def test_recordings_are_known_to_the_engines_that_use_them_alone():
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if any(name.startswith("training.step_graph") for name in fedtailor_modules(path))
    }
    others = {user for user in users if not user.startswith("training/step_graph/")}
    assert others == {"simulation/engines/workers.py", "simulation/engines/child.py"}
