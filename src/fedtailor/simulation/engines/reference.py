"""The engine ``reference``: a plain loop over clients on one thread. The other engines are tested
against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.engine import Job, Program, one_thread
from fedtailor.simulation.engines.containment import run_job
from fedtailor.simulation.engines.surroundings import Surroundings


class Reference:
    """Runs one client after the other on one thread."""

    name = "reference"

    def begin_run(self) -> None:
        """Do nothing: nothing is kept from one call to the next."""

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with one_thread():
            surroundings = Surroundings()
            outputs = []
            for (
                job
            ) in jobs:  # not by a further call: few calls lead from the command to the gradient
                outputs.append(run_job(program, common, job))
                surroundings.restore()

            return outputs

    def close(self) -> None:
        """Do nothing: nothing is held between calls."""
