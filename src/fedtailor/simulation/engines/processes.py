"""The engine ``processes``: one process per physical core, one client at a time in each.

Where a step takes less than a millisecond, threads wait for Python's lock; processes do not.
Children are new interpreters and never forks, because a fork of a process whose threads hold locks
can deadlock. They communicate with their parent through their standard input and output, and end
when it does. They compute as the reference engine does.

``concurrent.futures`` and ``multiprocessing`` import the user's main script again in every child,
so that a script without ``if __name__ == "__main__"``, or one read from standard input, fails;
these children never import it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fedtailor.core.engine import Job, Program, physical_cores
from fedtailor.simulation.engines.mapped_tables import MappedTables
from fedtailor.simulation.engines.requests import MapRequests, Request, Requests
from fedtailor.simulation.engines.serialization import encode
from fedtailor.simulation.engines.worker_process import WorkerProcess
from fedtailor.simulation.engines.workers import run_largest_first
from fedtailor.simulation.programs import SharedInputs


class Processes:
    """Runs clients in processes, the largest first.

    The processes start with the first call of :meth:`map`.
    """

    name = "processes"
    smallest_group = 32

    def __init__(self, workers: int = 0, timeout: float = 0.0) -> None:
        """Prepare processes.

        Args:
            workers: their number; 0: one per physical core that this process may use.
            timeout: seconds that a client's program may take; 0: any time.
        """
        self.timeout = timeout
        self.workers = workers or physical_cores()
        self._pool = _ProcessPool(self.workers)
        self._lock = threading.Lock()
        weakref.finalize(self, self._pool.close)  # also when the interpreter exits

    def begin_run(self) -> None:
        """Make the processes forget what they recorded in an earlier run."""
        self._pool.requests.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job.

        :class:`Failure` where one raised, its process ended, or it took too long.

        Raises:
            ConfigError: the program or one of its inputs cannot be sent to another process.
            RunError: a process cannot be started, or the data files cannot be written.
        """
        if not jobs:
            return []
        with self._lock:
            # Every thread waits for the answers of one process.
            folder, requests = self._pool.pack(program, common, jobs)
            workers = self._pool.workers[: len(jobs)]
            runners = [
                partial(worker.run, folder, requests, timeout=self.timeout) for worker in workers
            ]
            with ThreadPoolExecutor(len(workers)) as threads:
                try:
                    return run_largest_first(threads, runners, jobs)
                except BaseException:
                    self._pool.kill()
                    threads.shutdown()
                    self._pool.close()  # includes processes that were just starting
                    raise

    def close(self) -> None:
        """End the processes and remove the files; a later :meth:`map` starts new processes."""
        with self._lock:
            self._pool.close()


class _ProcessPool:
    """The processes and files that must be cleaned up.

    The engine's finalizer refers to it and not to the engine.
    """

    def __init__(self, count: int) -> None:
        self.workers = [WorkerProcess() for _ in range(count)]
        self.tables = MappedTables()
        self.requests = Requests("processes")

    def pack(self, program: Program, common: Any, jobs: Sequence[Job]) -> tuple[str, MapRequests]:
        """Return the folder with the files of the data, and what the processes must receive."""
        tables = None
        if isinstance(common, SharedInputs):
            files = self.tables.put(common.x, common.y)
            tables = Request(self.tables.version, encode(("tables", files)))

        requests = self.requests.of_map(program, common, jobs, tables=tables)
        return str(self.tables.folder or ""), requests

    def kill(self) -> None:
        """Kill the processes during their work."""
        for worker in self.workers:
            worker.kill()

    def close(self) -> None:
        """End the processes and remove the files."""
        for worker in self.workers:
            worker.close()
        self.tables.remove()
