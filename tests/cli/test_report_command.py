"""The command report: its files, refusals, and following of a run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedtailor.cli.main import main
from fedtailor.core.folders import this_process
from fedtailor.experiment.reader import is_running
from fedtailor.report.methods import read_methods
from fedtailor.report.page import watch
from report.made_runs import write_run
from waiting import wait_for


def test_a_report_is_written_to_the_working_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "first run")
    assert main(["report", "runs/first run", "--json"]) == 0
    out = tmp_path / "report-first%20run.html"
    page = out.read_text()
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    record = json.loads(capsys.readouterr().out)
    assert (record["report"], record["bytes"]) == (out.name, out.stat().st_size)
    assert record["files"] == [] and len(record["figures"]) == 9
    assert {"name": "bytes", "title": "Bytes per round"} in record["figures"]


def test_a_report_may_be_made_again(tmp_path):
    run = write_run(tmp_path / "run", done=0, state="failed")
    command = ["report", str(run), "--out", str(tmp_path / "page.html")]
    assert main(command) == 0
    assert main(command) == 0


def test_a_format_without_figures_is_refused(tmp_path, capsys):
    run = write_run(tmp_path / "run", rounds=1)
    out = tmp_path / "r.html"
    assert main(["report", str(run), "--out", str(out), "--format", "svg"]) == 2
    assert "give --figures FOLDER too" in capsys.readouterr().err and not out.exists()


def test_figures_and_their_numbers_are_written_to_a_new_folder(tmp_path, capsys):
    run = write_run(tmp_path / "run", rounds=1)
    figures = tmp_path / "figures"
    command = ["report", str(run), "--out", str(tmp_path / "r.html"), "--figures", str(figures)]
    assert main([*command, "--format", "svg", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    names = {figure["name"] for figure in record["figures"]}
    expected = {f"{name}.{ending}" for name in names for ending in ("svg", "csv")}
    assert {path.name for path in figures.iterdir()} == expected
    assert {Path(path).name for path in record["files"]} == expected
    assert main(command) == 3 and str(figures) in capsys.readouterr().err
    other = ["report", str(run), "--figures", str(tmp_path / "other"), "--format", "pgf"]
    assert main(other) == 3
    assert "pgf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "code", "words"),
    [
        ("run/report.html", 3, "lies in the folder of a run"),
        ("page.txt", 3, "ends in .html"),
        ("mine.html", 3, "an older report"),
        ("folder.html", 3, "an older report"),
        pytest.param("nowhere/report.html", 5, "cannot write", marks=pytest.mark.slow),
    ],
)
def test_refused_files(tmp_path, monkeypatch, capsys, out, code, words):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    (tmp_path / "mine.html").write_text("<html>precious")
    (tmp_path / "folder.html").mkdir()
    assert main(["report", "run", "--out", out]) == code
    assert words in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "<html>precious"


@pytest.mark.parametrize("file", ["clients.jsonl", "rounds.jsonl"])
@pytest.mark.parametrize("kept", [0.6, 0.0, None])
def test_a_finished_run_that_has_lost_records_has_no_report(tmp_path, capsys, file, kept):
    other = write_run(tmp_path / "other", "fedavg")
    run = write_run(tmp_path / "run")
    text = (run / file).read_text()
    (run / file).unlink()
    if kept is not None:
        (run / file).write_text(text[: int(kept * len(text))])

    report = ["report", str(run), "--out", str(tmp_path / "r.html")]
    for command in (report, ["compare", str(run), str(other)]):
        assert main(command) == 4
        assert f"{file}' is damaged: it has" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "r.html")]) == 4
    assert "neither the folder of a run nor that of a comparison" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.slow
def test_a_comparison_in_which_nothing_has_begun_has_no_report(tmp_path, capsys):
    folder = tmp_path / "comparison"
    folder.mkdir()
    record = {"version": 1, "kind": "comparison", "runs": ["runs/ditto"]}
    (folder / "comparison.json").write_text(json.dumps(record))
    assert main(["report", str(folder), "--out", str(tmp_path / "r.html")]) == 4
    assert "no run has begun yet" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_watching_a_finished_run_ends_at_once(tmp_path):
    run = write_run(tmp_path / "run")
    out = tmp_path / "r.html"
    assert main(["report", str(run), "--out", str(out), "--watch", "--json"]) == 0
    assert 'http-equiv="refresh"' not in out.read_text()


def start_watching(run, out):
    command = [sys.executable, "-m", "fedtailor", "report", str(run), "--out", str(out), "--watch"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with out.with_suffix(".log").open("w") as log:
        watcher = subprocess.Popen(command, env=environment, stderr=log)
    wait_for(lambda: out.exists() and 'http-equiv="refresh"' in out.read_text())
    return watcher


def finish(run, folder):
    """Give a run folder the records of a finished run."""
    further = write_run(folder, rounds=9)
    for name in ("clients.jsonl", "rounds.jsonl", "result.json", "status.json"):
        (run / name).write_bytes((further / name).read_bytes())


def test_a_run_that_goes_on_is_followed_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "EVERY", 0.01)
    monkeypatch.setattr(watch, "_PAUSE", 0.0)
    run = write_run(tmp_path / "run", rounds=9, done=2, state="running", process=this_process())
    assert is_running(run)
    pages = []

    def write(page):
        pages.append(page.html)
        if len(pages) == 1:
            finish(run, tmp_path / "further")

    watch.follow([run], write)
    first, last = pages
    assert 'http-equiv="refresh"' in first and "round 2 of 9, running" in first
    assert 'http-equiv="refresh"' not in last and "Not finished" not in last


@pytest.mark.slow
def test_a_comparison_is_followed_from_one_run_to_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "EVERY", 0.01)
    monkeypatch.setattr(watch, "_PAUSE", 0.0)
    first = write_run(
        tmp_path / "runs" / "first", rounds=9, done=2, state="running", process=this_process()
    )
    (tmp_path / "comparison.json").write_text(
        json.dumps({"kind": "comparison", "runs": ["runs/first", "runs/second"]})
    )
    looks = []

    def look(paths):
        looks.append(paths)
        if len(looks) == 2:
            finish(first, tmp_path / "further")
        if len(looks) == 5:  # the second run begins a little later
            write_run(
                tmp_path / "runs" / "second",
                "local",
                rounds=9,
                done=1,
                state="running",
                process=this_process(),
            )
        if len(looks) == 7:
            finish(tmp_path / "runs" / "second", tmp_path / "more")
        return read_methods(paths)

    monkeypatch.setattr(watch, "read_methods", look)
    pages = []
    watch.follow([tmp_path], lambda page: pages.append(page.html))
    assert "<title>ditto, local on" in pages[-1] and "Not finished" not in pages[-1]


@pytest.mark.slow
def test_ctrl_c_ends_following_and_leaves_a_complete_report(tmp_path):
    run = write_run(tmp_path / "run", rounds=9, done=2, state="running", process=this_process())
    out = tmp_path / "r.html"
    watcher = start_watching(run, out)
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(timeout=60) == 0
    assert 'http-equiv="refresh"' not in out.read_text() and "round 2 of 9" in out.read_text()
    assert "Traceback" not in out.with_suffix(".log").read_text()
