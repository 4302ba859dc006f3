"""The engine ``reference``: a plain loop over clients on one thread.

The other engines are tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.engine import Engine, Job, Program, one_thread
from fedtailor.simulation.engines.containment import process_restored, run_one_by_one


class Reference(Engine):
    """Runs one client after the other on one thread."""

    name = "reference"
    smallest_group = 1

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with one_thread(), process_restored():
            return run_one_by_one(program, common, jobs)
