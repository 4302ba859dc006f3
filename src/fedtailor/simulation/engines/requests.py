"""Requests to another process that runs clients: encoded once, with versions.

Errors say what cannot be sent.

The engines ``processes`` and ``ray`` send the same requests;
:mod:`~fedtailor.simulation.engines.child` answers them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedtailor.core.engine import Failure, Gather, Job, Program, ProgramError
from fedtailor.core.errors import ConfigError, describe_error
from fedtailor.core.task import Task
from fedtailor.simulation.engines.containment import Settings
from fedtailor.simulation.engines.serialization import SerializationError, decode, encode


class Request(NamedTuple):
    """An encoded request with a version.

    A process that received this version is not sent it again.
    """

    version: int
    data: memoryview


class Requests:
    """What the processes of an engine must receive before the jobs of a map.

    Each part is encoded when it changes.
    """

    def __init__(self, engine: str) -> None:
        """Prepare the requests of an engine with this name."""
        self._engine = engine
        self._settings: tuple[Settings, tuple[str, ...]] | None = None
        self._settings_version = 0
        self._num_runs = 0
        self._num_maps = 0
        self._tasks: list[tuple[Task, Request]] = []
        """Every task that was ever sent. A reference is kept, so that no other task can have the
        same identity."""

    def begin_run(self) -> None:
        """Make the processes forget what they recorded in an earlier run."""
        self._num_runs += 1

    def before_tables(self) -> dict[str, Request]:
        """Return the settings of this process, and the announcement of the run."""
        settings = (Settings.current(), tuple(sys.path))
        if settings != self._settings:
            self._settings = settings
            self._settings_version += 1
        return {
            "settings": Request(self._settings_version, encode(("settings", *settings))),
            "run": Request(self._num_runs, encode(("run",))),
        }

    def of_map(self, program: Program, common: Any, gather: Gather | None = None) -> Request:
        """Return the request with a program, its shared inputs, and what gathers outputs.

        Raises:
            ConfigError: it cannot be sent.
        """
        self._num_maps += 1
        return Request(self._num_maps, encode_map(program, common, self._engine, gather))

    def of_tasks(self, jobs: Sequence[Job]) -> dict[int, Request]:
        """Return the requests of the tasks of jobs, by the identity of the task.

        The version is the task's number.

        Raises:
            ConfigError: one cannot be sent.
        """
        known = {id(task): request for task, request in self._tasks}
        for job in jobs:
            if id(job.task) not in known:
                number = len(self._tasks)
                request = Request(number, encode_task(number, job.task, self._engine))
                self._tasks.append((job.task, request))
                known[id(job.task)] = request
        return {id(job.task): known[id(job.task)] for job in jobs}


def encode_map(
    program: Program, common: Any, engine: str = "processes", gather: Gather | None = None
) -> memoryview:
    """Encode a program, its shared inputs, and what gathers outputs where they are made.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        return encode(("map", program, common, gather))
    except SerializationError as error:
        raise cannot_send(_unsendable_part(program), str(error), engine) from error


def _unsendable_part(program: Program) -> str:
    """Describe which part of a map cannot be sent: its program, or otherwise the shared inputs."""
    function = getattr(program, "func", program)
    algorithm = getattr(program, "keywords", {}).get("algorithm")
    if algorithm is None:
        name = f"the program '{function.__name__}'"
    else:
        name = f"the algorithm '{type(algorithm).__name__}'"

    try:
        encode(program)
    except SerializationError:
        return name

    return f"the shared inputs of {name}"


def encode_task(number: int, task: Task, engine: str = "processes") -> memoryview:
    """Encode a task.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        return encode(("task", number, task))
    except SerializationError as error:
        raise cannot_send(f"the model '{type(task.model).__name__}'", str(error), engine) from error


def encode_job(task_number: int, job: Job, engine: str) -> memoryview:
    """Encode a job, whose task has a number.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        return encode(("job", task_number, job.client, job.inputs, job.size))
    except SerializationError as error:
        raise cannot_send(f"the state of client {job.client}", str(error), engine) from error


class Answer(NamedTuple):
    """What has come from another process for a job."""

    output: Any
    arrived: bool
    """Whether the output of the program, or its failure, is here; if not, ``output`` is a
    :class:`Failure`."""


def read_answer(data: bytes | memoryview, engine: str) -> Answer:
    """Return what a process answered.

    Raises:
        ConfigError: the process could not read the request.
    """
    try:
        kind, value = decode(data)
    except (
        BaseException
    ) as error:  # the classes of an output may raise anything when they are rebuilt
        reason = f"the program's output cannot be read: {describe_error(error)}"
        return Answer(Failure(ProgramError(reason)), arrived=False)

    if kind == "unreadable":
        raise cannot_send("a client's program or its inputs", value, engine)
    return Answer(value, arrived=kind == "output")


def cannot_send(what: str, reason: str, engine: str) -> ConfigError:
    """Return the error for something that cannot be sent to another process."""
    return ConfigError(
        f"engine '{engine}' cannot send {what} to its processes: {reason.rstrip('.')}. "
        'engine.name = "workers" runs '
        "it in this process, with the same results.",
        key="engine.name",
        allowed=["reference", "workers"],
        got=engine,
    )
