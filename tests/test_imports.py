"""Imports between the packages of the code follow the map of tools/import_map.py, and go round in
no circle."""

import sys

import pytest

import import_map
from import_map import LAYERS, MAY_IMPORT, SOURCE, TORCH_FREE, imported_names, package_of

RULES = {**MAY_IMPORT, **import_map.ENTRANCES}
MODULES = import_map.modules()
CORE_LIBRARIES = {"torch", "numpy", "threadpoolctl", "safetensors", "jaxtyping"}


def libraries_of(module):
    return {name.split(".")[0] for name in imported_names(MODULES[module])} - {
        "fedtailor",
        "__future__",
    }


def is_within(module, place):
    return module == place or module.startswith(f"{place}.")


def test_the_map_names_every_package():
    packages = {package_of(module) for module in MODULES}
    assert packages <= set(RULES), "say in tools/import_map.py what the new package may import"
    assert set(RULES) <= packages, "a package of the map is gone"


def test_the_layers_hold_every_package_once():
    assert [package for layer in LAYERS for package in layer] == list(MAY_IMPORT)


def test_the_arrows_of_the_map_point_down():
    height = {package: number for number, layer in enumerate(reversed(LAYERS)) for package in layer}
    upward = {
        (package, package_of(place))
        for package, places in MAY_IMPORT.items()
        for place in places
        if height[package_of(place)] >= height[package]
    }
    assert upward == set()


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_map(module):
    package = package_of(module)
    allowed = RULES[package] | {package}
    wrong = [
        other
        for other in sorted(import_map.imported_modules(module))
        if not any(is_within(other, place) for place in allowed)
    ]
    assert wrong == [], f"{package} may import {sorted(RULES[package])}"


METHODS = [
    module for module in MODULES if is_within(module, "algorithms") and module != "algorithms"
]


@pytest.mark.parametrize("module", METHODS)
def test_a_method_imports_the_toolkit_and_its_private_neighbours(module):
    others = import_map.imported_modules(module) - {"toolkit"}
    assert [other for other in sorted(others) if not other.startswith("algorithms._")] == []


def test_no_modules_import_each_other():
    assert import_map.circles() == []


def test_circles_are_found(monkeypatch):
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    monkeypatch.setattr(import_map, "modules", lambda: edges)
    monkeypatch.setattr(import_map, "imported_modules", edges.get)
    assert import_map.circles() == [["a", "b", "c"], ["d", "e"]]


@pytest.mark.parametrize(
    "module", [name for name in MODULES if package_of(name) in {"core", "training", "statistics"}]
)
def test_core_uses_few_libraries(module):
    assert libraries_of(module) - set(sys.stdlib_module_names) <= CORE_LIBRARIES


@pytest.mark.parametrize("place", ["core.atomic", "experiment.reader", "cli"])
def test_no_torch_where_none_is_needed(place):
    modules = [module for module in MODULES if is_within(module, place)]
    assert modules
    assert [module for module in modules if "torch" in libraries_of(module)] == []


@pytest.mark.parametrize("module", sorted(TORCH_FREE))
def test_errors_and_options_import_the_standard_library_only(module):
    assert libraries_of(module) <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_loads_code_from_data(module):
    text = MODULES[module].read_text()
    for harmless in (".eval(", "ast.literal_eval("):
        text = text.replace(harmless, "")
    for dangerous in ("torch.load(", "allow_pickle=True", "yaml.load(", "eval("):
        assert dangerous not in text, f"{module} uses {dangerous}"


def test_pickle_has_one_user():
    users = [module for module in MODULES if "pickle" in libraries_of(module)]
    assert len(users) <= 1 and all(package_of(user) == "data" for user in users), users


def test_every_file_is_a_module_of_the_map():
    assert sorted(MODULES.values()) == sorted(SOURCE.rglob("*.py"))


def test_recordings_are_known_to_the_engines_that_use_them_alone():
    graph = {"training.recording", "training.replay"}
    users = {
        module
        for module in set(MODULES) - graph
        if not graph.isdisjoint(import_map.imported_modules(module))
    }
    assert users == {"simulation.engines.workers", "simulation.engines.child"}


def test_flower_is_imported_in_one_folder_only():
    importing = {
        module
        for module, path in MODULES.items()
        for name in imported_names(path)
        if name.split(".")[0] == "flwr"
    }
    assert importing
    assert {module for module in importing if not module.startswith("deployment.flower.")} == set()
