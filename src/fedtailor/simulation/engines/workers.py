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
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedtailor.core.engine import Job, Program, one_thread
from fedtailor.simulation.engines.containment import Settings, process_restored, run_job
from fedtailor.training.replay import ReplayRunner

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3)."""
_GLANCE = 0.05
"""Seconds between two looks at the clients that run."""
_ONE_BY_ONE = (
    "engine 'workers' runs the clients of this round again, one by one, because one of them "
    "changed "
    "a setting of the whole process, such as PyTorch's default type, while others ran."
)


class Workers:
    """Runs clients in threads, the largest first."""

    name = "workers"

    def __init__(self, workers: int = 0) -> None:
        """Prepare ``workers`` threads; 0: one per physical core that this process may use."""
        self.workers = workers or physical_cores()
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0
        """The process that started the threads: a fork has none of them."""
        self._lock = threading.Lock()
        self.runner = ReplayRunner()
        """Carries out training steps; its recordings are shared by all threads."""
        keep_pages()

    def begin_run(self) -> None:
        """Forget all recordings."""
        self.runner = ReplayRunner()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with self._lock, one_thread(), process_restored() as settings:
            round = _Round(self, settings, program, common, jobs)
            pool = self._threads()
            try:
                count = min(self.workers, len(jobs))
                _wait_for([pool.submit(round.run_waiting) for _ in range(count)])

                # Other clients may have computed under a setting that one of them changed.
                if round.changed_settings and count > 1:
                    warnings.warn(_ONE_BY_ONE, RuntimeWarning, stacklevel=2)
                    for position in range(len(jobs)):
                        pool.submit(round.run, position).result()
            except BaseException:
                # First of all, because a second interruption may come while the clients end.
                self._pool = None
                round.waiting.clear()
                pool.shutdown()
                raise

            return round.outputs

    def _threads(self) -> ThreadPoolExecutor:
        """Return the threads, which stay until the engine is closed, and keep their recordings."""
        if self._pool is None or self._owner != os.getpid():
            self._pool = ThreadPoolExecutor(
                self.workers, initializer=torch.set_num_threads, initargs=(1,)
            )
            self._owner = os.getpid()
        return self._pool

    def close(self) -> None:
        """End the threads; a later call starts new threads."""
        with self._lock:
            if self._pool is not None and self._owner == os.getpid():
                self._pool.shutdown()
            self._pool = None


class _Round:
    """The jobs of one map, and what has come of them."""

    def __init__(
        self,
        engine: Workers,
        settings: Settings,
        program: Program,
        common: Any,
        jobs: Sequence[Job],
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.program = program
        self.common = common
        self.jobs = jobs
        self.outputs: list[Any] = [None] * len(jobs)
        self.changed_settings = False
        """Whether a client changed settings of the whole process."""
        order = sorted(range(len(jobs)), key=lambda position: (-jobs[position].size, position))
        self.waiting = deque(order)

    def run_waiting(self) -> None:
        """Run clients until none is left: a future for each of them would cost 0.06 ms."""
        while True:
            try:
                position = self.waiting.popleft()
            except IndexError:
                return

            self.run(position)

    def run(self, position: int) -> None:
        """Run one client in this thread."""
        job = self.jobs[position]
        self.outputs[position] = run_job(self.program, self.common, job, self.engine.runner)
        if self.settings.restore():
            self.changed_settings = True
            self.engine.begin_run()  # what was recorded under other settings may be wrong


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
    """Make glibc keep freed memory.

    Otherwise activations are mapped and faulted in again at every step.

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
