"""Child processes that are kept alive: started, restarted, and ended with all their children.

Nothing here knows Flower. The caller calls :meth:`Supervisor.watch` every second or so; there is no
thread. What a supervisor left behind when it was killed is found through ``/proc``, which Linux
has.
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
from typing import IO, Any, NamedTuple

from fedtailor.core.atomic import writing
from fedtailor.core.errors import RunError, one_line
from fedtailor.core.reading import parse_json

FIRST_WAIT = 1.0
"""Seconds before the first restart; each further one waits twice as long."""
LONGEST_WAIT = 15.0
LONG_LIFE = 60.0
"""Seconds after which a child counts as healthy: its next restart waits ``FIRST_WAIT`` again."""
LARGEST_LOG = 10 * 1024**2
"""Bytes of a log file; then it is moved to ``NAME.1``, and the one before that is lost."""

_LOCK = "supervisor.lock"
_TIME = "%Y-%m-%d %H:%M:%S"
_LENGTH_OF_TIME = 19
_END_OF_LOG = 16_384
"""Bytes of a log that its latest lines are read from."""
_MARK = "FEDTAILOR_SUPERVISOR"
"""The variable of the environment by which the processes of a supervisor are known."""


class Ended(NamedTuple):
    """A child process that ended, and is started again."""

    name: str
    code: int
    """Its exit code; minus the number of the signal that killed it."""
    restart_in: float
    """Seconds until it is started again."""
    output: str
    """The end of what this process printed."""
    reason: str = ""
    """Why :meth:`Supervisor.kill` ended it; empty: it ended by itself."""


class Supervisor:
    """Keeps child processes alive. Use it in a ``with`` block: at its end, none is left.

    Args:
        folder: working directory of the children. It holds their logs, and a lock, so that one
            supervisor at a time is responsible for it.
        environment: of all children.
        clock: returns seconds that never go back.

    Raises:
        RunError: another process holds the lock.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._clock = clock
        self._lock = _take_lock(folder / _LOCK)
        self._children: dict[str, _Child] = {}

        self._environment = environment
        self._mark = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]

        # What an earlier supervisor left when it was killed; nobody else has the lock now.
        _end(lambda: _marked(self._mark), grace=5.0)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process, and keep it alive from now on; it prints to ``NAME.log``.

        Raises:
            RunError: there is a child of this name, or the command cannot be started.
        """
        if name in self._children:
            raise RunError(f"a child process named '{name}' runs already", key=name)

        # A supervisor can run below another one, so a process can have several marks.
        mark = f"{self._mark}-{name}"
        outer = self._environment.get(_MARK, "")
        environment = {**self._environment, _MARK: f"{outer}:{mark}"}
        child = _Child(name, command, self._folder, environment, mark, self._clock)
        child.start()
        self._children[name] = child

    def watch(self) -> list[Ended]:
        """Start again what has ended, when its wait is over, and return what has ended since."""
        ended = []
        for child in self._children.values():
            end = child.watch()
            if end is not None:
                ended.append(end)
            _limit_size(child.log)

        return ended

    def is_running(self, name: str) -> bool:
        """Tell whether a child's process is alive now."""
        return self._children[name].is_running()

    def kill(self, name: str, reason: str) -> None:
        """End a child's process at once; it is started again like one that ended by itself.

        Args:
            name: of the child.
            reason: why, for :attr:`Ended.reason`.
        """
        pid = self.pid(name)
        if pid is not None:
            self._children[name].reason = reason
            _signal({pid}, signal.SIGKILL)

    def pid(self, name: str) -> int | None:
        """Return the process id of a child, None while it waits to be started again."""
        process = self._children[name].process
        return process.pid if process is not None else None

    def output(self, name: str) -> str:
        """Return the end of what a child's present or last process has printed."""
        return self._children[name].output()

    def stop(self, grace: float = 10.0) -> None:
        """End all processes and their children: SIGTERM, and SIGKILL after ``grace`` seconds."""
        if self._lock.closed:
            return

        _end(self._alive, grace)

        # They are dead; to wait for them leaves no zombies.
        for child in self._children.values():
            if child.process is not None:
                child.process.wait()

        self._children.clear()
        self._lock.close()

    def _alive(self) -> set[int]:
        """Return the processes to end; asking for them reaps those that have ended."""
        running = [child.process for child in self._children.values() if child.is_running()]
        return _marked(self._mark) | {process.pid for process in running if process is not None}


@dataclass
class _Child:
    """A child and its present process."""

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    mark: str
    clock: Callable[[], float]
    process: subprocess.Popen[bytes] | None = None
    reason: str = ""
    started: float = 0.0
    log_start: int = 0
    wait: float = FIRST_WAIT
    """Before the next restart."""
    due: float = 0.0

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        try:
            with self.log.open("ab") as log:
                self.log_start = log.tell()
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environment,
                    cwd=self.folder,
                    start_new_session=True,  # Ctrl-C at the terminal reaches the supervisor only
                )
        except OSError as error:
            message = f"cannot start '{self.name}': {error.strerror}"
            raise RunError(message, key=self.name, path=self.command[0]) from error

        self.started = self.clock()

    def watch(self) -> Ended | None:
        """Return the process's end if it is new; start another if it is due."""
        if self.process is None:
            return self._start_again() if self.clock() >= self.due else None

        code = self.process.poll()
        if code is None:
            return None

        # Its own children must not meet those of its successor, for instance at a port.
        _end(lambda: _marked(self.mark), grace=2.0)

        # After a long life, the process is not in a loop of crashes: the wait is short again.
        if self.clock() - self.started >= LONG_LIFE:
            self.wait = FIRST_WAIT

        self.process = None
        return self._ended(code, self.output())

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def output(self) -> str:
        return _tail(self.log, self.log_start)

    def _start_again(self) -> Ended | None:
        try:
            self.start()
        except RunError as error:  # its program may be missing for a moment, while it is upgraded
            return self._ended(127, error.message)
        return None

    def _ended(self, code: int, output: str) -> Ended:
        end = Ended(self.name, code, self.wait, output, self.reason)
        self.reason = ""
        self.due = self.clock() + self.wait
        self.wait = min(2 * self.wait, LONGEST_WAIT)
        return end


class LogFile:
    """A log that a person can read and send to support: a time and a sentence in every line."""

    def __init__(self, path: Path) -> None:
        """Append to a file; its folder is made.

        Raises:
            RunError: the file cannot be written.
        """
        self._path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()

    def write(self, text: str) -> None:
        """Append a line; on a full disk it is lost, so that the log does not end a server."""
        line = f"{time.strftime(_TIME)}  {one_line(text)}\n"
        with contextlib.suppress(OSError):
            # One older file stays.
            if self._path.stat().st_size > LARGEST_LOG:
                os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)


def latest_sentences(path: Path) -> list[tuple[str, str]]:
    """Return the latest lines of a log that :class:`LogFile` has written, as times and sentences.

    There are none if there is no such file.
    """
    # The first line may be the end of a longer one.
    lines = _tail(path, 0, longest=_END_OF_LOG).splitlines()
    pairs = [line.partition("  ") for line in lines]
    return [(moment, text) for moment, _, text in pairs if len(moment) == _LENGTH_OF_TIME]


class NewLines:
    """The lines that are appended to a file, whole ones only."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        """Begin at a position in the file."""
        self.count = 0
        """Lines that were read since the start of the file."""
        self._path = path
        self._position = start

    def read(self) -> list[bytes]:
        """Return the lines since the last call; of a file that was cut, all lines."""
        try:
            with self._path.open("rb") as file:
                # A file that was cut, such as a log that grew too large, begins again.
                if file.seek(0, os.SEEK_END) < self._position:
                    self._position = 0
                    self.count = 0

                file.seek(self._position)
                raw = file.read()
        except FileNotFoundError:
            return []

        end = raw.rfind(b"\n") + 1
        self._position += end
        lines = raw[:end].splitlines()
        self.count += len(lines)
        return lines


class NewRecords:
    """The records that are appended to a file of a run."""

    def __init__(self, path: Path) -> None:
        """Begin at the start of the file, which need not exist."""
        self.count = 0
        """Records that :meth:`read_unseen` has reached."""
        self._path = path
        self._lines = NewLines(path)

    def read(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the records since the last call, and before them the number of the first one."""
        lines = self._lines.read()
        return self._lines.count - len(lines), [parse_json(line, self._path) for line in lines]

    def read_unseen(self) -> list[dict[str, Any]]:
        """Return the records since the last call, each of them once."""
        first, records = self.read()

        # A run that is resumed cuts its files, and then all their lines come again.
        unseen = records[max(self.count - first, 0) :]
        self.count = max(self.count, first + len(records))
        return unseen


def is_supervised(folder: Path) -> bool:
    """Return whether a supervisor is responsible for a folder now."""
    path = folder / _LOCK
    try:
        if path.is_file():
            _take_lock(path).close()
    except RunError:
        return True
    return False


def _take_lock(path: Path) -> IO[bytes]:
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        message = f"'{path.parent}' is in use by another process: stop that first."
        raise RunError(message, path=path.parent) from error
    return lock


def _end(alive: Callable[[], set[int]], grace: float) -> None:
    """Send SIGTERM to all, SIGKILL to those alive after ``grace`` seconds, and wait for the end."""
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
    """Return the living processes whose mark begins so; those that they started have it too."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return set()

    # This process may have a mark too, if it runs below another supervisor.
    pids = {int(name) for name in names if name.isdecimal()} - {os.getpid()}
    return {pid for pid in pids if any(other.startswith(mark.encode()) for other in _marks(pid))}


def _marks(pid: int) -> list[bytes]:
    """Return the marks of a process; none for zombies and for processes of other users."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []

    start = f"{_MARK}=".encode()
    for variable in variables:
        if variable.startswith(start):
            return variable.removeprefix(start).split(b":")
    return []


def _limit_size(log: Path) -> None:
    """Move a log that has grown too large aside; its process writes on at the start of the file."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > LARGEST_LOG:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


def _tail(log: Path, start: int, longest: int = 8192) -> str:
    """Return the end of a log from a position on, or of all of it if it was truncated since."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start if start <= size else 0, size - longest))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
