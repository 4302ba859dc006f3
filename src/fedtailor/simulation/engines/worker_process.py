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
from collections.abc import Iterator
from typing import Any

from fedtailor.core.engine import Failure, Job, NoAnswer
from fedtailor.core.errors import RunError
from fedtailor.simulation.engines.requests import Answer, MapRequests, read_answer
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


class WorkerProcess:
    """A child process, used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._received: dict[str, int] = {}
        """Version of each request that the process has received."""
        self._stopped = False

    def run(self, folder: str, requests: MapRequests, job: Job, timeout: float = 0.0) -> Any:
        """Return the output of a job.

        :class:`Failure` if it raised, the process ended, or ``timeout`` seconds passed.

        Args:
            folder: with the files of the data.
            requests: what the process must receive before.
            job: what it runs.
            timeout: seconds; 0: any time.

        Raises:
            ConfigError: something cannot be sent.
            RunError: the process cannot be started.
        """
        encoded = requests.of_job(job)
        late = threading.Event()
        try:
            self._prepare(folder, requests, job)
            with self._killed_after(timeout, late):
                answer = self._ask(encoded)

            # A process that was killed just after its answer must not get another job.
            if not late.is_set():
                return answer.output
        except (EOFError, OSError):
            pass

        end = self._end()
        if late.is_set():
            return Failure(NoAnswer(f"no answer within {timeout:g} s (federation.client_timeout)"))
        return Failure(NoAnswer(f"the process of this client {end}"))

    def _prepare(self, folder: str, requests: MapRequests, job: Job) -> None:
        """Have a process that has received all that comes before a job.

        One that has ended since its last answer is replaced: this client is not at fault.

        Raises:
            EOFError, OSError: a new process ended too.
            RunError: the process cannot be started.
        """
        process = self._process
        has_ended = process is not None and process.poll() is not None
        if self._ready and has_ended and not self._stopped:
            self._reap()

        try:
            self._send_missing(folder, requests, job)
        except (EOFError, OSError):
            if self._stopped:
                raise

            self._end()
            self._send_missing(folder, requests, job)

    def _send_missing(self, folder: str, requests: MapRequests, job: Job) -> None:
        """Send what the process has not received yet; start one if there is none.

        Raises:
            EOFError, OSError: the process ended.
            RunError: the process cannot be started.
        """
        if not self._ready:
            self._start(folder)

        # What it has received in an earlier map is not sent again.
        for kind, request in requests.before(job).items():
            if self._received.get(kind) != request.version:
                self._ask(request.data)
                self._received[kind] = request.version

    @contextlib.contextmanager
    def _killed_after(self, seconds: float, late: threading.Event) -> Iterator[None]:
        """Kill the process unless the block ends in time, and note it; 0 seconds: never."""

        def kill() -> None:
            late.set()
            if self._process is not None:
                self._process.kill()

        timer = threading.Timer(seconds, kill)
        if seconds > 0:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if seconds > 0:
                timer.join()  # it may be killing the process right now

    def _ask(self, request: bytes) -> Answer:
        """Send a request and return the answer.

        Raises:
            EOFError, OSError: the process ended.
        """
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        write_frame(process.stdin, request)
        return read_answer(read_frame(process.stdout), _ENGINE)

    def _start(self, folder: str) -> None:
        """Start a process and wait until it is ready.

        Raises:
            RunError: the process cannot be started, or ended at once.
        """
        # It looks for modules where this process does, and never imports the main script.
        self._received = {}
        options = [f"-W{option}" for option in sys.warnoptions]
        path = [entry for entry in sys.path if isinstance(entry, str)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-c", _START, folder, *path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Ctrl-C in a terminal reaches the parent only.
                process_group=0 if os.name == "posix" else None,
            )
            assert self._process.stdout is not None
            if self._stopped:  # kill() was called before there was a process
                self._process.kill()

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
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process if there is one."""
        if self._process is not None:
            self._reap()
        self._stopped = False

    def _end(self) -> str:
        """Return how a process ended that gives no answer, as the end of a sentence.

        It is killed if it still runs. Its pipes are closed afterwards: a process that finds them
        closed takes its parent for dead, and removes the parent's files.
        """
        assert self._process is not None, "it was asked"
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._reap()
            return "closed its connection"

        return self._reap()

    def _reap(self) -> str:
        """Wait until the process has ended, kill it if it does not, and return how it ended."""
        process = self._process
        self._process = None
        self._ready = False
        assert process is not None, "it was started"

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
