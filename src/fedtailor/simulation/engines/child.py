"""What a child process of the engine ``processes`` does: answer one request after the other until nobody is there.

A request is a tuple of its kind and what belongs to it, an answer too. Requests: ``settings``, ``run`` (a run begins),
``tables`` (files of the data), ``task`` (its number, a task), ``map`` (program, what is common to all clients), ``job``
(number of its task, and the rest of it).
"""

from __future__ import annotations

import importlib
import os
import queue
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.engine import Failure, Job, Program
from fedtailor.core.task import Task
from fedtailor.simulation.engines.reference import run_job
from fedtailor.simulation.engines.tables import Mapped
from fedtailor.simulation.engines.wire import Unsendable, decode, encode, read_frame, write_frame
from fedtailor.simulation.engines.workers import keep_pages
from fedtailor.simulation.programs import SharedInputs
from fedtailor.training.step_graph.replay import ReplayRunner


class Settings(NamedTuple):
    """What of a process its programs depend on."""

    path: tuple[str, ...]
    """Where modules are."""
    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    precision: str
    mkldnn: bool

    @classmethod
    def here(cls) -> Settings:
        """Return the settings of this process."""
        return cls(
            tuple(entry for entry in sys.path if isinstance(entry, str)),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
            bool(torch.backends.mkldnn.enabled),
        )

    def apply(self) -> None:
        """Make them the settings of this process."""
        sys.path[:] = self.path
        importlib.invalidate_caches()
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]


class _Desk:
    """What a child has been told so far."""

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}
        self.tables: list[Tensor] = []
        self.program: Program
        self.common: Any
        self.runner = ReplayRunner()

    def answer(self, request: bytes) -> memoryview:
        """Return the answer to a request."""
        try:
            kind, *parts = decode(request)
            found = getattr(self, f"_{kind}")(*parts)
        except Exception as error:  # whatever importing a user's module raises
            return encode(("unreadable", f"{type(error).__name__}: {error}"))
        except BaseException as error:  # an interruption by the program itself, which ends the parent's run
            return encode(("raised", portable(error)))
        try:
            return encode(("output", found))
        except Unsendable as error:
            reason = f"what the program returned cannot be sent to another process: {error}"
            return encode(("output", Failure(TypeError(reason))))

    def _tables(self, files: Sequence[Mapped]) -> None:
        self.tables = [file.open() for file in files]

    def _run(self) -> None:
        self.runner = ReplayRunner()

    def _task(self, number: int, task: Task) -> None:
        self.tasks[number] = task

    def _settings(self, settings: Settings) -> None:
        settings.apply()

    def _map(self, program: Program, common: Any) -> None:
        self.program, self.common = program, common
        if isinstance(common, SharedInputs):
            self.common = common._replace(x=self.tables[0], y=self.tables[1])

    def _job(self, task: int, client: int, row: Any, size: int) -> Any:
        output = run_job(self.program, self.common, Job(client, self.tasks[task], row, size), self.runner)
        return Failure(portable(output.reason)) if isinstance(output, Failure) else output


def portable(error: Any) -> Any:
    """Return an exception that another process can read: the same one, or its text."""
    try:
        again = decode(encode(error))
        if type(again) is type(error) and str(again) == str(error):
            return error
    except Exception:  # whatever an exception's own class does when it is made from its arguments
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def serve(folder: str = "") -> None:
    """Answer requests from standard input on standard output; leave at once when the parent is gone.

    Args:
        folder: what is left of a parent that was killed, to be removed.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # what a program reads or prints must not get among requests and answers
    os.dup2(2, 1)
    os.close(nothing)
    sys.stdout = sys.stderr
    torch.set_num_threads(1)
    keep_pages()
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(requests, waiting, folder), daemon=True)
    listener.start()
    desk = _Desk()
    try:
        write_frame(answers, encode(("output", None)))
        while True:
            write_frame(answers, desk.answer(waiting.get()))
    except OSError:
        listener.join()  # the parent is gone, and the listener knows


def _listen(requests: IO[bytes], waiting: queue.SimpleQueue[bytes], folder: str) -> None:
    """Take in requests; end the process, in the middle of a client's work too, when the parent is gone."""
    try:
        while True:
            waiting.put(read_frame(requests))
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
