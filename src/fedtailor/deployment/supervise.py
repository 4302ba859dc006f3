"""Child processes that are kept alive: started, restarted when they end, and ended with all their
children.

Nothing here knows Flower. The caller calls :meth:`Supervisor.watch` every second or so; there is no
thread. Children of children are found through ``/proc``, which Linux has.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from fedtailor.core.errors import RunError

FIRST_WAIT = 1.0
"""Seconds before the first restart; each further one waits twice as long."""
LONGEST_WAIT = 15.0
LONG_LIFE = 60.0
"""Seconds after which a child counts as healthy: its next restart waits ``FIRST_WAIT`` again."""
LARGEST_LOG = 10 * 1024**2
"""Bytes of a log file; then it is moved to ``NAME.1``, and the one before that is lost."""

_MARK = "FEDTAILOR_SUPERVISOR"


@dataclass(frozen=True)
class Child:
    """What to start, and how."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    """Its whole environment."""
    log_path: Path
    """What it prints is appended here."""
    folder: Path
    """Its working directory."""


class Ended(NamedTuple):
    """A child process that ended without being told to."""

    name: str
    code: int
    """Its exit code; minus the number of the signal that killed it."""
    time: float
    """Seconds since 1970."""
    lived: float
    """Seconds it ran."""
    restart_in: float
    """Seconds until it is started again."""
    output: str
    """The end of what this process printed."""


class Supervisor:
    """Keeps child processes alive. Use it in a ``with`` block: at its end, none is left.

    Args:
        folder: holds a lock, so that one supervisor at a time is responsible for it.
        clock: returns seconds that never go back.

    Raises:
        RunError: another process holds the lock.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._lock = _take_lock(folder / "supervisor.lock")
        self._mark = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        self._kept: dict[str, _Kept] = {}
        # those of a supervisor that was killed before it could end them; nobody else may hold the
        # lock now
        _end_processes(lambda: _marked(self._mark), grace=5.0)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, child: Child) -> None:
        """Start a process, and keep it alive from now on.

        Raises:
            RunError: a child of this name is kept already, or the command cannot be started.
        """
        if child.name in self._kept:
            raise RunError(f"a child process named '{child.name}' runs already", key=child.name)
        kept = _Kept(child, self._mark, self._clock)
        kept.start()
        self._kept[child.name] = kept

    def watch(self) -> list[Ended]:
        """Note which processes have ended, start again those whose wait is over, and return the
        former.
        """
        ended = []
        for kept in self._kept.values():
            event = kept.look()
            if event is not None:
                ended.append(event)
            _limit_size(kept.child.log_path)
        return ended

    def is_running(self, name: str) -> bool:
        """Tell whether a child's process is alive now."""
        return self._kept[name].is_running()

    def kill(self, name: str) -> None:
        """End a child's process at once; it is started again like one that ended by itself."""
        pid = self.pid(name)
        if pid is not None:
            _signal({pid}, signal.SIGKILL)

    def pid(self, name: str) -> int | None:
        """Return the process id of a child, None while it waits to be started again."""
        return self._kept[name].pid()

    def output(self, name: str) -> str:
        """Return the end of what a child's present or last process has printed."""
        return self._kept[name].output()

    def stop(self, grace: float = 10.0) -> None:
        """End all processes and their children: SIGTERM, after ``grace`` seconds SIGKILL. Further
        calls do nothing.
        """
        if self._lock.closed:
            return
        _end_processes(self._alive, grace)
        for kept in self._kept.values():
            kept.reap()
        self._kept.clear()
        self._lock.close()

    def _alive(self) -> set[int]:
        """Return the processes to end; those that have ended are reaped on the way."""
        own = {kept.pid() for kept in self._kept.values() if kept.is_running()}
        return _marked(self._mark) | {pid for pid in own if pid is not None}


class _Kept:
    """A child and its present process."""

    def __init__(self, child: Child, mark: str, clock: Callable[[], float]) -> None:
        self.child = child
        self._mark = mark
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._log_start = 0
        self._wait = FIRST_WAIT
        self._due = 0.0

    def start(self) -> None:
        child = self.child
        child.log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with child.log_path.open("ab") as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    list(child.command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**child.env, _MARK: _add_mark(child.env.get(_MARK, ""), self._mark)},
                    cwd=child.folder,
                    start_new_session=True,  # Ctrl-C at the terminal reaches the supervisor only
                )
        except OSError as error:
            raise RunError(
                f"cannot start '{child.name}': {error.strerror}",
                key=child.name,
                path=str(child.command[0]),
            ) from error

        self._started = self._clock()

    def look(self) -> Ended | None:
        """Return the process's end if it is new; start another if it is due."""
        if self._process is None:
            return self._start_again() if self._clock() >= self._due else None

        code = self._process.poll()
        if code is None:
            return None

        # its own children must not meet those of its successor, for instance at a port
        _end_processes(lambda: _session(self._started_pid()), grace=2.0)
        lived = self._clock() - self._started
        if lived >= LONG_LIFE:
            self._wait = FIRST_WAIT

        self._process = None
        return self._ended(code, lived, self.output())

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def output(self) -> str:
        return _tail(self.child.log_path, self._log_start)

    def reap(self) -> None:
        if self._process is not None:
            self._process.wait()

    def _start_again(self) -> Ended | None:
        try:
            self.start()
        except RunError as error:  # its program may be missing for a moment, while it is upgraded
            return self._ended(127, 0.0, error.message)
        return None

    def _ended(self, code: int, lived: float, output: str) -> Ended:
        event = Ended(self.child.name, code, time.time(), lived, self._wait, output)
        self._due = self._clock() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        return event

    def _started_pid(self) -> int:
        assert self._process is not None
        return self._process.pid


def _take_lock(path: Path) -> IO[bytes]:
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        message = f"'{path.parent}' is in use by another process: stop that first."
        raise RunError(message, path=str(path.parent)) from error
    return lock


def _end_processes(alive: Callable[[], set[int]], grace: float) -> None:
    """Send SIGTERM to all, SIGKILL to those alive after ``grace`` seconds, and wait until none is
    left.
    """
    _signal(alive(), signal.SIGTERM)
    end = time.monotonic() + grace
    while alive() and time.monotonic() < end:
        time.sleep(0.05)
    end = time.monotonic() + 10.0
    while (left := alive()) and time.monotonic() < end:
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _marked(mark: str) -> set[int]:
    """Return the processes that were started with a mark, by a supervisor or by any descendant of
    its children.
    """
    return {pid for pid in _processes() if mark in _marks(pid) and pid != os.getpid()}


def _session(leader: int) -> set[int]:
    """Return the living processes of the session that a child began, without the child itself."""
    return {pid for pid in _processes() if pid != leader and _session_of(pid) == leader}


def _processes() -> list[int]:
    """Return the processes of this machine, from ``/proc``; none where there is no such folder."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [int(name) for name in names if name.isdecimal()]


def _add_mark(marks: str, mark: str) -> str:
    """Return the marks of a child: those of the supervisors above, and one more."""
    return f"{marks}:{mark}" if marks else mark


def _marks(pid: int) -> list[str]:
    """Return the marks that a process was started with; none for processes of others, and for
    zombies.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []

    start = f"{_MARK}=".encode()
    return [
        mark
        for line in variables
        if line.startswith(start)
        for mark in line[len(start) :].decode().split(":")
    ]


def _session_of(pid: int) -> int | None:
    """Return the session of a process; None for zombies, which have ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, _, _, session, *_ = status.rpartition(")")[
        2
    ].split()  # the name before it may hold spaces
    return None if state == "Z" else int(session)


def _limit_size(path: Path) -> None:
    """Move a log that has grown too large aside. The process goes on to write at the start of the
    same file.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size > LARGEST_LOG:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


def _tail(path: Path, start: int, longest: int = 8192) -> str:
    """Return the end of a log from a position on; of all of it if the log was begun anew since."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            if start > size:
                start = 0

            log.seek(max(start, size - longest))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
