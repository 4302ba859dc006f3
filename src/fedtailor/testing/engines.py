"""Engines that disturb what must not matter, or watch what must not happen."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from fedtailor.core import tree
from fedtailor.core.engine import Engine, ExampleIndices, Job, Program
from fedtailor.simulation.engines.batched import Batched, run_stacked
from fedtailor.testing.runs import Disagreement, assert_same_bits, program_name


class Shuffled:
    """Hands over the clients in another order."""

    name = "shuffled"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def begin_run(self) -> None:
        """Begin a run of the engine that does the work."""
        self.engine.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        order = list(range(len(jobs)))
        random.Random(1).shuffle(order)
        outputs = self.engine.map(program, common, [jobs[position] for position in order])
        return [outputs[order.index(position)] for position in range(len(jobs))]

    def close(self) -> None:
        """Close the engine that does the work."""
        self.engine.close()


class Padded:
    """Puts examples of weight 0 before, between and behind the examples of every client."""

    name = "padded"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def begin_run(self) -> None:
        """Begin a run of the engine that does the work."""
        self.engine.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        total = len(common.y)
        rows = [job.row._replace(train=_pad(job.row.train, total), test=_pad(job.row.test, total)) for job in jobs]
        return self.engine.map(program, common, [job._replace(row=row) for job, row in zip(jobs, rows, strict=True)])

    def close(self) -> None:
        """Close the engine that does the work."""
        self.engine.close()


def _pad(part: ExampleIndices, total: int) -> ExampleIndices:
    """Return examples at the places 1, 2, 4, 5, 7, 8, ... with others' examples of weight 0 between them."""
    count = len(part.rows)
    places = torch.arange(count) + torch.arange(count) // 2 + 1
    rows = torch.arange(count + count // 2 + 3) % total
    weight = torch.zeros(len(rows))
    rows[places], weight[places] = part.rows, part.weight
    return ExampleIndices(rows, weight)


class Guarding:
    """Checks that a program leaves its inputs as they are."""

    name = "guarding"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def begin_run(self) -> None:
        """Begin a run of the engine that does the work."""
        self.engine.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job.

        Raises:
            Disagreement: an input was changed.
        """
        inputs = {**common._asdict(), **{f"client {job.client}": job.row for job in jobs}}
        before = tree.map(torch.clone, inputs)
        outputs = self.engine.map(program, common, jobs)
        try:
            assert_same_bits(before, inputs)
        except Disagreement as error:
            raise Disagreement(f"{program_name(program)}: {error}") from None
        return outputs

    def close(self) -> None:
        """Close the engine that does the work."""
        self.engine.close()


class NotStacked(Exception):
    """A program does not run for several clients at once; the cause is what PyTorch said."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{program} does not run for several clients at once")
        self.program = program


class Strict(Batched):
    """Stacks clients, and does not fall back to a loop where that fails."""

    def run_block(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Run one block.

        Raises:
            NotStacked: PyTorch refused; chained to its reason.
        """
        try:
            return run_stacked(program, common, jobs)
        except Exception as reason:  # whatever a client's program raises
            raise NotStacked(program_name(program)) from reason
