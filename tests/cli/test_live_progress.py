"""What a terminal shows of a run: a line and the time left; and how images are counted."""

import io
import os
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedtailor.cli.main import main
from fedtailor.cli.show import progress as progress_module
from fedtailor.cli.show.progress import (
    CountLine,
    LiveProgress,
    PlainProgress,
    make_progress,
)
from fedtailor.core.errors import FedtailorError
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config


def evaluation(point, mean, worst, group="known"):
    metrics = {"accuracy": {"mean": mean, "worst10": worst}, "clients": {"evaluated": 3.0}}
    return {"point": point, "test_set": "clients", "group": group, "metrics": metrics}


def record_of(number, *evaluations, seconds=0.0):
    return {"round": number, "evaluations": list(evaluations), "seconds": {"evaluate": seconds}}


@pytest.fixture
def clock(monkeypatch):
    """The time, which tests set."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def live(monkeypatch, capsys):
    """A progress on a terminal, with a function that draws it; the test ends it, while stderr is
    captured."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    progress = make_progress(runs=2)
    assert type(progress) is LiveProgress

    def draw(width=80, height=24):
        out = io.StringIO()
        Console(file=out, width=width, height=height, color_system=None).print(progress.draw())
        return out.getvalue().splitlines()

    return progress, draw


def test_the_line_follows_every_round_and_keeps_the_latest_accuracy(live, capsys):
    progress, draw = live
    progress.begin("run", 3)
    assert draw() == ["run: round 1/3"]
    progress.round(record_of(1))
    assert re.fullmatch(r"run: round 1/3, \d+ s left \(\d+ s for all runs\)", draw()[0])
    progress.round(record_of(2, evaluation("global", 0.5, 0.25)))
    progress.note("odd\x07")
    progress.round(record_of(3))
    assert draw() == ["run: round 3/3, global 50.0 % (3 clients, worst tenth 25.0 %)"]
    progress.end()
    assert "note: odd \n" in capsys.readouterr().err
    progress.begin("next", 3)
    assert draw() == ["next: round 1/3"], "the next run begins without accuracies"
    progress.end()


def test_the_time_left_follows_the_latest_rounds(clock, capsys):
    progress = PlainProgress()
    progress.begin("run", 100)
    for number in range(1, 51):
        clock[0] += 60 if number < 10 else 2
        progress.round(record_of(number))
    assert progress.describe(50) == "run: round 50/100, 1 min 40 s left"


def test_the_time_left_of_several_runs_includes_those_after_this_one(clock, capsys):
    progress = PlainProgress(runs=3)
    progress.begin("run 0", 4)
    clock[0] += 10
    progress.round(record_of(1))
    assert capsys.readouterr().err == "run 0: round 1/4, 30 s left (1 min 50 s for all runs)\n"
    progress.begin("run 1", 4)
    progress.begin("run 2", 4)
    clock[0] += 10
    progress.round(record_of(1))
    assert progress.describe(1) == "run 2: round 1/4, 30 s left"


def test_images_are_counted_in_few_lines(clock, capsys):
    progress = PlainProgress()
    for what in ("reading pictures", "corrupting images"):
        for done in range(1, 501):
            clock[0] += 6
            progress.prepare(what, done, 500)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 22 and lines[-1] == "corrupting images: 500 of 500"
    assert "reading pictures: 500 of 500" in lines


def test_slow_work_has_no_speed_of_0(clock):
    with CountLine() as count:
        count("training", 0, 8)
        clock[0] += 60
        assert count.describe("training", 2, 8) == "training: 2 of 8, 3 min 00 s left"
        assert (
            count.describe("training", 120, 240)
            == "training: 120 of 240, 2 a second, 1 min 00 s left"
        )


def test_little_work_is_not_worth_a_line(clock, capsys):
    with CountLine() as count:
        for done in range(1, 501):
            count("reading pictures", done, 500)
    assert capsys.readouterr().err == ""


def test_the_line_that_counts_images_goes_when_something_fails(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with pytest.raises(ValueError), CountLine() as count:
        count("reading pictures", 1, 500)
        started = count._live
        assert started.is_started
        raise ValueError
    assert not started.is_started


@pytest.mark.slow
def test_a_run_on_a_real_terminal_shows_a_line_and_removes_it(tmp_path):
    main_end, other_end = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        "run",
        "-a",
        "fedavg",
        "--rounds",
        "40",
        "--out",
        str(tmp_path / "r"),
    ]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "LANG": "C.UTF-8"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=other_end, env=environment
    ) as process:
        os.close(other_end)
        seen = b""
        while True:
            try:
                part = os.read(main_end, 2**16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        assert process.stdout.read().decode().count("global") and process.wait() == 0
    os.close(main_end)
    text = seen.decode()
    assert "round " in text and "worst tenth" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor is shown again"


@pytest.fixture
def own_pictures(tmp_path, monkeypatch):
    """A folder ``own`` with ten pictures of two classes at two sites each, and lines also about
    short work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress_module, "_SHORT", 0.0)
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    for number in range(40):
        path = (
            tmp_path
            / "own"
            / f"site{number % 2}"
            / ("cat" if number < 20 else "dog")
            / f"{number}.png"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "own"


@pytest.mark.parametrize("command", ["check own --json", "partition --data own --json"])
def test_data_commands_count_the_pictures_they_read(own_pictures, capsys, command):
    assert main(["data", *command.split()]) == 0
    told = capsys.readouterr()
    assert told.err == "reading pictures: 40 of 40\n" and told.out.count("\n") == 1


def test_a_run_counts_the_pictures_it_reads(own_pictures, capsys):
    told = []
    progress = PlainProgress()
    progress.prepare = lambda *values: told.append(values)
    parts = assemble(make_config({"data": {"path": str(own_pictures)}}), 0, progress=progress)
    parts.engine.close()
    assert told == [("reading pictures", done, 40) for done in range(1, 41)]


def test_what_is_shown_of_the_pictures_goes_when_they_cannot_be_used(
    own_pictures, monkeypatch, capsys
):
    ended = []
    progress = PlainProgress()
    monkeypatch.setattr(progress, "end", lambda: ended.append(True))
    with pytest.raises(FedtailorError):
        assemble(
            make_config({"data": {"path": str(own_pictures / "missing")}}), 0, progress=progress
        )
    assert ended == [True]
