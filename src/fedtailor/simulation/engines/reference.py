"""The reference engine: a plain loop over clients, one thread, every step as it is. The oracle of the other engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.engine import Failure, Job, Program, one_thread
from fedtailor.core.per_example import cut
from fedtailor.training.step_graph.replay import plain_steps


class Reference:
    """Runs one client after the other on one thread."""

    name = "reference"

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with one_thread(), plain_steps():
            return [run_job(program, common, job) for job in jobs]

    def close(self) -> None:
        """Do nothing: nothing is held between calls."""


def run_job(program: Program, common: Any, job: Job) -> Any:
    """Run one client's program; an exception becomes a :class:`Failure`."""
    try:
        return cut(program(job.task, common, job.row), job.size)
    except Exception as reason:  # whatever a client's program raises must not end the others' work
        return Failure(reason)
