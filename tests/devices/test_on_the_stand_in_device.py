"""Runs the tests of the stand-in device in new processes: PyTorch learns of no device after its
first gradient."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FILES = (
    "stand_in_ways.py",
    "stand_in_host_copies.py",
    "stand_in_same_bits.py",
    "stand_in_whole_runs.py",
)


def run(files, *options):
    """Run the tests of some files in a new process."""
    paths = [str(FOLDER / file) for file in files]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *paths]
    found = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parent.parent)
    assert found.returncode == 0, found.stdout + found.stderr


QUICK = (
    "stand_in_ways",
    "a_run_has_the_same_bits",
    "on_the_cpu",
    "fails_its_client",
    "refused_on_the_device",
)
"""Words in the names of quick tests."""


def test_quick():
    files = ("stand_in_ways.py", "stand_in_same_bits.py")
    run(files, "-m", "not slow", "-k", " or ".join(QUICK))


@pytest.mark.slow
def test_every_way_with_few_methods():
    run(FILES, "-m", "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "batched"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "module"])
def test_every_method(engine, model):
    run(
        ["stand_in_same_bits.py"],
        "-m",
        "slow",
        "-k",
        f"test_a_run_of_every_method and {engine} and {model}",
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedfda", "fedpac"])
def test_contract(method):
    run(["stand_in_contract.py"], "-m", "slow", "-k", method)
