"""Requests to another process that runs clients: encoded once, with versions.

The engines ``processes`` and ``ray`` send the same requests;
:mod:`~fedtailor.simulation.engines.child` answers them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fedtailor.core.engine import Failure, Gather, Job, Program, ProgramError
from fedtailor.core.errors import ConfigError, describe_error
from fedtailor.core.task import Task
from fedtailor.simulation.engines.containment import Settings
from fedtailor.simulation.engines.serialization import SerializationError, decode, encode
from fedtailor.simulation.programs import SharedInputs

_ELSEWHERE = torch.empty(0)
"""Replaces the data tables, which other processes find in files or in an object store."""


class Request(NamedTuple):
    """An encoded request with a version.

    A process that received this version is not sent it again.
    """

    version: int
    data: bytes


class MapRequests(NamedTuple):
    """What another process must receive before the jobs of a map."""

    engine: str
    common: dict[str, Request]
    """By kind, in the order in which they are sent."""
    tasks: dict[int, Request]
    """By the identity of the task; the version is its number."""

    def before(self, job: Job) -> dict[str, Request]:
        """Return what must be received before a job, by kind."""
        task = self.tasks[id(job.task)]
        return {**self.common, f"task {task.version}": task}

    def before_all(self) -> dict[str, Request]:
        """Return what must be received before any of the jobs, by kind."""
        return {**self.common, **{f"task {task.version}": task for task in self.tasks.values()}}

    def of_job(self, job: Job) -> bytes:
        """Encode a job.

        Raises:
            ConfigError: it cannot be sent.
        """
        task_number = self.tasks[id(job.task)].version
        try:
            return encode(("job", task_number, job.client, job.inputs, job.size))
        except SerializationError as error:
            raise cannot_send(f"the state of client {job.client}", error, self.engine) from error


class Requests:
    """Encodes what the processes of an engine must receive, each part when it changes."""

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

    def of_map(
        self,
        program: Program,
        common: Any,
        jobs: Sequence[Job],
        *,
        gather: Gather | None = None,
        tables: Request | None = None,
    ) -> MapRequests:
        """Return what the processes must receive before the jobs of a map.

        Args:
            program: of the jobs.
            common: its shared inputs; data tables in them are not sent.
            jobs: whose tasks are sent.
            gather: what gathers outputs where they are made.
            tables: says where the data tables are.

        Raises:
            ConfigError: something cannot be sent.
        """
        # Actors and children compute under the settings of this process.
        settings = (Settings.current(), tuple(sys.path))
        if settings != self._settings:
            self._settings = settings
            self._settings_version += 1

        requests = {
            "settings": Request(self._settings_version, encode(("settings", *settings))),
            "run": Request(self._num_runs, encode(("run",))),
        }
        if tables is not None:
            requests["tables"] = tables
        if isinstance(common, SharedInputs):
            common = common._replace(x=_ELSEWHERE, y=_ELSEWHERE)

        self._num_maps += 1
        encoded = encode_map(program, common, self._engine, gather)
        requests["map"] = Request(self._num_maps, encoded)
        return MapRequests(self._engine, requests, self._of_tasks(jobs))

    def _of_tasks(self, jobs: Sequence[Job]) -> dict[int, Request]:
        by_identity = {id(task): request for task, request in self._tasks}
        for job in jobs:
            if id(job.task) not in by_identity:
                number = len(self._tasks)
                request = Request(number, encode_task(number, job.task, self._engine))
                self._tasks.append((job.task, request))
                by_identity[id(job.task)] = request

        return {id(job.task): by_identity[id(job.task)] for job in jobs}


def encode_map(
    program: Program, common: Any, engine: str = "processes", gather: Gather | None = None
) -> bytes:
    """Encode a program, its shared inputs, and what gathers outputs where they are made.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        return encode(("map", program, common, gather))
    except SerializationError as error:
        function = getattr(program, "func", program)
        what = f"the program '{function.__name__}' or what it receives"
        algorithm = getattr(program, "keywords", {}).get("algorithm")
        if algorithm is not None:
            what = f"the algorithm '{type(algorithm).__name__}' or what it broadcasts"
        raise cannot_send(what, error, engine) from error


def encode_task(number: int, task: Task, engine: str = "processes") -> bytes:
    """Encode a task.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        return encode(("task", number, task))
    except SerializationError as error:
        raise cannot_send(f"the model '{type(task.model).__name__}'", error, engine) from error


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
    except BaseException as error:  # of a class of the output, when it is rebuilt
        reason = f"the program's output cannot be read: {describe_error(error)}"
        return Answer(Failure(ProgramError(reason)), arrived=False)

    if kind == "unreadable":
        raise cannot_send("a client's program or its inputs", value, engine)
    return Answer(value, arrived=kind == "output")


def cannot_send(what: str, reason: object, engine: str) -> ConfigError:
    """Return the error for something that cannot be sent to another process."""
    return ConfigError(
        f"engine '{engine}' cannot send {what} to its processes: {str(reason).rstrip('.')}. "
        'engine.name = "workers" runs it in this process, with the same results.',
        key="engine.name",
        allowed=["reference", "workers"],
        got=engine,
    )
