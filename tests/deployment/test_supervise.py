"""Children are restarted with a growing wait, and none is left behind, whatever they do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtailor.core.errors import RunError
from fedtailor.deployment import supervise
from fedtailor.deployment.supervise import Child, Supervisor

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="children of children are found in /proc"
)

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
FORKS = """
import os, subprocess, sys, time
code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); %s; time.sleep(600)"
inner = subprocess.Popen([sys.executable, "-c", code % "pass"])
escaped = subprocess.Popen([sys.executable, "-c", code % "os.setsid()"])
print("up", inner.pid, escaped.pid, flush=True)
time.sleep(600)
"""


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def supervisor(tmp_path, clock):
    with Supervisor(tmp_path / "state", clock) as made:
        yield made


def child(tmp_path, code, name="child"):
    return Child(
        name, [sys.executable, "-c", code], dict(os.environ), tmp_path / f"{name}.log", tmp_path
    )


def wait_for(condition):
    for _ in range(2000):
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_end_is_reported_and_followed_by_a_restart(tmp_path, supervisor, clock):
    supervisor.start(child(tmp_path, "print('bye'); raise SystemExit(7)"))
    (ended,) = wait_for(supervisor.watch)
    assert ended.name == "child"
    assert ended.code == 7
    assert ended.restart_in == 1.0
    assert ended.output == "bye\n"
    assert not supervisor.is_running("child")
    clock.now += 0.9
    assert supervisor.watch() == []
    assert supervisor.pid("child") is None
    clock.now += 0.2
    assert supervisor.watch() == []
    assert supervisor.pid("child") is not None


def test_waits_double_up_to_a_limit_and_begin_again_after_a_long_life(tmp_path, supervisor, clock):
    supervisor.start(child(tmp_path, "raise SystemExit(1)"))
    waits = []
    for _ in range(6):
        (ended,) = wait_for(supervisor.watch)
        waits.append(ended.restart_in)
        clock.now += ended.restart_in
        assert supervisor.watch() == []
    assert waits == [1, 2, 4, 8, 15, 15]
    clock.now += supervise.LONG_LIFE
    (ended,) = wait_for(supervisor.watch)
    assert ended.restart_in == 1


def test_a_killed_child_is_restarted(tmp_path, supervisor, clock):
    supervisor.start(child(tmp_path, SLEEP))
    first = supervisor.pid("child")
    supervisor.kill("child")
    (ended,) = wait_for(supervisor.watch)
    assert ended.code == -signal.SIGKILL
    clock.now += 1
    supervisor.watch()
    assert supervisor.is_running("child")
    assert supervisor.pid("child") != first


def test_a_program_that_vanished_is_waited_for(tmp_path, supervisor, clock):
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    program.chmod(0o755)
    supervisor.start(Child("child", [str(program)], dict(os.environ), tmp_path / "log", tmp_path))
    wait_for(supervisor.watch)
    program.rename(tmp_path / "away")
    clock.now += 1
    (ended,) = supervisor.watch()
    assert ended.code == 127
    assert "No such file" in ended.output
    (tmp_path / "away").rename(program)
    clock.now += 2
    assert supervisor.watch() == []
    assert wait_for(supervisor.watch)[0].code == 3


def test_what_cannot_be_started_is_refused(tmp_path, supervisor):
    with pytest.raises(RunError, match="cannot start 'child'"):
        supervisor.start(Child("child", [str(tmp_path / "none")], {}, tmp_path / "log", tmp_path))
    supervisor.start(child(tmp_path, SLEEP, "one"))
    with pytest.raises(RunError, match="runs already"):
        supervisor.start(child(tmp_path, SLEEP, "one"))


def test_stop_ends_all_even_those_that_ignore_sigterm(tmp_path):
    with Supervisor(tmp_path / "state") as supervisor:
        supervisor.start(child(tmp_path, SLEEP, "sleeps"))
        supervisor.start(child(tmp_path, STUBBORN, "stubborn"))
        wait_for(lambda: "up" in supervisor.output("stubborn"))
        pids = [supervisor.pid("sleeps"), supervisor.pid("stubborn")]
        supervisor.stop(grace=0.3)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "ended and reaped"
    supervisor.stop()


def test_stop_ends_children_of_children(tmp_path):
    with Supervisor(tmp_path / "state") as supervisor:
        supervisor.start(child(tmp_path, FORKS))
        wait_for(lambda: "up" in supervisor.output("child"))
        pids = [int(word) for word in supervisor.output("child").split()[1:]]
        assert all(alive(pid) for pid in pids)
        supervisor.stop(grace=0.3)
        assert not any(alive(pid) for pid in pids)


def test_children_of_a_child_that_died_are_ended_before_its_restart(tmp_path, clock, monkeypatch):
    with Supervisor(tmp_path / "state", clock) as supervisor:
        supervisor.start(
            child(tmp_path, FORKS.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "pass"))
        )
        wait_for(lambda: "up" in supervisor.output("child"))
        inner, escaped = (int(word) for word in supervisor.output("child").split()[1:])
        os.kill(supervisor.pid("child"), signal.SIGKILL)
        wait_for(supervisor.watch)
        assert not alive(inner)
    assert not alive(escaped)


def test_one_supervisor_a_folder(tmp_path, supervisor):
    with pytest.raises(RunError, match="in use"):
        Supervisor(tmp_path / "state")


def test_what_a_killed_supervisor_left_is_ended_by_the_next(tmp_path):
    code = f"""
import os, sys, time
from pathlib import Path
from fedtailor.deployment.supervise import Child, Supervisor
folder = Path({str(tmp_path)!r})
supervisor = Supervisor(folder / "state")
supervisor.start(Child("c", [sys.executable, "-c", {SLEEP!r}], dict(os.environ), folder / "log", folder))
print(supervisor.pid("c"), flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    assert alive(pid)
    with Supervisor(tmp_path / "state"):
        assert not alive(pid)


def test_logs_are_appended_and_limited(tmp_path, supervisor, clock, monkeypatch):
    monkeypatch.setattr(supervise, "LARGEST_LOG", 2000)
    (tmp_path / "child.log").write_text("before\n")
    code = "import sys, time\nprint('x' * 3000, flush=True)\nwhile True:\n print('later', flush=True)\n time.sleep(0.01)"
    supervisor.start(child(tmp_path, code))
    moved = tmp_path / "child.log.1"
    wait_for(lambda: supervisor.watch() == [] and moved.exists())
    assert moved.read_text().startswith("before\nxxx")
    wait_for(lambda: "later" in supervisor.output("child"))
    assert "xxx" not in (tmp_path / "child.log").read_text()
    assert "before" not in supervisor.output("child")
