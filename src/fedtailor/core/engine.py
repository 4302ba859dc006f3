"""The interface of engines, which run one client's program for many clients."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import Task

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use of the processors, in Linux."""

Program = Callable[[Task, Any, Any], Any]
"""``program(task, common, inputs) -> output``: a pure function; common and inputs are trees of
tensors."""


class ExamplePositions(NamedTuple):
    """Positions of a client's examples in the data set, and their weights.

    An engine may pad both (weight 0). Where it gives the program a copy of some examples in place
    of the data set, the positions are those in the copy.
    """

    positions: Tensor  # (n,)
    weight: Tensor  # (n,)

    @classmethod
    def of(cls, positions: Tensor) -> ExamplePositions:
        """Return the examples at the given positions (n,), each with weight 1."""
        return cls(positions, torch.ones(len(positions), device=positions.device))


class Job(NamedTuple):
    """One client's share of the work."""

    client: int
    task: Task
    inputs: Any
    """What the program receives of this client: a tree of tensors."""
    size: int
    """Number of training examples: an estimate of the duration, and how many rows per example are
    kept."""


class ProgramError(Exception):
    """Says why there is no output where no exception of the program itself can be shown."""


class NoAnswer(ProgramError):
    """A client gave no answer.

    Whether that happens may depend on time or memory, so it is not repeatable.
    """


class Failure(NamedTuple):
    """What an engine returns if a client's program raised, or gave no answer."""

    reason: BaseException


Gather = Callable[[Sequence[Job], Iterable[Any]], list[Any]]
"""``gather(jobs, outputs) -> outputs``: what is sent on of the outputs of jobs that run in one
place."""

Merge = Callable[[Job, Any], Any]
"""``merge(job, output) -> output``: what is kept of an output that was gathered, when it has
come."""


class Engine(Protocol):
    """Runs a program for many clients. The outputs do not depend on the engine.

    An engine that keeps nothing between calls of :meth:`map` inherits the other methods.
    """

    smallest_group: int = 32
    """The clients whose outputs are in memory at once, however large these are: fewer would leave a
    part of the engine idle."""

    @property
    def name(self) -> str:
        """The name in the table of engines."""

    def begin_run(self) -> None:
        """Forget what serves one run only.

        What programs use besides their inputs may have changed since the last.
        """
        return

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job, in the order of ``jobs``.

        :class:`Failure` where there is none.

        Whatever a program raises, returns or changes, the other programs run and their outputs are
        the same, as far as one process can ensure that; an interruption of the run (Ctrl-C) is
        raised.

        ``common`` is the same for all clients, ``job.inputs`` differs.
        """

    def close(self) -> None:
        """Release what is held between calls of :meth:`map`; a later call acquires it again."""
        return


@runtime_checkable
class GatheringEngine(Engine, Protocol):
    """Runs programs in several places, and can reduce their outputs before they leave a place."""

    def map_gathered(
        self, program: Program, common: Any, jobs: Sequence[Job], gather: Gather, merge: Merge
    ) -> list[Any]:
        """Return as :meth:`map` does what ``gather``, and then ``merge``, make of the outputs.

        ``gather`` is called for a client, or for several with neighboring ids in the order of their
        ids. Which of them run in one place is not known beforehand. If the output of one cannot be
        sent or read, all of them run again, each alone. ``merge`` is called once for every job, in
        this process, in any order.
        """


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for arithmetic: results then do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries_of_numpy().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


_libraries_of_numpy = cache(ThreadpoolController)
"""What sets the number of threads of products of NumPy's matrices; it takes time to find."""


class PerExample(NamedTuple):
    """Marks a part of a personal model.

    The first axis of every leaf is the client's training examples, in order.

    Rows of examples of weight 0 must not influence predictions; they are not kept.
    """

    value: tree.Tree


def present_first(value: Any, weight: Tensor) -> Any:
    """Move marked rows whose example has a positive weight (n,) to the front.

    Both kinds keep their order.
    """

    def reorder(leaf: Tensor) -> Tensor:
        return leaf[torch.argsort((weight <= 0).long(), stable=True)]

    return _map_marked(reorder, value)


def cut(value: Any, count: int) -> Any:
    """Keep the first ``count`` marked rows."""
    return _map_marked(lambda leaf: leaf[:count], value)


def holds_examples(value: Any) -> bool:
    """Return whether any part is marked."""
    if isinstance(value, PerExample):
        return True
    if isinstance(value, Mapping):
        return any(holds_examples(child) for child in value.values())
    return isinstance(value, tuple) and any(holds_examples(child) for child in value)


def _map_marked(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to the marked leaves.

    All other parts of a program's output stay as they are.
    """
    if isinstance(value, PerExample):
        return tree.map(function, value)
    if isinstance(value, Mapping):
        return {name: _map_marked(function, child) for name, child in value.items()}
    if isinstance(value, tuple):
        children = [_map_marked(function, child) for child in value]
        return tree.tuple_like(value, children)
    return value


def physical_cores() -> int:
    """Return the number of physical cores among the CPUs that this process may use.

    In a container with a limit of processor time, no more than the limit allows.
    """
    usable: Iterable[int] = range(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        usable = os.sched_getaffinity(0)

    # Two CPUs of one core have the same siblings.
    cores = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))

    return max(min(len(cores), _cpus_of_container(_QUOTA)), 1)


def _cpus_of_container(quota: Path) -> int:
    """Return how many CPUs the limit of a container allows, rounded up; many without a limit.

    Args:
        quota: the file of the kernel with the microseconds of processor time in a period.
    """
    try:
        time, period = quota.read_text().split()
        return math.ceil(int(time) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # "max" means all
        return sys.maxsize
