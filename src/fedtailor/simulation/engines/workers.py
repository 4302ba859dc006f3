"""The engine ``workers``: one thread per physical core, one client at a time in each.

Convolutions and backward passes release Python's lock, so threads fill the cores. Every client is
computed as in the reference engine, with one intra-op thread, so the results have the same bits for
any number of workers and any order.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import warnings
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor.core.engine import Job, Program, one_thread
from fedtailor.simulation.engines.containment import run_job
from fedtailor.simulation.engines.surroundings import Surroundings
from fedtailor.training.step_graph.replay import ReplayRunner

_M_TRIM_THRESHOLD = -1  # parameters of mallopt(3)
_M_MMAP_THRESHOLD = -3
_GLANCE = 0.05
"""Seconds between two looks at the clients that run."""


_ONE_BY_ONE = (
    "engine 'workers' runs the clients of this round again, one by one, because one of them changed a setting of the "
    "whole process, such as PyTorch's default type or the working folder, while others ran."
)


class _Result(NamedTuple):
    """The output of a client."""

    output: Any
    changed_settings: bool
    """Whether settings of the whole process had changed when it was done."""


class Workers:
    """Runs clients in threads, the largest first."""

    name = "workers"

    def __init__(self, workers: int = 0) -> None:
        """Prepare ``workers`` threads; 0: one per physical core that this process may use."""
        self.workers = workers or physical_cores()
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._runner = ReplayRunner()
        self._surroundings: Surroundings | None = None
        """Of the programs that run now. An interruption can leave a thread behind, which must not
        restore its own."""
        keep_pages()

    def begin_run(self) -> None:
        """Forget all recordings."""
        self._runner = ReplayRunner()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        order = sorted(range(len(jobs)), key=lambda position: (-jobs[position].size, position))
        with self._lock, one_thread():
            if self._pool is None or self._owner != os.getpid():  # a fork has none of the threads
                self._pool = ThreadPoolExecutor(
                    self.workers, initializer=torch.set_num_threads, initargs=(1,)
                )
                self._owner = os.getpid()

            pool = self._pool  # threads stay until the engine is closed, and keep their recordings
            surroundings = Surroundings()
            self._surroundings = surroundings
            task = partial(self._run, surroundings, program, common)
            waiting = deque(order)
            results: dict[int, _Result] = {}

            def feed() -> None:
                """Run clients until none is left: a future for each of them would cost 0.06 ms."""
                while True:
                    try:
                        position = waiting.popleft()
                    except IndexError:
                        return

                    results[position] = task(jobs[position])

            try:
                _wait_for([pool.submit(feed) for _ in range(min(self.workers, len(jobs)))])
                if self._may_be_bent(results.values()):
                    warnings.warn(_ONE_BY_ONE, RuntimeWarning, stacklevel=2)
                    for position, job in enumerate(jobs):
                        results[position] = pool.submit(task, job).result()
            except BaseException:
                self._pool = (
                    None  # first, because a second interruption may come while the clients end
                )
                waiting.clear()  # after an interruption, no further client starts
                pool.shutdown()
                raise
            finally:
                self._surroundings = None
                surroundings.restore()

            return [results[position].output for position in range(len(jobs))]

    def _run(self, surroundings: Surroundings, program: Program, common: Any, job: Job) -> _Result:
        """Run one client in this thread."""
        output = run_job(program, common, job, self._runner)
        changed = self._surroundings is surroundings and surroundings.restore_settings()
        if changed:
            self.begin_run()  # what was recorded under other settings may be wrong
        return _Result(output, changed)

    def _may_be_bent(self, results: Collection[_Result]) -> bool:
        """Return whether a client changed settings of the process while another one ran."""
        return (
            self.workers > 1
            and len(results) > 1
            and any(result.changed_settings for result in results)
        )

    def close(self) -> None:
        """End the threads; a later call starts new threads."""
        with self._lock:
            if self._pool is not None and self._owner == os.getpid():
                self._pool.shutdown()
            self._pool = None


def _wait_for(feeders: Sequence[Future[None]]) -> None:
    """Wait until all have ended, or one has raised an exception, which is raised here.

    The main thread looks up often: that is when Python handles a signal that reached another
    thread.
    """
    running: Collection[Future[None]] = feeders
    while running:
        ended, running = wait(running, timeout=_GLANCE, return_when=FIRST_EXCEPTION)
        for feeder in ended:
            feeder.result()


def physical_cores() -> int:
    """Return the number of physical cores among the CPUs that this process may use."""
    usable = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )
    cores = set()

    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))

    return max(len(cores), 1)


@cache
def keep_pages() -> bool:
    """Make glibc keep freed memory, so that activations are not mapped and faulted in again at
    every step.

    Convolutions become 1.25 to 1.33 times as fast. Returns whether it took effect; without glibc it
    does nothing.
    """
    if not _has_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    if not mallopt(_M_MMAP_THRESHOLD, 2**30):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def return_pages() -> None:
    """Make glibc return freed memory to the system; without glibc it does nothing.

    Tensors of many sizes that come from other processes leave holes, which nothing else may fill.
    """
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
