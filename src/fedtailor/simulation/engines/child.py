"""The main loop of a child process of the engine ``processes``: answer requests until the parent is gone.

A request is a tuple of its kind and its contents; so is an answer. Requests: ``settings``, ``run`` (a run begins),
``tables`` (the files of the data), ``task`` (its number, the task), ``map`` (the program, its shared inputs), ``job``
(the number of its task, and the rest of the job). Answers: ``output``, ``raised`` (an interruption by the program),
``unreadable`` (why a request cannot be read).
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
from fedtailor.simulation.engines.mapped_tables import MappedTensor
from fedtailor.simulation.engines.reference import run_job
from fedtailor.simulation.engines.serialization import SerializationError, decode, encode, read_frame, write_frame
from fedtailor.simulation.engines.workers import keep_pages
from fedtailor.simulation.programs import SharedInputs
from fedtailor.training.step_graph.replay import ReplayRunner


class Settings(NamedTuple):
    """The settings of a process on which programs depend."""

    path: tuple[str, ...]
    """Folders in which Python looks for modules."""
    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    precision: str
    mkldnn: bool

    @classmethod
    def current(cls) -> Settings:
        """Return the settings of this process."""
        return cls(
            path=tuple(entry for entry in sys.path if isinstance(entry, str)),
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            precision=torch.get_float32_matmul_precision(),
            mkldnn=bool(torch.backends.mkldnn.enabled),
        )

    def apply(self) -> None:
        """Change the settings of this process to these."""
        sys.path[:] = self.path
        importlib.invalidate_caches()
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]


class _RequestHandler:
    """Answers requests, and keeps the contents of earlier ones."""

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}
        self.tables: list[Tensor] = []
        self.program: Program
        self.shared_inputs: Any
        self.runner = ReplayRunner()

    def answer(self, request: bytes) -> memoryview:
        """Return the answer to a request."""
        try:
            kind, *contents = decode(request)
            handle = getattr(self, f"_handle_{kind}")
            output = handle(*contents)
        except Exception as error:  # importing a user's module may raise anything
            return encode(("unreadable", f"{type(error).__name__}: {error}"))
        except BaseException as error:  # an interruption by the program itself, which ends the parent's run
            return encode(("raised", portable(error)))
        try:
            return encode(("output", output))
        except SerializationError as error:
            reason = f"the program's output cannot be sent to another process: {error}"
            return encode(("output", Failure(TypeError(reason))))

    def _handle_settings(self, settings: Settings) -> None:
        settings.apply()

    def _handle_run(self) -> None:
        self.runner = ReplayRunner()

    def _handle_tables(self, files: Sequence[MappedTensor]) -> None:
        self.tables = [file.open() for file in files]

    def _handle_task(self, number: int, task: Task) -> None:
        self.tasks[number] = task

    def _handle_map(self, program: Program, shared_inputs: Any) -> None:
        if isinstance(shared_inputs, SharedInputs):
            shared_inputs = shared_inputs._replace(x=self.tables[0], y=self.tables[1])
        self.program = program
        self.shared_inputs = shared_inputs

    def _handle_job(self, task_number: int, client: int, inputs: Any, size: int) -> Any:
        job = Job(client, self.tasks[task_number], inputs, size)
        output = run_job(self.program, self.shared_inputs, job, self.runner)
        if isinstance(output, Failure):
            return Failure(portable(output.reason))
        return output


def portable(error: Any) -> Any:
    """Return an exception that another process can read: the same exception, or one with its text."""
    try:
        copy = decode(encode(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    except Exception:  # an exception's own class may raise anything when it is rebuilt from its arguments
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def serve(folder: str = "") -> None:
    """Answer requests from standard input on standard output; exit as soon as the parent is gone.

    Args:
        folder: temporary folder of the parent, which is removed if the parent was killed.
    """
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    _detach_standard_streams()
    torch.set_num_threads(1)
    keep_pages()
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(requests, waiting, folder), daemon=True)
    listener.start()
    handler = _RequestHandler()
    try:
        write_frame(answers, encode(("output", None)))  # ready
        while True:
            write_frame(answers, handler.answer(waiting.get()))
    except OSError:
        listener.join()  # the parent is gone; the listener ends this process


def _detach_standard_streams() -> None:
    """Give programs an empty standard input, and send what they print to standard error: the pipes carry requests."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _listen(requests: IO[bytes], waiting: queue.SimpleQueue[bytes], folder: str) -> None:
    """Receive requests; end the process when the parent is gone, even while a client's program runs."""
    try:
        while True:
            waiting.put(read_frame(requests))
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
