"""The main loop of a child process of the engine ``processes``: it answers requests.

Actors of the engine ``ray`` answer the same requests by the same handler.

A request is a tuple of its kind and its contents; so is an answer. Requests: ``settings``, ``run``
(a run begins), ``tables`` (the files of the data), ``task`` (its number, the task), ``map`` (the
program, its shared inputs, what gathers outputs), ``job`` (the number of its task, and the rest of
the job). Answers: ``output``, ``unreadable`` (why a request cannot be read), ``unsendable`` (why an
output cannot be sent, as a failure).
"""

from __future__ import annotations

import importlib
import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

import torch
from torch import Tensor

from fedtailor.core.engine import Failure, Gather, Job, Program, ProgramError
from fedtailor.core.errors import describe_error
from fedtailor.core.task import Task
from fedtailor.simulation.engines.containment import Settings, run_job
from fedtailor.simulation.engines.mapped_tables import MappedTensor
from fedtailor.simulation.engines.serialization import (
    SerializationError,
    decode,
    encode,
    read_frame,
    write_frame,
)
from fedtailor.simulation.engines.workers import keep_pages
from fedtailor.simulation.programs import SharedInputs
from fedtailor.training.replay import ReplayRunner


class RequestHandler:
    """Answers requests, and keeps the contents of earlier ones."""

    def __init__(self, path_here: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple) -> None:
        """Begin without anything.

        Args:
            path_here: returns where this process looks for modules, from where the other process
                does.
        """
        self.path_here = path_here
        self.tasks: dict[int, Task] = {}
        self.tables: list[Tensor] = []
        self.program: Program
        self.shared_inputs: Any
        self.gather: Gather | None = None
        self.settings: Settings
        self.runner = ReplayRunner()

    def answer(self, request: bytes | memoryview) -> bytes:
        """Return the answer to a request."""
        try:
            kind, *contents = decode(request)
            handle = getattr(self, f"_handle_{kind}")
            output = handle(*contents)
        except BaseException as error:  # importing a user's module may raise anything
            return encode(("unreadable", describe_error(error)))

        return self._answer_with(output)

    def answer_together(self, requests: Sequence[bytes]) -> list[bytes]:
        """Return the answers to jobs whose outputs are gathered before they are sent."""
        assert self.gather is not None
        try:
            jobs = [self._job(*decode(request)[1:]) for request in requests]
        except BaseException as error:  # importing a user's module may raise anything
            return [encode(("unreadable", describe_error(error)))] * len(requests)
        outputs = self.gather(jobs, map(self._run, jobs))
        return [self._answer_with(output) for output in outputs]

    def hold_tables(self, tables: Sequence[Tensor]) -> None:
        """Use these tables in the maps that follow."""
        self.tables = list(tables)

    def _handle_settings(self, settings: Settings, path: tuple[str, ...]) -> None:
        # Modules may have been written since this process last looked.
        sys.path[:] = self.path_here(path)
        importlib.invalidate_caches()
        settings.apply()
        self.settings = Settings.current()

    def _handle_run(self) -> None:
        self.runner = ReplayRunner()

    def _handle_tables(self, files: Sequence[MappedTensor]) -> None:
        self.hold_tables([file.open() for file in files])

    def _handle_task(self, number: int, task: Task) -> None:
        self.tasks[number] = task

    def _handle_map(
        self, program: Program, shared_inputs: Any, gather: Gather | None = None
    ) -> None:
        # The tables came before, and are mapped already.
        if isinstance(shared_inputs, SharedInputs):
            shared_inputs = shared_inputs._replace(x=self.tables[0], y=self.tables[1])
        self.program = program
        self.shared_inputs = shared_inputs
        self.gather = gather

    def _handle_job(self, *contents: Any) -> Any:
        return self._run(self._job(*contents))

    def _job(self, task_number: int, client: int, inputs: Any, size: int) -> Job:
        return Job(client, self.tasks[task_number], inputs, size)

    def _run(self, job: Job) -> Any:
        """Run a client's program."""
        output = run_job(self.program, self.shared_inputs, job, self.runner)
        if self.settings.restore():
            self.runner = ReplayRunner()  # what was recorded under other settings may be wrong

        if isinstance(output, Failure):
            # Many exceptions cannot be sent, or not be rebuilt.
            return Failure(ProgramError(describe_error(output.reason)))
        return output

    def _answer_with(self, output: Any) -> bytes:
        try:
            return encode(("output", output))
        except SerializationError as error:
            reason = f"the program's output cannot be sent to another process: {error}"
            return encode(("unsendable", Failure(TypeError(reason))))


def serve(folder: str = "") -> None:
    """Answer requests from standard input on standard output; exit as soon as the parent is gone.

    Args:
        folder: temporary folder of the parent, which is removed if the parent was killed.
    """
    # A client's program may use the standard streams, or close them.
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    _detach_standard_streams()
    torch.set_num_threads(1)
    keep_pages()

    # A thread of its own notices that the parent is gone while a program runs.
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(requests, waiting, folder), daemon=True)
    listener.start()
    handler = RequestHandler()

    try:
        write_frame(answers, encode(("output", None)))  # ready
        while True:
            write_frame(answers, handler.answer(waiting.get()))
    except OSError:
        listener.join()  # the parent is gone; the listener ends this process


def _detach_standard_streams() -> None:
    """Send what programs print to standard error, because the pipes carry requests.

    Their standard input is empty.
    """
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _listen(requests: IO[bytes], waiting: queue.SimpleQueue[bytes], folder: str) -> None:
    """Receive requests.

    End the process when the parent is gone, even while a client's program runs.
    """
    try:
        while True:
            waiting.put(read_frame(requests))
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
