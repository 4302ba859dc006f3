"""Engines for checks: they vary what must not affect results, or detect what must not happen."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from fedtailor.core import tree
from fedtailor.core.engine import ExamplePositions, Failure, Job, Program, cut, one_thread
from fedtailor.simulation.engines.batched import Batched, run_stacked
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import Disagreement, PassingEngine, assert_same_bits, program_name


class Exposed(Reference):
    """Runs one client after the other on the very inputs, as ``Reference`` does on copies.

    So checks see what a program changes, and whether it looks at the examples of others.
    """

    name = "exposed"

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with one_thread():
            return [_run(program, common, job) for job in jobs]


def _run(program: Program, common: Any, job: Job) -> Any:
    try:
        return cut(program(job.task, common, job.inputs), job.size)
    except Exception as error:  # a client's program may raise anything
        return Failure(error)


class Shuffled(PassingEngine):
    """Gives the clients to another engine in another order."""

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        order = random.Random(1).sample(range(len(jobs)), len(jobs))
        outputs = super().map(program, common, [jobs[position] for position in order])
        return [outputs[order.index(position)] for position in range(len(jobs))]


class Padded(PassingEngine):
    """Puts examples of weight 0 before, between and after the examples of every client.

    The tables end with rows that belong to nobody: how many rows they have depends on the engine.
    """

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        total = len(common.y)
        padded = []
        for job in jobs:
            inputs = job.inputs._replace(
                train=_pad(job.inputs.train, total),
                val=_pad(job.inputs.val, total),
                test=_pad(job.inputs.test, total),
            )
            padded.append(job._replace(inputs=inputs))

        x = torch.cat([common.x, common.x[-2:]])
        y = torch.cat([common.y, common.y[-2:]])
        return super().map(program, common._replace(x=x, y=y), padded)


def _pad(part: ExamplePositions, total: int) -> ExamplePositions:
    """Return the examples at the indices 1, 2, 4, 5, 7, 8, ..., with padding between them.

    Padding is examples of other clients, of weight 0.
    """
    # Two examples, then one of padding.
    count = len(part.positions)
    indices = torch.arange(count) + torch.arange(count) // 2 + 1
    positions = torch.arange(count + count // 2 + 3) % total
    weight = torch.zeros(len(positions))
    positions[indices] = part.positions
    weight[indices] = part.weight
    return ExamplePositions(positions, weight)


class Guarding(PassingEngine):
    """Checks that a program does not change its inputs."""

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job.

        Raises:
            Disagreement: an input changed.
        """
        inputs = common._asdict()
        for job in jobs:
            inputs[f"client {job.client}"] = job.inputs

        before = tree.map(torch.clone, inputs)
        outputs = super().map(program, common, jobs)
        try:
            assert_same_bits(before, inputs)
        except Disagreement as error:
            raise Disagreement(f"{program_name(program)}: {error}") from None

        return outputs


class NotStacked(Exception):
    """A program does not run for several clients at once; the cause is PyTorch's error."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{program} does not run for several clients at once")
        self.program = program


class Strict(Batched):
    """Stacks clients, and does not fall back to a loop if that fails."""

    def run_block(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Run one block.

        Raises:
            NotStacked: the program does not run stacked; the cause is chained.
        """
        try:
            return run_stacked(program, common, jobs)
        except Exception as reason:  # a client's program may raise anything
            raise NotStacked(program_name(program)) from reason
