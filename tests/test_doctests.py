"""The examples in docstrings run, and give what they say."""

import doctest
import importlib
import shutil

import pytest

import api_page
import fedtailor
import import_map
from marks import quick

MODULES = {f"fedtailor.{name}": path for name, path in import_map.modules().items()}
MODULES |= {path.stem: path for path in (import_map.ROOT / "tools").glob("*.py")}
WITH_EXAMPLES = sorted(name for name, path in MODULES.items() if ">>> " in path.read_text())
SLOW = {
    "fedtailor.experiment.sweep",
    "fedtailor.report.comparison",
    "fedtailor.serving.export",
    "fedtailor.serving.study",
    "fedtailor.testing.check",
}
"""What trains, or runs all checks of a method, as other quick tests do too."""

OF_ONE_RUN = {
    "fedtailor.experiment.reader",
    "fedtailor.report.methods",
    "fedtailor.serving.run",
}
"""Their examples use the same run, in runs/example."""


@pytest.fixture(scope="session")
def example_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "example"
    config = fedtailor.make_config({"data": {"clients": 3}, "federation": {"rounds": 2}})
    fedtailor.run(config, out=folder)
    return folder


@pytest.mark.parametrize("name", quick(WITH_EXAMPLES, *set(WITH_EXAMPLES) - SLOW))
def test_examples_run(name, monkeypatch, tmp_path, request):
    monkeypatch.chdir(tmp_path)
    if name in OF_ONE_RUN:
        # A run that has finished is not made again.
        shutil.copytree(request.getfixturevalue("example_run"), tmp_path / "runs" / "example")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, "the examples are in no docstring"
    assert result.failed == 0, "see the report above"


def test_every_function_that_users_call_has_an_example():
    names = api_page.public_names()["fedtailor"]
    functions = [getattr(fedtailor, name) for name in names if name[0].islower()]
    assert len(functions) >= 6
    assert [
        function.__name__ for function in functions if ">>> " not in (function.__doc__ or "")
    ] == []
