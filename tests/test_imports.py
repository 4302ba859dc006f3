"""Imports between the packages of the code follow the map of tools/import_map.py, and go round in
no circle."""

import json
import os
import subprocess
import sys

import pytest

import import_map
from import_map import LAYERS, MAY_IMPORT, SOURCE, TORCH_FREE, imported_names, package_of
from report.made_runs import write_run

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


def test_imports_follow_the_map():
    """What a package may import is in tools/import_map.py."""

    def is_allowed(module, other):
        package = package_of(module)
        return any(is_within(other, place) for place in RULES[package] | {package})

    assert wrong_imports(MODULES, is_allowed) == {}


def test_a_method_imports_the_toolkit_and_its_private_neighbours():
    methods = [name for name in MODULES if is_within(name, "algorithms") and name != "algorithms"]

    def is_allowed(module, other):
        return other == "toolkit" or other.startswith("algorithms._")

    assert wrong_imports(methods, is_allowed) == {}


def wrong_imports(modules, is_allowed):
    """Return what modules import and may not, for each module that does."""
    wrong = {
        module: [
            other
            for other in sorted(import_map.imported_modules(module))
            if not is_allowed(module, other)
        ]
        for module in modules
    }
    return {module: others for module, others in wrong.items() if others}


def test_no_modules_import_each_other():
    assert import_map.circles() == []


def test_circles_are_found(monkeypatch):
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    monkeypatch.setattr(import_map, "modules", lambda: edges)
    monkeypatch.setattr(import_map, "imported_modules", edges.get)
    assert import_map.circles() == [["a", "b", "c"], ["d", "e"]]


def test_core_uses_few_libraries():
    allowed = CORE_LIBRARIES | set(sys.stdlib_module_names)
    modules = [name for name in MODULES if package_of(name) in {"core", "training", "statistics"}]
    assert [name for name in modules if not libraries_of(name) <= allowed] == []


@pytest.mark.parametrize("place", ["core.atomic", "experiment.reader", "cli"])
def test_no_torch_where_none_is_needed(place):
    modules = [module for module in MODULES if is_within(module, place)]
    assert modules
    assert [module for module in modules if "torch" in libraries_of(module)] == []


def test_errors_and_options_import_the_standard_library_only():
    allowed = set(sys.stdlib_module_names)
    assert [name for name in sorted(TORCH_FREE) if not libraries_of(name) <= allowed] == []


def test_nothing_loads_code_from_data():
    found = []
    for module, path in MODULES.items():
        text = path.read_text()
        for harmless in (".eval(", "ast.literal_eval("):
            text = text.replace(harmless, "")
        for dangerous in ("torch.load(", "allow_pickle=True", "yaml.load(", "eval("):
            if dangerous in text:
                found.append((module, dangerous))
    assert found == []


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


LIBRARIES = ["torch", "numpy", "scipy", "sklearn", "pydantic", "altair", "requests", "PIL"]
STEPS = {
    "import fedtailor, fedtailor.algorithms": [*LIBRARIES, "rich", "typer"],
    "import fedtailor.data; [one.description for one in fedtailor.data.DATASETS.values()]": [
        *LIBRARIES,
        "pickle",
    ],
    "from fedtailor.simulation.engines import EngineOptions; EngineOptions()": ["torch"],
    "help_of_all_commands()": LIBRARIES,
    "wrong_keys()": ["torch", "numpy", "fedtailor.experiment.run"],
    "wrong_data()": ["torch"],
    "build_report()": ["torch"],
}
"""What a process does, one after the other, and what it must not have loaded after that."""

SCRIPT = """
import json, sys

def help_of_all_commands():
    import typer
    from fedtailor.cli.main import app, main
    names = [[], *([name] for name in typer.main.get_command(app).commands_by_name)]
    names += [["site", "leaves"]]
    names += [["data", name] for name in ("list", "fetch", "check", "partition", "plot")]
    assert len(names) > 15
    for words in names:
        assert main([*words, "--help"]) == 0, words

def wrong_keys():
    from fedtailor.cli.main import main
    for key in ("data.clientz=3", "training.learning_rate=1", "rounds=3", "engine.name=wrokers"):
        assert main(["run", "--set", key]) == 3, key
    for wrong in (["-a", "fedavgg"], ["--model", "mpl"], ["--set", "model.others=['cn6']"]):
        assert main(["run", *wrong]) == 3, wrong

def wrong_data():
    from fedtailor.cli.main import main
    assert main(["run", "--data", "nope"]) == 4

def build_report():
    from fedtailor.report import compare, latex, read_methods, tables
    from fedtailor.report.page import build
    build.build_sections(read_methods(["run"]))

found = {}
for step, heavy in json.loads(sys.argv[1]).items():
    exec(step)
    found[step] = [name for name in heavy if name in sys.modules]
with open("found.json", "w") as file:
    json.dump(found, file)
"""


def test_nothing_heavy_is_loaded_before_it_is_needed(tmp_path):
    """Importing torch takes seconds."""
    write_run(tmp_path / "run")
    command = [sys.executable, "-c", SCRIPT, json.dumps(STEPS)]
    variables = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found.json").read_text()) == {step: [] for step in STEPS}
