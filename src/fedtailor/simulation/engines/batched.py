"""The engine ``batched``: one program for a stack of clients, by ``torch.func.vmap``.

Clients are sorted by size and divided into blocks. Within a block, lists of examples are padded
with examples of weight 0. The building blocks of training see the stacked tensors and drop clients
that have finished.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtailor.core import tree
from fedtailor.core.engine import Engine, ExamplePositions, Failure, Job, Program, cut, one_thread
from fedtailor.core.errors import describe_error
from fedtailor.simulation.engines.containment import (
    make_private,
    plain,
    process_restored,
    refuse_spoiled,
    refuse_to_contain,
    run_one_by_one,
    thread_restored,
)


class Batched(Engine):
    """Runs stacks of up to ``block`` clients."""

    name = "batched"

    def __init__(self, block: int = 32) -> None:
        self.block = block

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        outputs: list[Any] = [None] * len(jobs)
        with one_thread():
            for positions in self._blocks(jobs):
                block_outputs = self.run_block(
                    program, common, [jobs[position] for position in positions]
                )
                for position, output in zip(positions, block_outputs, strict=True):
                    outputs[position] = output

        return outputs

    def run_block(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Run one block; if it fails, run its clients one by one, so that only faulty clients fail.

        If no client fails then, the program cannot be stacked. That is slow but not wrong, so it is
        a warning.
        """
        with process_restored() as settings:
            try:
                return self._run_contained(program, common, jobs)
            except BaseException as error:  # a client's program may raise anything
                refuse_to_contain(error)

                # The block may have changed settings before it failed.
                settings.restore()
                outputs = run_one_by_one(program, common, jobs)
                if not any(isinstance(output, Failure) for output in outputs):
                    reason = self._why_one_by_one(error, len(jobs))
                    warnings.warn(reason, RuntimeWarning, stacklevel=2)

                return outputs

    def _run_contained(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Run one block on private inputs; what is wrong with any client's output is raised."""
        private_common, inputs = make_private(common, [job.inputs for job in jobs])
        # The positions are those in one private copy for the whole block.
        private_jobs = []
        for job, private in zip(jobs, inputs, strict=True):
            private_jobs.append(job._replace(inputs=private))

        with thread_restored():
            outputs = run_stacked(program, private_common, private_jobs)

        refuse_spoiled(private_common)
        return [plain(output) for output in outputs]

    def _why_one_by_one(self, error: BaseException, clients: int) -> str:
        what = "engine 'batched' runs clients one by one, because"
        # On the CPU, PyTorch raises a RuntimeError with this text.
        out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        reason = describe_error(error)
        if not out_of_memory and "can't allocate memory" not in reason:
            return f"{what} they cannot be stacked: {reason}"

        warning = f"{what} there is not enough memory to stack {clients}."
        if clients > 1:
            warning += f" Set engine.block = {clients // 2} (it is {self.block})."
        return warning

    def _blocks(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Return blocks of positions: clients with the same model and of similar size."""
        # Of similar size: what is padded is computed for nothing.
        by_model: dict[int, list[int]] = {}
        for position, job in enumerate(jobs):
            by_model.setdefault(id(job.task.model), []).append(position)

        blocks = []
        for positions in by_model.values():
            positions.sort(key=lambda position: (-jobs[position].size, position))
            for start in range(0, len(positions), self.block):
                blocks.append(positions[start : start + self.block])

        return blocks


def run_stacked(program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
    """Run clients with the same model as one stack.

    Errors of PyTorch or the program are raised unchanged.
    """
    stacked = _stack([job.inputs for job in jobs])
    output = torch.func.vmap(partial(program, jobs[0].task), in_dims=(None, 0))(common, stacked)
    outputs = []
    for client_output, job in zip(tree.unstack(output, len(jobs)), jobs, strict=True):
        outputs.append(cut(client_output, job.size))
    return outputs


def _stack(trees: Sequence[Any]) -> Any:
    """Stack trees; lists of examples are padded at the end with position 0 and weight 0."""
    # The structure of all is that of the first: they have the same model.
    first = trees[0]
    if isinstance(first, ExamplePositions):
        columns = map(list, zip(*trees, strict=True))
        return ExamplePositions(*(pad_sequence(column, batch_first=True) for column in columns))
    if isinstance(first, Tensor):
        return torch.stack(list(trees))
    if isinstance(first, dict):
        # A client that has taken part may keep more than one that has not.
        if any(member.keys() != first.keys() for member in trees):
            raise ValueError("the states of clients do not have the same entries")
        return {name: _stack([member[name] for member in trees]) for name in first}

    return tree.tuple_like(first, [_stack(column) for column in zip(*trees, strict=True)])
