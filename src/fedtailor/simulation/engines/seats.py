"""A place for one child process: started when it is needed, and anew when it died."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any, NamedTuple

from fedtailor.core.engine import Failure, Job
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.simulation.engines.wire import Unsendable, decode, encode, read_frame, write_frame

_START = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # first of all: the parent decides what an interruption ends
import sys
folder, sys.path[:] = sys.argv[1], sys.argv[2:]
del sys.argv[1:]
from fedtailor.simulation.engines.child import serve
serve(folder)
"""
_PATIENCE = 10  # seconds for a process to end by itself


class Payload(NamedTuple):
    """What a child must know before the jobs of a map."""

    folder: str
    """Of the files of the data."""
    frames: dict[str, tuple[int, memoryview]]
    """Kind -> number, and the request; a child that was told of the same number is not told again."""
    tasks: dict[int, tuple[int, memoryview]]
    """Identity of a task -> number, and the request."""

    def before(self, job: Job) -> dict[str, tuple[int, memoryview]]:
        """Return what a child must be told before a job."""
        number, data = self.tasks[id(job.task)]
        return {**self.frames, f"task {number}": (number, data)}


class WorkerProcess:
    """A place for one child process, used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._told: dict[str, int] = {}
        self._parent = os.getpid()
        self._stopped = False

    def run(self, parcel: Payload, job: Job) -> Any:
        """Return the output of a job; :class:`Failure` where it raised or the process ended.

        Raises:
            ConfigError: something cannot be sent.
            RunError: the process cannot be started.
        """
        if not self._ready:
            self._start(parcel.folder)
        try:
            for key, (number, request) in parcel.before(job).items():
                if self._told.get(key) != number:
                    self._ask(request)
                    self._told[key] = number
            return self._ask(_encode_job(parcel.tasks[id(job.task)][0], job))
        except (EOFError, OSError):
            return Failure(RuntimeError(f"the process of this client {self._reap()}"))

    def _ask(self, request: bytes | memoryview) -> Any:
        """Return the answer to a request.

        Raises:
            EOFError, OSError: the process ended.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError
        write_frame(process.stdin, request)
        data = read_frame(process.stdout)
        try:
            kind, value = decode(data)
        except Exception as error:  # whatever the classes of an output raise when it is put together
            reason = f"what the program returned cannot be read: {type(error).__name__}: {error}"
            return Failure(RuntimeError(reason))
        if kind == "raised":
            raise value
        if kind == "unreadable":
            raise cannot_send("what a client's program needs", value)
        return value

    def _start(self, folder: str) -> None:
        """Start a process, and wait until it is ready.

        Raises:
            RunError: it cannot be started, or ended at once.
        """
        self._told = {}
        options = [f"-W{option}" for option in sys.warnoptions]
        path = [entry for entry in sys.path if isinstance(entry, str)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-c", _START, folder, *path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0 if os.name == "posix" else None,  # a terminal interrupts the parent alone
            )
            if self._stopped:  # meanwhile: whoever stopped it found no process
                self._process.kill()
            assert self._process.stdout is not None
            decode(read_frame(self._process.stdout))
        except (EOFError, OSError) as error:
            how = self._reap() if isinstance(error, EOFError) else f"could not be started: {error}"
            raise RunError(
                f"a process of engine 'processes' {how} before it was ready. engine.name = \"workers\" needs none.",
                key="engine.name",
            ) from error
        self._ready = True

    def kill(self) -> None:
        """End the process in the middle of its work; whoever waits for an answer sees its end."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def leave(self) -> None:
        """End the process, if there is one; in a fork of the process that started it, do nothing."""
        if self._process is not None and self._parent == os.getpid():
            self._reap()
        self._stopped = False

    def _reap(self) -> str:
        """See to it that the process is gone; return how it ended, in words."""
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return "was ended"
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # of what it did not read
                    stream.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        code = process.returncode
        if code >= 0:
            return f"ended with exit code {code}"
        hint = ", for example because memory ran out" if -code == getattr(signal, "SIGKILL", 9) else ""
        return f"ended by signal {-code} ({signal.Signals(-code).name}){hint}"


def _encode_job(task: int, job: Job) -> memoryview:
    try:
        return encode(("job", task, job.client, job.row, job.size))
    except Unsendable as error:
        raise cannot_send(f"the state of client {job.client}", str(error)) from error


def cannot_send(what: str, reason: str) -> ConfigError:
    """Return the error for something that cannot go to another process."""
    return ConfigError(
        f"engine 'processes' cannot send {what} to its processes: {reason.rstrip('.')}. engine.name = \"workers\" runs "
        "it in this process, with the same results.",
        key="engine.name",
        allowed=["reference", "workers"],
        got="processes",
    )
