"""Where the steps of a phase find their tensors: in one place, so that a step taken often is recorded and replayed.

Small steps (a perceptron, a head on cached features) spend most of their time between operations. Every thread keeps
the memory of its latest phases. A phase with the same loss, settings and shapes takes it over, and with it the
recordings, one for each size of a batch. A recording is used once it has given the same as the step itself, bit for
bit, on batches that it was not made from; a step that cannot be recorded runs as it is. So replays change no result, as
long as losses and steps are what they must be anyway: functions of their arguments alone, the same for a whole run.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.rng import Key, join_key
from fedtailor.core.task import Batch
from fedtailor.training.phase import Phase
from fedtailor.training.step_graph.recording import MOST_BYTES, CannotRecord, StepGraph, memory_of, record

_OFTEN = 16
"""Steps of one shape before it is recorded, which costs as much as several steps."""
_TRIALS = 3
"""Batches on which a recording must be right before it is used."""
_MOST_SHAPES = 4
_MOST_KEPT = 64 * 2**20
"""Bytes that the memories of a thread hold."""

Function = Callable[[Any, Key], list[Tensor]]
"""``function(batch or tuple of batches, key)``: reads parameters and context from the memory."""


class StepBuffers:
    """Copies of the parameters of a phase, channels last for convolutions, and its context."""

    def __init__(self, phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor], *, kept: bool) -> None:
        formats = (torch.channels_last if leaf.dim() == 4 else torch.contiguous_format for leaf in params)
        self.params = [leaf.detach().clone(memory_format=form) for leaf, form in zip(params, formats, strict=True)]
        self.context = [leaf.detach().clone() if kept or not _plain(leaf) else leaf for leaf in context]
        self.kept = kept
        """Whether a later phase may take it over."""
        self.again = False
        """Whether one has: what is trained once is not worth a recording."""
        self.shapes: dict[Hashable, ShapeCache] = {}
        self._places = {memory_of(leaf) for leaf in self.params}

    @property
    def nbytes(self) -> int:
        """Return how much it holds."""
        own = sum(leaf.nbytes for leaf in (*self.params, *self.context))
        return own + sum(shape.recording.nbytes for shape in self.shapes.values() if shape.recording is not None)

    def load(self, params: Sequence[Tensor], context: Sequence[Tensor]) -> None:
        """Take in the values of a phase of the same shapes."""
        self.again = True
        self.store([*self.params, *self.context], [*params, *context])

    def store(self, places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Write values, none of which lies in one of the places."""
        for place, value in zip(places, values, strict=True):
            place.copy_(value)

    def apart(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return values copied where they lie in the memory of parameters, which are about to change."""
        own = [memory_of(value) in self._places for value in values]
        return [value.detach().clone() if inside else value.detach() for value, inside in zip(values, own, strict=True)]

    def result(self) -> list[Tensor]:
        """Return the parameters, where no later phase writes to them."""
        return [leaf.clone() for leaf in self.params] if self.kept else self.params

    def run(self, function: Function, batch: Any, key: Key) -> list[Tensor]:
        """Return ``function(batch, key)``; the next call may overwrite it."""
        if not self.kept:
            return function(batch, key)
        form = _form(batch) if isinstance(batch, Batch) else tuple(map(_form, batch))
        if form not in self.shapes:
            if not self.again or len(self.shapes) == _MOST_SHAPES:
                return function(batch, key)
            self.shapes[form] = ShapeCache([*self.params, *self.context])
        return self.shapes[form].run(function, batch, key)


class ShapeCache:
    """The steps of one memory whose batches have one shape."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        self.refused = ""
        """Why there is no recording, if there will be none."""
        self.recording: StepGraph | None = None
        self._held, self._seen, self._right = held, 0, 0
        self._own: list[tuple[int, Tensor]] = []

    @property
    def trusted(self) -> bool:
        """Whether the recording is used: it was right, also on batches that it was not made from."""
        return self.recording is not None and self._right > _TRIALS

    def run(self, function: Function, batch: Any, key: Key) -> list[Tensor]:
        """Return ``function(batch, key)``, from the recording once it is trusted."""
        if self.trusted:
            return self._replay(batch, key)
        self._seen += 1
        expected = function(batch, key)
        if self.refused or self._seen <= _OFTEN:
            return expected
        try:
            found = self._replay(batch, key) if self.recording is not None else self._record(function, batch, key)
            if not all(map(_same_bits, expected, found)):
                raise CannotRecord("a replay gives something else")
        except Exception as reason:  # whatever it is: the step itself has run
            self.recording, self.refused = None, str(reason) or type(reason).__name__
        else:
            self._right += 1
        return expected

    def _replay(self, batch: Any, key: Key) -> list[Tensor]:
        assert self.recording is not None
        given = [*_columns(batch), *key[:4]]
        for number, own in self._own:
            own.copy_(given[number])
        self.recording.replay()
        return self.recording.outputs

    def _record(self, function: Function, batch: Any, key: Key) -> list[Tensor]:
        batch = tree.map(torch.clone, batch)
        own = join_key([field.clone() for field in key[:4]], key.purpose)
        inputs = [*_columns(batch), *own[:4]]
        self.recording = recording = record(partial(function, batch, own), [*self._held, *inputs])
        self._own = [(number, leaf) for number, leaf in enumerate(inputs) if recording.reads(leaf)]
        return recording.outputs


class _Run:
    """Counts runs: what was recorded in one is not used in another."""

    number = 0


class _Kept(threading.local):
    """The memories of this thread, the latest last."""

    def __init__(self) -> None:
        self.memories: dict[Hashable, StepBuffers] = {}
        self.run = _Run.number
        self.plain = False
        """Whether steps are neither recorded nor replayed."""


_kept = _Kept()


def begin_run() -> None:
    """Let every thread forget what it has recorded: what a loss uses besides its arguments may have been changed."""
    _Run.number += 1


@contextmanager
def plain_steps() -> Iterator[None]:
    """Take every step as it is in this thread."""
    before, _kept.plain = _kept.plain, True
    try:
        yield
    finally:
        _kept.plain = before


@contextmanager
def memory_for(phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]) -> Iterator[StepBuffers]:
    """Lend the memory of an earlier phase of this thread that differed in values only, or a new one."""
    if _kept.run != _Run.number:
        _kept.memories, _kept.run = {}, _Run.number
    name = _name(phase, params, context)
    memory = _kept.memories.pop(name, None) if name is not None else None  # nobody else gets it meanwhile
    if memory is None:
        memory = StepBuffers(phase, params, context, kept=name is not None)
    else:
        memory.load(params, context)
    try:
        yield memory
    finally:
        if name is not None:
            _kept.memories[name] = memory
            while len(_kept.memories) > 1 and sum(kept.nbytes for kept in _kept.memories.values()) > _MOST_KEPT:
                del _kept.memories[next(iter(_kept.memories))]


def _name(phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]) -> Hashable | None:
    """Return what phases have in common that may share recordings; None: this one is too large, or not comparable."""
    if _kept.plain or torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    if sum(leaf.nbytes for leaf in (*params, *context)) > MOST_BYTES:
        return None
    function, task = _fixed(phase.loss or phase.step), phase.task
    if function is None or type(task.model).__hash__ is None:
        return None
    structure = tuple(tree.paths(phase.params)), tuple(tree.paths(phase.context))
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in params)
    layouts = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in context)
    settings = phase.training, phase.purpose, torch.get_default_dtype()
    return function, task.model, task.num_classes, task.input_shape, settings, structure, shapes, layouts


def _fixed(value: Any) -> Hashable | None:
    """Return a stand-in for what a step uses besides tensors; None if it may change while it stays the same object."""
    if isinstance(value, partial):
        named = sorted(value.keywords.items())
        return _all_fixed(tuple(name for name, _ in named), (value.func, *value.args, *(part for _, part in named)))
    if isinstance(value, FunctionType):
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return _all_fixed(value, defaults) if value.__closure__ is None else None
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    if isinstance(value, tuple):
        return _all_fixed(type(value), value)
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    if not frozen or isinstance(value, type):
        return None
    kind: Any = type(value)
    return _all_fixed(kind, [getattr(value, field.name) for field in dataclasses.fields(value)])


def _all_fixed(name: Hashable, parts: Sequence[Any]) -> Hashable | None:
    fixed = tuple(map(_fixed, parts))
    return None if None in fixed else (name, fixed)


def _plain(leaf: Tensor) -> bool:
    """Return whether a copy would lie in memory as the tensor does: the same bits come of both."""
    dense = leaf.is_contiguous() or (leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last))
    return dense and leaf.data_ptr() % 64 == 0


def _same_bits(first: Tensor, second: Tensor) -> bool:
    if first.dtype != second.dtype or not first.is_floating_point():
        return torch.equal(first, second)
    whole = _WHOLE[first.element_size()]
    return torch.equal(first.view(whole), second.view(whole))  # 0 is not -0, and what is no number is one here


_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _form(batch: Batch) -> Hashable:
    """Return what batches have in common that one recording does for."""
    return batch.x.shape, batch.x.stride(), batch.x.dtype, batch.y.shape, batch.y.dtype, batch.weight.dtype


def _columns(batch: Any) -> Sequence[Tensor]:
    return batch if isinstance(batch, Batch) else [column for one in batch for column in one]
