"""What only a process of its own can show: imports, signals, pipes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedtailor
from fedtailor.experiment.reader import read_run

SOURCE = str(Path(fedtailor.__file__).parents[1])


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "FEDTAILOR_DATA"}
    return {**kept, "PYTHONPATH": SOURCE, "NO_COLOR": "1", **more}


def run_code(code, folder):
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=folder
    )


@pytest.mark.parametrize(
    ("request_to_end", "engine"),
    [
        pytest.param(signal.SIGINT, "reference", id="ctrl-c"),
        pytest.param(signal.SIGTERM, "reference", id="terminate", marks=pytest.mark.slow),
        # auto chooses processes
        pytest.param(signal.SIGINT, "auto", id="ctrl-c-processes", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "auto", id="terminate-processes", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_run_honestly(request_to_end, engine, tmp_path):
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        "run",
        "-a",
        "fedavg",
        "--rounds",
        "100000",
        "--clients",
        "3",
        "--set",
        "data.fraction=0.1",
    ]
    with subprocess.Popen(
        [*command, "--engine", engine, "--out", "run"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        next(line for line in process.stderr if "round 1/" in line)  # it has ended
        process.send_signal(request_to_end)
        last = process.stderr.read().splitlines()[-1]
        assert process.wait() == 6
    assert last == "interrupted. To resume: fedtailor resume run"
    run = read_run(tmp_path / "run")
    assert run.status["state"] == "interrupted"
    assert run.status["rounds_done"] == len(run.rounds) >= 1


def test_a_signal_while_libraries_are_imported_is_one_sentence(tmp_path):
    """numpy turns whatever stops its import into an ImportError."""
    code = f"""
import os, sys
from fedtailor.cli.main import main

class Watch:
    def find_spec(self, name, *_):
        if name == "numpy._core.multiarray":
            os.kill(os.getpid(), {int(signal.SIGINT)})

sys.meta_path.insert(0, Watch())
sys.exit(main(["doctor"]))
"""
    done = run_code(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "interrupted.\n")


def test_a_closed_pipe_is_no_traceback(tmp_path):
    command = [sys.executable, "-m", "fedtailor", "list", "engines"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


@pytest.mark.slow
def test_stdout_holds_json_only(tmp_path):
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        "run",
        "--json",
        "--rounds",
        "1",
        "--clients",
        "2",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 1
    assert "Warning" not in done.stderr
