"""Engines for checks: they vary what must not affect results, or detect what must not happen."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from fedtailor.core import tree
from fedtailor.core.engine import Engine, ExampleRows, Failure, Job, Program, cut, one_thread
from fedtailor.simulation.engines.batched import Batched, run_stacked
from fedtailor.testing.runs import Disagreement, assert_same_bits, program_name


class Exposed:
    """Runs one client after the other on the very inputs, as ``Reference`` does on copies.

    So checks see what a program changes, and whether it looks at the examples of others.
    """

    name = "exposed"

    def begin_run(self) -> None:
        """Do nothing: nothing is kept from one call to the next."""

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        with one_thread():
            return [_run(program, common, job) for job in jobs]

    def close(self) -> None:
        """Do nothing: nothing is held between calls."""


def _run(program: Program, common: Any, job: Job) -> Any:
    try:
        return cut(program(job.task, common, job.inputs), job.size)
    except Exception as error:  # a client's program may raise anything
        return Failure(error)


class Shuffled:
    """Gives the clients to another engine in another order."""

    name = "shuffled"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def begin_run(self) -> None:
        """Begin a run of the other engine."""
        self.engine.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        order = list(range(len(jobs)))
        random.Random(1).shuffle(order)
        outputs = self.engine.map(program, common, [jobs[position] for position in order])
        return [outputs[order.index(position)] for position in range(len(jobs))]

    def close(self) -> None:
        """Close the other engine."""
        self.engine.close()


class Padded:
    """Puts examples of weight 0 before, between and after the examples of every client."""

    name = "padded"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def begin_run(self) -> None:
        """Begin a run of the other engine."""
        self.engine.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        total = len(common.y)
        padded = []
        for job in jobs:
            inputs = job.inputs._replace(
                train=_pad(job.inputs.train, total), test=_pad(job.inputs.test, total)
            )
            padded.append(job._replace(inputs=inputs))
        return self.engine.map(program, common, padded)

    def close(self) -> None:
        """Close the other engine."""
        self.engine.close()


def _pad(part: ExampleRows, total: int) -> ExampleRows:
    """Return the examples at the places 1, 2, 4, 5, 7, 8, ..., with padding between them.

    Padding is examples of other clients, of weight 0.
    """
    count = len(part.rows)
    places = torch.arange(count) + torch.arange(count) // 2 + 1
    rows = torch.arange(count + count // 2 + 3) % total
    weight = torch.zeros(len(rows))
    rows[places] = part.rows
    weight[places] = part.weight
    return ExampleRows(rows, weight)


class Guarding:
    """Checks that a program does not change its inputs."""

    name = "guarding"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def begin_run(self) -> None:
        """Begin a run of the other engine."""
        self.engine.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job.

        Raises:
            Disagreement: an input changed.
        """
        inputs = common._asdict()
        for job in jobs:
            inputs[f"client {job.client}"] = job.inputs

        before = tree.map(torch.clone, inputs)
        outputs = self.engine.map(program, common, jobs)
        try:
            assert_same_bits(before, inputs)
        except Disagreement as error:
            raise Disagreement(f"{program_name(program)}: {error}") from None

        return outputs

    def close(self) -> None:
        """Close the other engine."""
        self.engine.close()


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
