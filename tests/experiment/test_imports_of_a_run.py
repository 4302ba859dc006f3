"""A run imports what it uses: its engine, its reader and its method."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

SCRIPT = """
import sys
from fedtailor.cli.main import main
main(["run", *sys.argv[2:], "--clients", "3", "--rounds", "1", "--out", sys.argv[1]])
print("\\n".join(name for name in sys.modules if name.startswith("fedtailor.")))
"""


def modules_after(folder, *arguments):
    """Return the modules of the package that a run in a new process has imported."""
    command = [sys.executable, "-c", SCRIPT, str(folder / "run"), *arguments]
    variables = {**os.environ, "PYTHONPATH": str(SOURCE)}  # these modules, not those installed
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=folder, env=variables
    )
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("fedtailor.")]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_a_run_of_digits_loads_no_other_engine_and_no_other_data(tmp_path, engine):
    modules = modules_after(tmp_path, "-a", "fedavg", "-d", "digits", "--engine", engine)
    unused = ("data.corruptions", "data.own", "report")
    unused += tuple(
        f"simulation.engines.{name}"
        for name in ("batched", "processes", "child", "mapped_tables", "worker_process")
    )
    prefixes = tuple(f"fedtailor.{name}" for name in unused)
    assert [name for name in modules if name.startswith(prefixes)] == []
    assert [name for name in modules if name.startswith("fedtailor.algorithms.")] == [
        "fedtailor.algorithms.fedavg"
    ]
    readers = [name for name in modules if name.startswith("fedtailor.data.datasets.")]
    assert readers == ["fedtailor.data.datasets.digits"]


@pytest.mark.slow
def test_an_engine_is_loaded_when_it_is_named(tmp_path):
    modules = modules_after(tmp_path, "-a", "fedavg", "--engine", "batched")
    assert "fedtailor.simulation.engines.batched" in modules
    assert "fedtailor.simulation.engines.processes" not in modules
