"""The engine ``workers``: one thread per physical core, one client at a time in each.

Convolutions and backward passes release Python's lock, so threads fill the cores. Every client is
computed as in the reference engine, with one intra-op thread, so the results have the same bits for
any number of workers and any order.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import torch

from fedtailor.core.engine import Job, Program, one_thread, physical_cores
from fedtailor.simulation.engines.containment import process_restored, run_job
from fedtailor.training.replay import ReplayRunner

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3)."""
_GLANCE = 0.05
"""Seconds between two looks at the jobs that run."""
_ONE_BY_ONE = (
    "engine 'workers' runs the clients of this round again, one by one, because one of them "
    "changed a setting of the whole process, such as PyTorch's default type, while others ran."
)


class Workers:
    """Runs clients in threads, the largest first."""

    name = "workers"
    smallest_group = 32

    def __init__(self, workers: int = 0) -> None:
        """Prepare ``workers`` threads; 0: one per physical core that this process may use."""
        self.workers = workers or physical_cores()
        self._pool: ThreadPoolExecutor | None = None
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
            changed_settings = []
            interrupted = threading.Event()

            def run(job: Job) -> Any:
                output = run_job(program, common, job, self.runner)

                # A client may end after an interruption of the engine: the settings are then those
                # of whatever goes on.
                if not interrupted.is_set() and settings.restore():
                    changed_settings.append(job.client)
                    self.begin_run()  # what was recorded under other settings may be wrong
                return output

            pool = self._threads()
            try:
                outputs = run_largest_first(pool, [run] * self.workers, jobs)

                # Other clients may have computed under a setting that one of them changed.
                if changed_settings and min(self.workers, len(jobs)) > 1:
                    warnings.warn(_ONE_BY_ONE, RuntimeWarning, stacklevel=2)
                    outputs = [pool.submit(run, job).result() for job in jobs]
            except BaseException:
                # First of all, because a second interruption may come while the clients end, or the
                # first one came while a thread began, for which the pool then does not wait.
                interrupted.set()
                self._pool = None
                pool.shutdown()
                raise

            return outputs

    def _threads(self) -> ThreadPoolExecutor:
        """Return the threads, which stay until the engine is closed, and keep their recordings."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.workers, initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool

    def close(self) -> None:
        """End the threads; a later call starts new threads."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown()
            self._pool = None


def run_largest_first(
    pool: ThreadPoolExecutor, runners: Sequence[Callable[[Job], Any]], jobs: Sequence[Job]
) -> list[Any]:
    """Run jobs in threads, so that none of the long ones is the last to begin.

    Whatever a runner raises is raised here at once, and no further job begins.

    Args:
        pool: has a thread for every runner.
        runners: each runs one job at a time.
        jobs: in any order; their outputs come back in the same one.
    """
    outputs: list[Any] = [None] * len(jobs)
    waiting = deque(sorted(range(len(jobs)), key=lambda position: -jobs[position].size))

    # A future for each job would cost 0.06 ms.
    def run_waiting(runner: Callable[[Job], Any]) -> None:
        while True:
            try:
                position = waiting.popleft()
            except IndexError:
                return

            outputs[position] = runner(jobs[position])

    running: Iterable[Future[None]] = []
    try:
        running = [pool.submit(run_waiting, runner) for runner in runners[: len(jobs)]]
        while running:
            # Python handles signals in the main thread only, and not while it waits: so it waits
            # for a short time, again and again.
            ended, running = wait(running, timeout=_GLANCE, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
    except BaseException:
        waiting.clear()
        raise

    return outputs


@cache
def keep_pages() -> bool:
    """Make glibc keep freed memory; return whether it took effect.

    Otherwise activations are mapped and faulted in again at every step. Convolutions become 1.25 to
    1.33 times as fast. Without glibc, it does nothing.
    """
    if not _has_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def return_pages() -> None:
    """Make glibc return freed memory to the system; without glibc it does nothing.

    Tensors of many sizes that come from other processes leave holes, which nothing else may fill.
    """
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
