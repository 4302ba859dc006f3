"""The batched engine: one program for a stack of clients, by ``torch.func.vmap``.

Clients are sorted by size and cut into blocks; within a block example lists are padded with examples of weight
0. The building blocks see the stacked tensors and drop clients that have finished.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.engine import ExampleIndices, Failure, Job, Program, one_thread
from fedtailor.core.per_example import cut
from fedtailor.simulation.engines.reference import run_job


class Batched:
    """Runs up to ``block`` clients as one stack."""

    name = "batched"

    def __init__(self, block: int = 32) -> None:
        self.block = block

    def begin_run(self) -> None:
        """Do nothing: nothing is kept from one call to the next."""

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        outputs: list[Any] = [None] * len(jobs)
        with one_thread():
            for positions in self._blocks(jobs):
                chosen = [jobs[position] for position in positions]
                for position, output in zip(positions, self.run_block(program, common, chosen), strict=True):
                    outputs[position] = output
        return outputs

    def close(self) -> None:
        """Do nothing: nothing is held between calls."""

    def run_block(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Run one block; if it fails, run its clients one by one, so that only the faulty one fails.

        If then none fails, the program cannot be stacked: that is slow, not wrong, so it is a warning.
        """
        try:
            return run_stacked(program, common, jobs)
        except Exception as reason:  # whatever a client's program raises
            outputs = [run_job(program, common, job) for job in jobs]
            if not any(isinstance(output, Failure) for output in outputs):
                warnings.warn(self._why_one_by_one(reason, len(jobs)), RuntimeWarning, stacklevel=2)
            return outputs

    def _why_one_by_one(self, reason: Exception, clients: int) -> str:
        if isinstance(reason, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(reason):
            need = f"engine 'batched' runs clients one by one: {clients} need more memory than there is"
            return f"{need}, set engine.block = {clients // 2} (it is {self.block})." if clients > 1 else f"{need}."
        return f"engine 'batched' runs clients one by one, because they cannot be stacked: {reason}"

    def _blocks(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Return positions of clients with one task and similar size."""
        by_task: dict[int, list[int]] = {}
        for position, job in enumerate(jobs):
            by_task.setdefault(id(job.task.model), []).append(position)
        blocks = []
        for positions in by_task.values():
            positions.sort(key=lambda position: (-jobs[position].size, position))
            blocks += [positions[start : start + self.block] for start in range(0, len(positions), self.block)]
        return blocks


def run_stacked(program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
    """Run clients of one task as one stack; whatever PyTorch or the program raises is raised."""
    stacked = _stack([job.row for job in jobs])
    output = torch.func.vmap(partial(program, jobs[0].task), in_dims=(None, 0))(common, stacked)
    rows = tree.unstack(output, len(jobs))
    return [tree.map(torch.clone, cut(row, job.size)) for row, job in zip(rows, jobs, strict=True)]


def _stack(rows: Sequence[Any]) -> Any:
    """Stack trees; example lists are padded at the end with position 0 and weight 0."""
    first = rows[0]
    if isinstance(first, ExampleIndices):
        return ExampleIndices(*(_pad(column) for column in zip(*rows, strict=True)))
    if isinstance(first, Tensor):
        return torch.stack(list(rows))
    if isinstance(first, dict):
        return {name: _stack([row[name] for row in rows]) for name in first}
    children = [_stack(column) for column in zip(*rows, strict=True)]
    return type(first)(*children) if hasattr(first, "_fields") else tuple(children)


def _pad(column: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True)
