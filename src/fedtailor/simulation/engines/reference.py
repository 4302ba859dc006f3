"""The engine ``reference``: a plain loop over clients on one thread. The other engines are tested against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.engine import Failure, Job, Program, one_thread
from fedtailor.core.per_example import cut
from fedtailor.training.step_runner import PLAIN, StepRunner, steps_run_by


class Reference:
    """Runs one client after the other on one thread."""

    name = "reference"

    def begin_run(self) -> None:
        """Do nothing: nothing is kept from one call to the next."""

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with one_thread():
            outputs = []
            for job in jobs:
                outputs.append(run_job(program, common, job))
            return outputs

    def close(self) -> None:
        """Do nothing: nothing is held between calls."""


def run_job(program: Program, common: Any, job: Job, runner: StepRunner = PLAIN) -> Any:
    """Run one client's program, and its training steps by ``runner``; an exception becomes a :class:`Failure`."""
    try:
        with steps_run_by(runner):
            output = program(job.task, common, job.inputs)
        return cut(output, job.size)
    except Exception as reason:  # an error of one client must not stop the others
        return Failure(reason)
