"""The processes engine: one client per physical core, in processes of their own.

Where a step takes less than a millisecond, threads wait for Python's lock; processes do not. Children are new
interpreters, never forks: a fork of a process whose threads hold locks may wait for ever. They speak with their parent
through their standard input and output, and end when it does. The arithmetic is that of the reference engine.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch

from fedtailor.core.engine import Job, Program
from fedtailor.core.task import Task
from fedtailor.simulation.engines.child import Settings
from fedtailor.simulation.engines.seats import Payload, WorkerProcess, cannot_send
from fedtailor.simulation.engines.tables import Tables
from fedtailor.simulation.engines.wire import Unsendable, encode
from fedtailor.simulation.engines.workers import physical_cores
from fedtailor.simulation.programs import SharedInputs

_ELSEWHERE = torch.empty(0)
"""In place of the tables, which go by file."""


class Processes:
    """Runs clients in processes, the longest first; they start with the first call of :meth:`map`."""

    name = "processes"

    def __init__(self, workers: int = 0) -> None:
        """``workers`` processes; 0: one per physical core that this process may use."""
        self.workers = workers or physical_cores()
        self._pool = _Pool(self.workers)
        self._lock = threading.Lock()
        weakref.finalize(self, self._pool.close)  # also when the interpreter exits

    def begin_run(self) -> None:
        """Let the processes forget what they recorded in an earlier run."""
        self._pool.runs += 1

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job; :class:`Failure` where one raised or its process ended.

        Raises:
            ConfigError: the program, or what belongs to it, cannot be sent to another process.
            RunError: no process can be started, or the data cannot be written where they map them.
        """
        if not jobs:
            return []
        with self._lock:
            parcel = self._pool.pack(program, common, jobs)
            return self._run(parcel, jobs)

    def _run(self, parcel: Payload, jobs: Sequence[Job]) -> list[Any]:
        outputs: list[Any] = [None] * len(jobs)
        waiting = deque(sorted(range(len(jobs)), key=lambda position: (-jobs[position].size, position)))

        def feed(seat: WorkerProcess) -> None:
            while True:
                try:
                    position = waiting.popleft()
                except IndexError:
                    return
                outputs[position] = seat.run(parcel, jobs[position])

        seats = self._pool.seats[: len(jobs)]
        with ThreadPoolExecutor(len(seats)) as threads:
            try:
                for feeder in as_completed([threads.submit(feed, seat) for seat in seats]):
                    feeder.result()
            except BaseException:
                waiting.clear()  # an interrupted run starts no further client
                self._pool.kill()
                threads.shutdown()
                self._pool.close()  # whoever was starting meanwhile, too
                raise
        return outputs

    def close(self) -> None:
        """End the processes and remove the files; a later :meth:`map` starts anew."""
        with self._lock:
            self._pool.close()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pool:
    """What has to be cleaned up: processes and files. It outlives the engine by one call."""

    def __init__(self, count: int) -> None:
        self.tables = Tables()
        self.settings: Settings | None = None
        self.changes = self.maps = 0
        """How often the settings were other ones, and how many maps there were."""
        self.runs = 0
        self.seats = [WorkerProcess() for _ in range(count)]
        self.tasks: list[tuple[Task, memoryview]] = []
        """Every task that was ever sent, and what was sent: kept, so that no other task can be taken for it."""

    def pack(self, program: Program, common: Any, jobs: Sequence[Job]) -> Payload:
        """Encode what is the same for several clients, once."""
        if self.settings != Settings.here():
            self.settings, self.changes = Settings.here(), self.changes + 1
        frames = {"settings": (self.changes, encode(("settings", self.settings)))}
        frames["run"] = (self.runs, encode(("run",)))
        if isinstance(common, SharedInputs):
            files = self.tables.put(common.x, common.y)
            frames["tables"] = (self.tables.number, encode(("tables", files)))
            common = common._replace(x=_ELSEWHERE, y=_ELSEWHERE)
        self.maps += 1
        frames["map"] = (self.maps, encode_map(program, common))
        return Payload(str(self.tables.folder or ""), frames, self._number_tasks(jobs))

    def _number_tasks(self, jobs: Sequence[Job]) -> dict[int, tuple[int, memoryview]]:
        """Return number and encoding of the tasks of jobs, by their identity."""
        known = {id(task): (number, data) for number, (task, data) in enumerate(self.tasks)}
        for job in jobs:
            if id(job.task) not in known:
                number = len(self.tasks)
                data = encode_task(number, job.task)
                self.tasks.append((job.task, data))
                known[id(job.task)] = number, data
        return {id(job.task): known[id(job.task)] for job in jobs}

    def kill(self) -> None:
        """End the processes in the middle of their work."""
        for seat in self.seats:
            seat.kill()

    def close(self) -> None:
        """End the processes and remove the files."""
        for seat in self.seats:
            seat.leave()
        self.tables.remove()


def encode_map(program: Program, common: Any) -> memoryview:
    """Encode what is the same for all clients of a map.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        return encode(("map", program, common))
    except Unsendable as error:
        raise cannot_send(_culprit(program), str(error)) from error


def _culprit(program: Program) -> str:
    """Return what of a map cannot be sent, in words."""
    function = getattr(program, "func", program)
    owner = getattr(program, "keywords", {}).get("algorithm")
    name = f"the algorithm '{type(owner).__name__}'" if owner is not None else f"the program '{function.__name__}'"
    try:
        encode(program)
    except Unsendable:
        return name
    return f"what {name} tells all clients"


def encode_task(number: int, task: Task) -> memoryview:
    """Encode a task.

    Raises:
        ConfigError: it cannot be sent.
    """
    try:
        return encode(("task", number, task))
    except Unsendable as error:
        raise cannot_send(f"the model '{type(task.model).__name__}'", str(error)) from error
