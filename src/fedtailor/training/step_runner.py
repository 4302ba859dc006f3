"""Step runners: how the steps of a training phase are carried out.

A runner lends every phase the tensors that its steps read and write, and may run a step in another
way that gives the same bits. The engine that runs a client's program chooses the runner; by default
every step runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtailor.core.rng import Key
from fedtailor.core.torch_private import memory_of
from fedtailor.training.phase import Phase

StepFunction = Callable[[Any, Key], list[Tensor]]
"""``function(batch or tuple of batches, key)``: the tensors that a step gives; it reads the buffers
of its phase."""


class StepBuffers:
    """The tensors of a phase: a copy of its parameters, trained in place, and its context."""

    def __init__(self, params: Sequence[Tensor], context: Sequence[Tensor]) -> None:
        self.params = [_copy_to_train(leaf) for leaf in params]
        self.context = [_with_standard_layout(leaf) for leaf in context]
        self._param_memory = {memory_of(leaf) for leaf in self.params}

    def prepare(self, function: StepFunction) -> StepFunction:
        """Return what to call in every step; the tensors of a call are valid until the next one."""
        return function

    def separate(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return values detached, and copied where they share memory with the parameters."""
        return separate_from(self._param_memory, values)

    def result(self) -> list[Tensor]:
        """Return the trained parameters; no later phase writes to them."""
        return self.params


def _copy_to_train(leaf: Tensor) -> Tensor:
    """Return a copy of a parameter: channels last for convolutions, which are fastest so."""
    layout = torch.channels_last if leaf.dim() == 4 else torch.contiguous_format
    return leaf.detach().clone(memory_format=layout)


def _with_standard_layout(leaf: Tensor) -> Tensor:
    """Return a tensor that lies in memory as a copy would: bits of sums depend on the layout."""
    dense = leaf.is_contiguous()
    if leaf.dim() == 4:
        dense = dense or leaf.is_contiguous(memory_format=torch.channels_last)

    aligned = leaf.data_ptr() % 64 == 0
    return leaf if dense and aligned else leaf.detach().clone()


def separate_from(memory: Container[int], values: Sequence[Tensor]) -> list[Tensor]:
    """Return values detached, and copied where they lie in ``memory``; see :func:`memory_of`."""
    results = []
    for value in values:
        value = value.detach()
        results.append(value.clone() if memory_of(value) in memory else value)
    return results


def write(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors, with which they share no memory."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


class StepRunner(Protocol):
    """Runs the steps of phases."""

    def lend(
        self, phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]
    ) -> AbstractContextManager[StepBuffers]:
        """Lend a phase its buffers, which hold these parameters and this context."""


class PlainRunner:
    """Runs every step as it is written."""

    @contextmanager
    def lend(
        self, phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]
    ) -> Iterator[StepBuffers]:
        """Lend a phase its buffers, which hold these parameters and this context."""
        yield StepBuffers(params, context)


PLAIN = PlainRunner()
_current: ContextVar[StepRunner] = ContextVar("step runner", default=PLAIN)


def current_runner() -> StepRunner:
    """Return the runner of the program that this thread runs."""
    return _current.get()


@contextmanager
def steps_run_by(runner: StepRunner) -> Iterator[None]:
    """Run the steps of all phases inside by a runner, in this thread."""
    token = _current.set(runner)
    try:
        yield
    finally:
        _current.reset(token)
