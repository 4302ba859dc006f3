"""What `fedtailor serve` says of its sites: who has connected, who is late, and when it last heard
of each."""

import io
import time

import pytest
from rich.console import Console

from fedtailor.cli.show.progress import LiveProgress
from fedtailor.cli.show.serve import ServeOutput


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """The time, which stands still."""
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    return now


@pytest.fixture
def messages():
    """Return the messages of a server whose output is no terminal."""
    made = ServeOutput()
    yield made
    made.close()


def site(*, online=True, heard=None, waited=None, problem=""):
    """Return what the server knows of a site; times are seconds ago."""
    now = time.time()
    return {
        "online": online,
        "heard": None if heard is None else now - heard,
        "waiting_since": None if waited is None else now - waited,
        "problem": problem,
    }


def said(capsys):
    """Return the lines since the last call."""
    return capsys.readouterr().err.splitlines()


def test_who_connects_and_who_is_lost_is_said_once(messages, capsys):
    messages.attendance({"clinic": site(), "practice": site(online=False)})
    messages.attendance({"clinic": site(), "practice": site(online=False)})
    assert said(capsys) == ["clinic is connected"]
    messages.attendance({"clinic": site(online=False, heard=70), "practice": site(online=False)})
    assert said(capsys) == ["clinic is no longer connected, last heard from 1 min 10 s ago"]


def test_who_is_late_is_said_in_one_line_and_again_after_a_minute(
    messages, now, capsys, monkeypatch
):
    late = {
        "clinic": site(waited=30, heard=45, problem="lost"),
        "hospital": site(heard=1),
        "practice": site(online=False, waited=30, problem="unknown"),
    }
    messages.attendance(late)
    line = said(capsys)[-1]
    assert "clinic (connected, last heard from 45 s ago, lost)" in line
    assert "practice (not connected" in line and "unknown" not in line
    messages.attendance(late)
    assert said(capsys) == []
    monkeypatch.setattr(time, "time", lambda: now + 61)
    messages.attendance(late)
    assert said(capsys)[0].startswith(
        "waiting for clinic (connected, last heard from 1 min 46 s ago"
    )


def test_a_site_that_was_late_and_has_answered_is_named(messages, capsys):
    messages.attendance({"clinic": site(waited=30, heard=45)})
    messages.attendance({"clinic": site(heard=0)})
    assert said(capsys)[-1] == "clinic has answered"


def test_of_many_late_sites_the_first_are_named(messages, capsys):
    messages.attendance(
        {f"site{number:02d}": site(online=False, waited=30) for number in range(30)}
    )
    (line,) = said(capsys)
    assert line.endswith("site07 (not connected, never heard from yet), 22 more")


def test_everything_that_happens_is_said_however_long_it_runs(messages, capsys):
    for number in range(30):
        messages.say(f"something happens: {number}")
    assert len(said(capsys)) == 30


def test_a_terminal_shows_below_the_line_for_whom_the_server_waits(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    progress = LiveProgress()
    progress.begin("fedavg", 6)
    messages = ServeOutput()
    messages.progress = progress
    messages.attendance(
        {"clinic": site(heard=3), "practice": site(online=False, heard=75, waited=5)}
    )
    console = Console(file=io.StringIO(), width=120, height=30)
    console.print(progress.draw())
    messages.close()
    first, second = console.file.getvalue().splitlines()[:2]
    assert first == "fedavg: round 1/6" and second.startswith("1 of 2 sites")
    assert "practice (not connected" in second and "clinic" not in second
