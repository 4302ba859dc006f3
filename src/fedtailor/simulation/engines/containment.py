"""Containment: a client's program ends no other program, and changes nothing that another one uses.

A program may fail in any way: then it is its client's failure. It works on copies of its inputs,
what it returns is copied and checked. Restored are PyTorch's default type, determinism,
precision of float32, number of threads and gradient mode, and the random generators.

This is about faults, not about attacks. What else a program does to its process cannot be seen:
Python objects that it shares with others, files, handlers of signals, modes of PyTorch, or threads
that it leaves. The border against hostile code is another process: the engine ``processes``, or a
real site.
"""

from __future__ import annotations

import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.core import tree
from fedtailor.core.devices import current
from fedtailor.core.engine import Failure, Job, Program, cut
from fedtailor.core.errors import RunError
from fedtailor.core.torch_private import (
    count_writes,
    float32_precisions,
    set_float32_precisions,
)
from fedtailor.simulation.programs import ClientInputs, SharedInputs, Tables
from fedtailor.training.batches import take
from fedtailor.training.one_client import PLAIN, StepRunner, steps_run_by

LARGEST_COPY = 2**29
"""Bytes of examples that are copied. Programs with more see the data themselves."""
_DEEPEST = 32
"""Levels of nested values."""
_LONGEST_NAME = 500
"""Characters of a name in a mapping."""
LARGEST_EXPANDED = 2**28
"""Bytes of a tensor that repeats its values without storing them."""

_TYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
)
"""The types of tensors that can be stored and sent."""
CLASSES: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)
"""The classes of tensors that can be stored and sent."""
_HARMLESS = frozenset({bool, int, float, str, type(None), torch.dtype})
"""Types of values that are not tensors, and stay as they are: where a tensor is expected, they are
refused by name."""


class SpoiledData(RunError):
    """A program changed the data of all clients, of which there is no copy.

    The run cannot continue.
    """


def make_private(common: Any, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return copies of what some clients' programs receive: the common part, and one part each."""
    # Programs of other kinds, as in tests, have no tables.
    copies = [tree.copy(part) for part in inputs]
    if not isinstance(common, SharedInputs) or not all(
        isinstance(part, ClientInputs) for part in copies
    ):
        return common, copies

    # All but the data themselves, from which test examples are read.
    shared = SharedInputs(common.x, common.y, *(tree.copy(part) for part in common[2:]))
    parts = [part.positions for client in copies for part in (client.train, client.val)]
    positions = torch.cat(parts)
    if len(positions) * common.x[:1].nbytes > LARGEST_COPY:
        # New tensors of the same memory: they count the writes through them, and no others.
        return shared._replace(visible=Tables(common.x.data, common.y.data)), copies

    if len(positions) == 0:
        return shared._replace(visible=Tables(common.x[:0].clone(), common.y[:0].clone())), copies

    # The copy holds client after client, training before validation examples.
    visible = Tables(take(common.x, positions), common.y[positions])
    in_copy = iter(torch.split(torch.arange(len(positions)), [len(part) for part in parts]))
    private = []
    for client in copies:
        train = client.train._replace(positions=next(in_copy))
        val = client.val._replace(positions=next(in_copy))
        private.append(client._replace(train=train, val=val))

    return shared._replace(visible=visible), private


def refuse_spoiled(common: Any) -> None:
    """Check that programs without a private table left the data of all clients as they were.

    Raises:
        SpoiledData: they did not.
    """
    if not isinstance(common, SharedInputs) or not common.visible:
        return

    x, y = common.visible
    if x.data_ptr() == common.x.data_ptr() and count_writes(x) + count_writes(y) > 0:
        raise SpoiledData(
            "a client's program changed its examples in place. They take more than "
            f"{LARGEST_COPY // 2**20} MiB, so it worked on the data of all clients, which are now "
            'changed. engine.name = "processes" protects them.',
            key="engine.name",
        )


def plain(value: Any, where: str = "", depth: int = 0) -> Any:
    """Return a copy of nested mappings and tuples with tensors in memory of their own.

    Raises:
        TypeError: it holds something else, or a tensor that cannot be stored; the message names the
            place.
    """
    if depth > _DEEPEST:
        raise TypeError(f"the output is nested more than {_DEEPEST} levels deep")
    if isinstance(value, Tensor):
        return _plain_tensor(value, where)

    if isinstance(value, Mapping):
        result = {}
        for name, child in value.items():
            _check_name(name, where)
            result[name] = plain(child, _join(where, name), depth + 1)
        return result

    # NamedTuples keep their class: aggregation asks for fields by name.
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", range(len(value)))
        children = []
        for name, child in zip(names, value, strict=True):
            children.append(plain(child, _join(where, name), depth + 1))
        return type(value)(*children) if hasattr(type(value), "_fields") else tuple(children)

    if type(value) in _HARMLESS:
        return value

    kind = type(value).__name__
    raise TypeError(f"the output holds a value of type {kind}{_at(where)}, which is not a tensor")


def _check_name(name: Any, where: str) -> None:
    if type(name) is int:
        return
    if type(name) is not str:
        kind = type(name).__name__
        raise TypeError(f"the output has a name of type {kind}{_at(where)}, which is not text")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise TypeError(
            f"the output has a name{_at(where)} that is longer than {_LONGEST_NAME} characters or "
            "cannot be printed"
        )


def _plain_tensor(tensor: Tensor, where: str) -> Tensor:
    """Return a copy of a tensor with the same layout in memory, unless its values overlap."""
    # A subclass may do anything when it is used; the rest could not be written to a file.
    problem = ""
    if type(tensor) not in CLASSES:
        problem = f"is of the class {type(tensor).__name__}"
    elif tensor.layout != torch.strided or tensor.is_nested:
        problem = "is nested" if tensor.is_nested else f"has the layout {tensor.layout}"
    elif tensor.device != current():
        problem = f"is on the device {tensor.device}"
    elif tensor.dtype not in _TYPES:
        problem = f"is of type {tensor.dtype}"
    elif tensor.nbytes > LARGEST_EXPANDED and tensor.nbytes > tensor.untyped_storage().nbytes():
        problem = f"repeats its values up to {tensor.nbytes} bytes"

    if problem:
        raise TypeError(
            f"the output holds a tensor{_at(where)} that {problem}; it cannot be stored or sent"
        )

    return tensor.detach().clone()


def _join(where: str, name: Any) -> str:
    return f"{where}/{name}" if where else str(name)


def _at(where: str) -> str:
    return f" at '{where}'" if where else ""


class Settings(NamedTuple):
    """The settings of PyTorch in a process, on which results depend."""

    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    matmul_precision: str
    """Empty if the precision was set by place as well: PyTorch then refuses to read it."""
    precisions: tuple[str, ...]
    mkldnn: bool

    @classmethod
    def current(cls) -> Settings:
        """Return the settings of this process."""
        return cls(
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            matmul_precision=_matmul_precision(),
            precisions=float32_precisions(),
            mkldnn=bool(torch.backends.mkldnn.enabled),
        )

    def apply(self) -> None:
        """Change the settings of this process to these."""
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        if self.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        set_float32_precisions(self.precisions)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]

    def restore(self) -> bool:
        """Make the settings of this process these; return whether they had changed."""
        if Settings.current() == self:
            return False
        self.apply()
        return True


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it does not agree with what was set by place
        return ""


def run_job(program: Program, common: Any, job: Job, runner: StepRunner = PLAIN) -> Any:
    """Run one client's program; any exception becomes a :class:`Failure`.

    Args:
        program: what the client runs.
        common: what all clients receive.
        job: of the client.
        runner: carries out its training steps.

    Raises:
        SpoiledData: it changed the data of all clients, of which there is no copy.
    """
    try:
        private_common, (inputs,) = make_private(common, [job.inputs])
        with steps_run_by(runner), thread_restored():
            output = program(job.task, private_common, inputs)

        # Copied here, where an error is still the client's.
        refuse_spoiled(private_common)
        return plain(cut(output, job.size))
    except BaseException as error:
        return failure_of(error)


def run_one_by_one(program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
    """Run clients one after the other in this thread.

    Raises:
        SpoiledData: one of them changed the data of all clients, of which there is no copy.
    """
    settings = Settings.current()
    outputs = []
    for job in jobs:
        outputs.append(run_job(program, common, job))
        settings.restore()
    return outputs


def contained(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that belongs to one client; any exception becomes a :class:`Failure`."""
    settings = Settings.current()
    try:
        with thread_restored():
            return plain(function(*arguments))
    except BaseException as error:
        return failure_of(error)
    finally:
        settings.restore()


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an exception is.

    The variables of its calls, which take memory, are forgotten.

    Raises:
        BaseException: the exception concerns the whole run.
    """
    refuse_to_contain(error)
    traceback.clear_frames(error.__traceback__)
    return Failure(error)


def refuse_to_contain(error: BaseException) -> None:
    """Raise an exception again that concerns the whole run: spoiled data, or an interruption.

    Python handles Ctrl-C in the main thread, unless it is ignored, as in the processes of engines.
    What is raised elsewhere is the program's own.
    """
    if isinstance(error, SpoiledData):
        raise error

    if isinstance(error, KeyboardInterrupt):
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise error


@contextmanager
def thread_restored() -> Iterator[None]:
    """Restore the number of threads and the gradient mode, which every thread has of its own."""
    threads = torch.get_num_threads()
    gradients = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def process_restored() -> Iterator[Settings]:
    """Restore the settings and random generators of the process; gives the settings."""
    settings = Settings.current()
    of_torch = torch.get_rng_state()
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    try:
        yield settings
    finally:
        settings.restore()
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
