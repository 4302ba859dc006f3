"""A child process as its parent sees it.

It is started when it is first needed, and again after it died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import Any, NamedTuple

from fedtailor.core.engine import Failure, Job, NoAnswer
from fedtailor.core.errors import RunError
from fedtailor.simulation.engines.requests import Request, encode_job, read_answer
from fedtailor.simulation.engines.serialization import decode, read_frame, write_frame

_START = """
import signal
# First of all: the parent decides what an interruption ends.
signal.signal(signal.SIGINT, signal.SIG_IGN)
import sys
folder = sys.argv[1]
sys.path[:] = sys.argv[2:]
del sys.argv[1:]
from fedtailor.simulation.engines.child import serve
serve(folder)
"""
_ENGINE = "processes"
_PATIENCE = 10
"""Seconds that a process has to end before it is killed."""
_ENDING = 1
"""Seconds that a process takes to end after it closed its connection."""


class Payload(NamedTuple):
    """What a child must receive before the jobs of a map."""

    folder: str
    """Folder with the files of the data."""
    requests: dict[str, Request]
    """By kind of request."""
    tasks: dict[int, Request]
    """By identity of the task; the version is the number of the task."""

    def before(self, job: Job) -> dict[str, Request]:
        """Return what a child must receive before a job."""
        task = self.tasks[id(job.task)]
        return {**self.requests, f"task {task.version}": task}


class WorkerProcess:
    """A child process, used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._received: dict[str, int] = {}
        """Version of each request that the process has received."""
        self._parent = os.getpid()
        self._stopped = False

    def run(self, payload: Payload, job: Job, timeout: float = 0.0) -> Any:
        """Return the output of a job.

        :class:`Failure` if it raised, the process ended, or ``timeout`` seconds passed.

        Raises:
            ConfigError: something cannot be sent.
            RunError: the process cannot be started.
        """
        if not self._ready:
            self._start(payload.folder)

        try:
            for kind, request in payload.before(job).items():
                if self._received.get(kind) != request.version:
                    self._ask(request.data)
                    self._received[kind] = request.version
        except (EOFError, OSError):
            return Failure(NoAnswer(f"the process of this client {self._end()}"))

        encoded = encode_job(payload.tasks[id(job.task)].version, job, _ENGINE)
        output: Any = None
        ended = False
        with _Deadline(self._process, timeout) as deadline:
            try:
                output = self._ask(encoded)
            except (EOFError, OSError):
                ended = True

        if deadline.passed:
            self._end()
            return Failure(NoAnswer(f"no answer within {timeout:g} s (federation.client_timeout)"))

        if ended:
            return Failure(NoAnswer(f"the process of this client {self._end()}"))

        return output

    def _ask(self, request: bytes | memoryview) -> Any:
        """Send a request and return the answer.

        Raises:
            EOFError, OSError: the process ended.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError
        write_frame(process.stdin, request)
        return read_answer(read_frame(process.stdout), _ENGINE).output

    def _start(self, folder: str) -> None:
        """Start a process and wait until it is ready.

        Raises:
            RunError: the process cannot be started, or ended at once.
        """
        self._received = {}
        options = [f"-W{option}" for option in sys.warnoptions]
        path = [entry for entry in sys.path if isinstance(entry, str)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-c", _START, folder, *path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0
                if os.name == "posix"
                else None,  # Ctrl-C in a terminal reaches the parent only
            )
            if self._stopped:  # kill() was called before there was a process
                self._process.kill()

            assert self._process.stdout is not None
            decode(read_frame(self._process.stdout))
        except EOFError as error:
            raise _start_error(f"{self._reap()} before it was ready") from error
        except OSError as error:
            raise _start_error(f"could not be started: {error}") from error

        self._ready = True

    def kill(self) -> None:
        """Kill the process during its work.

        A thread that waits for an answer sees that it ended.
        """
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process if there is one.

        Does nothing in a fork of the process that started it.
        """
        if self._process is not None and self._parent == os.getpid():
            self._reap()
        self._stopped = False

    def _end(self) -> str:
        """Return how a process ended that gives no answer, as the end of a sentence.

        It is killed if it still runs.

        Its pipes are closed afterwards: a process that finds them closed takes its parent for dead,
        and removes the parent's files.
        """
        process = self._process
        if process is not None:
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                self._reap()
                return "closed its connection"

        return self._reap()

    def _reap(self) -> str:
        """Wait until the process ended, and kill it if it does not.

        Return how it ended, as the end of a sentence.
        """
        process = self._process
        self._process = None
        self._ready = False
        if process is None:
            return "was ended"

        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # the process may not have read everything
                    stream.close()

        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

        return _describe_end(process.returncode)


class _Deadline:
    """Kills a process unless the block ends in time; 0 seconds: never."""

    def __init__(self, process: subprocess.Popen[bytes] | None, seconds: float) -> None:
        self.passed = False
        self._process = process
        self._timer = threading.Timer(seconds, self._kill) if seconds > 0 else None

    def _kill(self) -> None:
        self.passed = True
        if self._process is not None:
            self._process.kill()

    def __enter__(self) -> _Deadline:
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # it may be killing the process right now


def _describe_end(code: int) -> str:
    """Return how a process with a return code ended, as the end of a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    end = f"was ended by signal {-code} ({signal.Signals(-code).name})"
    if -code == getattr(signal, "SIGKILL", 9):
        return f"{end}, possibly because memory ran out"
    if -code == signal.SIGSEGV:
        return f"{end}, possibly because its program wrote to the data, which are read-only"
    return end


def _start_error(how: str) -> RunError:
    return RunError(
        f"a process of engine 'processes' {how}. engine.name = \"workers\" starts no processes.",
        key="engine.name",
    )
