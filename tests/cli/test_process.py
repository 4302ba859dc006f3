"""What only a process of its own can show: imports, signals, pipes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fedtailor
from fedtailor.experiment.reader import read_run

SOURCE = str(Path(fedtailor.__file__).parents[1])
HEAVY = ("torch", "numpy", "scipy", "sklearn", "pydantic")


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "FEDTAILOR_DATA"}
    return {**kept, "PYTHONPATH": SOURCE, "NO_COLOR": "1", **more}


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["demo"],
        ["run"],
        ["sweep"],
        ["compare"],
        ["report"],
        ["predict"],
        ["export"],
        ["onboard"],
        ["serve"],
        ["deploy"],
        ["site"],
        ["site", "leaves"],
        ["list"],
        ["what-leaves"],
        ["doctor"],
        ["data"],
        ["cache"],
    ],
    ids=lambda c: " ".join(c) or "all",
)
def test_help_imports_nothing_heavy(command):
    code = f"""
import sys
from fedtailor.cli.main import main
code = main({[*command, "--help"]!r})
print([name for name in {HEAVY!r} if name in sys.modules], code, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert done.stderr.strip() == "[] 0"
    assert "Usage" in done.stdout


def test_the_help_of_all_commands_says_what_each_says():
    from fedtailor.cli.main import app

    group = typer.main.get_command(app)
    for name, lazy in group.commands_by_name.items():
        command = lazy.load(name)
        assert command.help.startswith(lazy.summary), name


@pytest.mark.parametrize(
    ("request_to_end", "engine"),
    [
        pytest.param(signal.SIGINT, "reference", id="ctrl-c"),
        pytest.param(signal.SIGTERM, "reference", id="terminate"),
        pytest.param(
            signal.SIGINT, "auto", id="ctrl-c-processes", marks=pytest.mark.slow
        ),  # auto chooses processes
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


@pytest.mark.parametrize(
    "request_to_end", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"]
)
def test_a_signal_while_libraries_are_imported_is_one_sentence(request_to_end, tmp_path):
    """numpy turns whatever stops its import into an ImportError."""
    code = f"""
import os, sys
from fedtailor.cli.main import main

class Watch:
    def find_spec(self, name, *_):
        if name == "numpy._core.multiarray":
            os.kill(os.getpid(), {int(request_to_end)})

sys.meta_path.insert(0, Watch())
sys.exit(main(["doctor"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "interrupted.\n")


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_a_closed_pipe_is_no_traceback(more, tmp_path):
    command = [sys.executable, "-m", "fedtailor", "list", "engines", *more]
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


@pytest.mark.parametrize(
    "wrong", ["data.clientz=3", "training.learning_rate=1", "rounds=3", "engine.name=wrokers"]
)
def test_a_wrong_key_is_reported_before_torch_is_imported(wrong, tmp_path):
    code = f"""
import sys
from fedtailor.cli.main import main
code = main(["run", "--set", {wrong!r}])
print([name for name in ("torch", "numpy", "fedtailor.experiment.run") if name in sys.modules], code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "[] 3" and done.stderr.startswith("error: ")
