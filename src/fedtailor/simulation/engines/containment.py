"""Containment: a client's program ends no other program, and changes nothing that another one uses.

A program may fail in any way: then it is its client's failure. It works on copies of its inputs,
what it returns is copied and checked, and the settings on which results depend are restored.

This is about faults, not about attacks. What a program does to Python objects that it shares with
others, to files, or from threads that it leaves running, cannot be seen. The border against hostile
code is another process: the engine ``processes``, or a real site.
"""

from __future__ import annotations

import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor.core.engine import Failure, Job, Program, cut
from fedtailor.simulation.engines.plain_output import plain
from fedtailor.simulation.engines.private_inputs import (
    SpoiledData,
    make_private,
    refuse_spoiled,
)
from fedtailor.training.step_runner import PLAIN, StepRunner, steps_run_by


class Settings(NamedTuple):
    """The settings of PyTorch in a process, on which results depend."""

    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    precision: str
    mkldnn: bool

    @classmethod
    def current(cls) -> Settings:
        """Return the settings of this process."""
        return cls(
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            precision=torch.get_float32_matmul_precision(),
            mkldnn=bool(torch.backends.mkldnn.enabled),
        )

    def apply(self) -> None:
        """Change the settings of this process to these."""
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]

    def restore(self) -> bool:
        """Make the settings of this process these; return whether they had changed."""
        if Settings.current() == self:
            return False
        self.apply()
        return True


def run_job(program: Program, common: Any, job: Job, runner: StepRunner = PLAIN) -> Any:
    """Run one client's program; whatever it raises becomes a :class:`Failure`.

    Args:
        program: what the client runs.
        common: what all clients receive.
        job: of the client.
        runner: carries out its training steps.

    Raises:
        SpoiledData: it changed the data of all clients, of which there is no copy.
    """
    try:
        private_common, (inputs,) = make_private(common, [job.inputs])
        with steps_run_by(runner), thread_restored():
            output = program(job.task, private_common, inputs)

        refuse_spoiled(private_common)
        return plain(cut(output, job.size))
    except BaseException as error:
        return failure_of(error)


def run_one_by_one(program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
    """Run clients one after the other in this thread.

    Raises:
        SpoiledData: one of them changed the data of all clients, of which there is no copy.
    """
    settings = Settings.current()
    outputs = []
    for job in jobs:
        outputs.append(run_job(program, common, job))
        settings.restore()
    return outputs


def contained(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that belongs to one client; whatever it raises becomes a :class:`Failure`."""
    settings = Settings.current()
    try:
        with thread_restored():
            return plain(function(*arguments))
    except BaseException as error:
        return failure_of(error)
    finally:
        settings.restore()


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an exception is.

    The variables of its calls, which take memory, are forgotten.

    Raises:
        BaseException: the exception concerns the whole run.
    """
    refuse_to_contain(error)
    traceback.clear_frames(error.__traceback__)
    return Failure(error)


def refuse_to_contain(error: BaseException) -> None:
    """Raise an exception again that concerns the whole run: spoiled data, or an interruption.

    Python handles Ctrl-C in the main thread, unless it is ignored, as in the processes of engines.
    What is raised elsewhere is the program's own.
    """
    if isinstance(error, SpoiledData):
        raise error

    if isinstance(error, KeyboardInterrupt):
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise error


@contextmanager
def thread_restored() -> Iterator[None]:
    """Restore the gradient mode and the number of threads, which every thread has of its own."""
    threads = torch.get_num_threads()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def process_restored() -> Iterator[Settings]:
    """Restore settings and global random generators of the process; gives the settings."""
    settings = Settings.current()
    of_torch = torch.get_rng_state()
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    try:
        yield settings
    finally:
        settings.restore()
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
