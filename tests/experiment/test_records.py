"""Run folders: written whole or not at all, read back in whatever state a run is."""

import ast
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from fedtailor.core import atomic
from fedtailor.core.atomic import append_lines, safe_name, to_json, write_whole
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.core.folders import lives, this_process, whole_folder
from fedtailor.experiment.folder import RunFolder, exclusive
from fedtailor.experiment.reader import SCHEMA_VERSION, read_run
from written_runs import model_of

CONFIG = 'seed = 0\n\n[data]\ndataset = "digits"\n'


def new_folder(path):
    return RunFolder.create(path, config=CONFIG, provenance={"versions": {"torch": "2"}})


def safetensors(tensors):
    return save({name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()})


def test_round_trip(tmp_path):
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    with new_folder(tmp_path / "run") as folder:
        folder.write_split({"clients": [{"train": [1, 2]}]})
        folder.add_events([{"kind": "note", "text": "hello"}])
        folder.add_round(
            {"round": 1, "x": 0.5}, clients=[{"round": 1, "client": 0}], events=[{"round": 1}]
        )
        folder.add_round({"round": 2, "x": float("nan")}, clients=[{"round": 2, "client": 0}])
        folder.write_models([("0", safetensors({"body/w": weight}), {"round": 2})])
        folder.finish({"metrics": {"loss": float("inf")}})
    run = read_run(tmp_path / "run")
    assert run.config == {"seed": 0, "data": {"dataset": "digits"}}
    assert run.provenance == {"schema": SCHEMA_VERSION, "versions": {"torch": "2"}}
    assert run.split == {"clients": [{"train": [1, 2]}]}
    assert run.rounds == [{"round": 1, "x": 0.5}, {"round": 2, "x": None}]
    assert [record["round"] for record in run.clients] == [1, 2]
    assert run.events == [{"kind": "note", "text": "hello"}, {"round": 1}]
    assert run.status == {"state": "finished", "rounds_done": 2}
    assert run.result == {"metrics": {"loss": None}, "run": str(run.path)}
    tensors, card = model_of(run, 0)
    np.testing.assert_array_equal(tensors["body/w"], weight)
    assert card["client"] == "0" and card["round"] == 2
    assert not list(tmp_path.rglob("*.tmp"))

    # A result says where its run is now.
    moved = run.path.rename(tmp_path / "moved")
    assert read_run(moved).result["run"] == str(moved)


def test_the_state_says_how_a_run_ended(tmp_path):
    assert_state = {
        KeyboardInterrupt("x"): "interrupted",
        ValueError("broken"): "failed",
        SystemExit(1): "failed",
    }
    for number, (error, state) in enumerate(assert_state.items()):
        folder = new_folder(tmp_path / str(number))
        assert read_run(folder.path).status == {"state": "interrupted", "rounds_done": 0}
        with pytest.raises(type(error)), folder:
            folder.add_round({"round": 1})
            process = {"pid": os.getpid(), "host": platform.node()}
            status = read_run(folder.path).status
            assert (status["state"], status["rounds_done"]) == ("running", 1)
            assert status["process"].items() >= process.items() and status["process"]["started"]
            raise error
        status = read_run(folder.path).status
        assert (status["state"], status["rounds_done"]) == (state, 1)
        assert read_run(folder.path).result is None
    assert read_run(tmp_path / "1").status["reason"] == "broken"


def test_a_torn_end_is_ignored(tmp_path):
    folder = new_folder(tmp_path / "run")
    folder.add_round({"round": 1}, clients=[{"round": 1, "client": 3}])
    # killed while round 2 was written: its clients are there, its own line is torn
    append_lines(folder.path / "clients.jsonl", [{"round": 2, "client": 3}])
    append_lines(folder.path / "events.jsonl", [{"round": 2, "kind": "quarantine"}])
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "coh')
    run = read_run(folder.path)
    assert run.rounds == [{"round": 1}]
    assert run.clients == [{"round": 1, "client": 3}]
    assert run.events == []


def test_lines_of_clients_that_are_asked_for_after_the_folder_is_gone_are_an_error(tmp_path):
    with new_folder(tmp_path / "run") as folder:
        folder.add_round({"round": 1}, clients=[{"round": 1, "client": 3}])
    run = read_run(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"'.*run', is gone since it was read"):
        _ = run.clients


def test_damage_is_an_error_that_names_the_file(tmp_path):
    folder = new_folder(tmp_path / "run")
    folder.write_models([("0", safetensors({"w": np.zeros(2)}), {})])
    model = folder.path / "models" / "0.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match="SHA-256"):
        model_of(read_run(folder.path), 0)
    (folder.path / "rounds.jsonl").write_text("no json\n")
    with pytest.raises(DataError, match=r"rounds\.jsonl"):
        read_run(folder.path)
    (folder.path / "experiment.toml").write_text("[")
    with pytest.raises(DataError, match=r"experiment\.toml"):
        read_run(folder.path)


def test_what_is_no_run_folder_cannot_be_read(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, words in {
        "nope": "there is no folder .*nope'",
        "emptty": "did you mean 'empty'",
        "file": "is a file, not the folder of a run",
        "empty": r"is not the folder of a run: it holds no experiment\.toml\.",
    }.items():
        with pytest.raises(DataError, match=words):
            read_run(tmp_path / name)


def test_models_appear_together(tmp_path, monkeypatch):
    folder = new_folder(tmp_path / "run")
    models = [
        (str(client), safetensors({"w": np.full(2, client)}), {"round": 1}) for client in range(40)
    ]
    for operation, error in (
        ("fsync", OSError(28, "No space left on device")),
        ("rename", KeyboardInterrupt()),
    ):

        def broken(*_, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, operation, broken)
            with pytest.raises(RunError if operation == "fsync" else KeyboardInterrupt):
                folder.write_models(models)
        assert not (folder.path / "models").exists() and not list(folder.path.glob(".*.tmp"))
    folder.write_models(models[:2])
    folder.write_models(models[1:])  # those of an earlier attempt at the last round do not stay
    assert len(list((folder.path / "models").iterdir())) == 2 * 39
    assert model_of(read_run(folder.path), 39)[0]["w"].tolist() == [39, 39]
    (folder.path / ".models.1.tmp").mkdir()
    folder.remove_temporary_files()
    assert not list(folder.path.glob(".*.tmp"))


def test_equal_models_share_the_space_on_the_disk(tmp_path):
    folder = new_folder(tmp_path / "run")
    same = safetensors({"w": np.zeros(2)})
    folder.write_models([("a", same, {}), ("b", same, {}), ("c", safetensors({"w": [1.0]}), {})])
    places = {
        name: (folder.path / "models" / f"{name}.safetensors").stat().st_ino for name in "abc"
    }
    assert places["a"] == places["b"] != places["c"]
    assert model_of(read_run(folder.path), "b")[1]["client"] == "b"


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "file"
    write_whole(target, "old")

    def no_space(*_):
        raise OSError(28, "No space left on device")

    for broken in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, broken, no_space)
            with pytest.raises(RunError, match="No space left on device"):
                write_whole(target, "new")
        assert target.read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_killed_writer_leaves_whole_files(tmp_path):
    """SIGKILL at an arbitrary moment: every file that is there can be read, and rounds are
    complete."""
    script = (
        "import sys; from pathlib import Path; from fedtailor.experiment.folder import RunFolder\n"
        "folder = RunFolder.create(Path(sys.argv[1]), config='seed = 0', "
        "provenance={}).__enter__()\nprint('ready', flush=True)\n"
        "for number in range(1, 10**6):\n"
        "    clients = [{'round': number, 'client': c} for c in range(50)]\n"
        "    folder.add_round({'round': number}, clients=clients)\n"
    )
    source = str(Path(atomic.__file__).parents[2])
    for number in range(3):
        path = tmp_path / str(number)
        command = [sys.executable, "-c", script, str(path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": source}
        ) as writer:
            writer.stdout.readline()
            while writer.poll() is None and not (path / "rounds.jsonl").exists():
                pass
            assert read_run(path).status["state"] == "running"
            writer.send_signal(signal.SIGKILL)
        run = read_run(path)
        assert run.status == {"state": "interrupted", "rounds_done": len(run.rounds)}
        assert [record["round"] for record in run.rounds] == list(range(1, len(run.rounds) + 1))
        assert len(run.clients) == 50 * len(run.rounds)


def test_folders_are_not_reused(tmp_path):
    (tmp_path / "empty").mkdir()
    new_folder(tmp_path / "empty")
    assert read_run(tmp_path / "empty").status == {"state": "interrupted", "rounds_done": 0}
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in ("empty", "file", "link"):
        with pytest.raises(ConfigError, match="never overwritten"):
            new_folder(tmp_path / taken)


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    for number, error in enumerate([OSError(28, "No space left on device"), KeyboardInterrupt()]):

        def fail(path, content, error=error):
            if path.name == "experiment.toml":
                raise error
            write_whole(path, content)

        with monkeypatch.context() as patch:
            patch.setattr("fedtailor.experiment.folder.write_whole", fail)
            with pytest.raises((RunError, KeyboardInterrupt)):
                new_folder(tmp_path / "deep" / str(number))
        assert list((tmp_path / "deep").iterdir()) == []


def test_what_a_killed_start_has_left_is_removed_after_a_day(tmp_path):
    left = tmp_path / ".other.0a1b2c3d.fedtailor.tmp"
    left.mkdir()
    (left / "status.json").write_text("{}")
    mine = tmp_path / ".mine.tmp"
    mine.mkdir()
    two_days_ago = time.time() - 2 * 86_400
    for folder in (left, mine):
        os.utime(folder, (two_days_ago, two_days_ago))

    with whole_folder(tmp_path / "busy") as unfinished:
        new_folder(tmp_path / "run")
        assert unfinished.exists() and not left.exists() and mine.exists()


def test_models_never_follow_a_link(tmp_path):
    folder = new_folder(tmp_path / "run")
    for name in ("elsewhere", "nowhere"):
        link = folder.path / "models"
        link.symlink_to(tmp_path / name)
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        with pytest.raises(RunError):
            folder.write_models([("a", b"", {})])
        assert (tmp_path / "elsewhere").is_dir() and not (tmp_path / "nowhere").exists()
        link.unlink()


def test_a_status_that_cannot_be_written_does_not_say_that_the_run_goes_on(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="the first error"), new_folder(tmp_path / "run") as folder:
        monkeypatch.setattr(
            atomic.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error"))
        )
        raise ValueError("the first error")
    assert read_run(folder.path).status == {"state": "interrupted", "rounds_done": 0}


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        ({}, True),
        ({"started": "later"}, False),
        ({"pid": 2**22 + 1}, False),
        ({"pid": -1}, False),
        ({"host": "another"}, True),
        ({"pid": None}, False),
    ],
)
def test_a_process_is_known_by_number_machine_and_start(change, alive):
    assert lives({**this_process(), **change}) is alive


def test_a_process_that_nobody_waited_for_is_dead():
    script = "from fedtailor.core.folders import this_process; print(repr(this_process()))"
    source = str(Path(atomic.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment
    ) as child:
        process = ast.literal_eval(child.stdout.read().decode())
        os.waitid(
            os.P_PID, child.pid, os.WEXITED | os.WNOWAIT
        )  # it has ended, and its number is still taken
        assert not lives(process)
    assert not lives(process) and not lives(None)


def test_a_run_of_several_seeds_does_not_lead_into_itself(tmp_path):
    folder = RunFolder.create(tmp_path / "run", config="seeds = [0]", provenance={})
    (folder.path / "seed-0").symlink_to(".")
    with pytest.raises(DataError, match="that of several seeds"):
        read_run(folder.path)


def test_only_one_writes_to_a_folder(tmp_path):
    folder = new_folder(tmp_path / "run")
    held = exclusive(folder.path)
    held.__enter__()
    with pytest.raises(ConfigError, match="another process is writing to"), exclusive(folder.path):
        raise AssertionError
    held.__exit__(None, None, None)
    with exclusive(folder.path):
        pass


def test_lines_after_a_bookmark_can_be_removed(tmp_path):
    folder = new_folder(tmp_path / "run")
    start = folder.bookmark()
    folder.add_round({"round": 1}, clients=[{"round": 1, "client": 0}])
    one = folder.bookmark()
    folder.add_round({"round": 2}, events=[{"round": 2}])
    two = folder.bookmark()
    (folder.path / "clients.jsonl").write_text('{"round":1,"client":0}\n{"rou')  # torn
    again = RunFolder(folder.path)
    assert again.objection(two) == again.objection(one) == again.objection(start) == ""
    again.rewind(one)
    assert (
        read_run(folder.path).rounds == [{"round": 1}]
        and not (folder.path / "events.jsonl").exists()
    )
    assert "does not begin with" in again.objection(two)
    again.add_round({"round": 2}, events=[{"round": 2}])
    assert again.bookmark() == two, "the same lines were written again"
    (folder.path / "clients.jsonl").write_text('{"round": 1, "client": 9}\n')
    assert "clients.jsonl" in again.objection(one) and again.objection(start) == ""
    for broken in (None, {}, {"rounds.jsonl": 3, "clients.jsonl": 3, "events.jsonl": 3}):
        assert "does not say" in again.objection(broken)
    assert again.clear() and not again.clear() and not (folder.path / "rounds.jsonl").exists()


@given(st.text())
def test_any_name_is_a_file_name_inside_its_folder(name):
    escaped = safe_name(name)
    assert escaped and escaped.isascii() and len(escaped) <= 200
    assert (
        not set(escaped) & set('/\\:*?"<>|\0 ')
        and escaped not in (".", "..")
        and not escaped.startswith(".")
    )


@given(st.text(), st.text())
def test_different_names_are_different_files(first, second):
    assert (safe_name(first) == safe_name(second)) == (first == second)


def test_hostile_client_names_stay_inside(tmp_path):
    folder = new_folder(tmp_path / "run")
    names = [
        "../../escape",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a" * 5000,
        "\ud800",
        "CON\x1b[31m",
        "=1+1",
    ]
    folder.write_models((name, safetensors({"w": np.zeros(1)}), {}) for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert len(list((folder.path / "models").iterdir())) == 2 * len(names)
    for name in names:
        assert model_of(read_run(folder.path), name)[1]["client"] == name


def test_json_is_strict_and_plain():
    assert (
        to_json({"a": [float("nan"), 1.5, (float("-inf"),)], 3: None})
        == '{"a": [null, 1.5, [null]], "3": null}'
    )
    assert to_json("\u202e\x1b") == '"\\u202e\\u001b"'
    assert json.loads(to_json(range(3))) == [0, 1, 2]


def test_an_interruption_that_a_library_turned_into_an_error_is_still_one(tmp_path):
    with (
        pytest.raises(RuntimeError),
        RunFolder.create(tmp_path / "run", config="", provenance={}) as folder,
    ):
        folder.add_round({"round": 1})
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("library") from None
    assert read_run(tmp_path / "run").status == {"state": "interrupted", "rounds_done": 1}
