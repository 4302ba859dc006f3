"""The reference engine: a plain loop over clients, one thread. The oracle of the other engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedtailor.core.engine import Failure, Job, Program


class Reference:
    """Runs one client after the other on one thread."""

    name = "reference"

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with one_thread():
            return [run_job(program, common, job) for job in jobs]


def run_job(program: Program, common: Any, job: Job) -> Any:
    """Run one client's program; an exception becomes a :class:`Failure`."""
    try:
        return program(job.task, common, job.row)
    except Exception as reason:  # whatever a client's program raises must not end the others' work
        return Failure(reason)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one intra-op thread: results then do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
