"""Where the steps of a phase find their tensors: in one place, so that a step taken often is recorded and replayed.

Small steps (a perceptron, a head on cached features) spend most of their time between operations. Every thread keeps
the memory of its latest phases. A phase with the same loss, settings and shapes takes it over, and with it the
recordings, one for each size of a batch. A recording is used once it has given the same as the step itself, bit for
bit, on batches that it was not made from; a step that cannot be recorded runs as it is. So replays change no result.
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
from fedtailor.core.phase import Phase
from fedtailor.core.recording import MOST_BYTES, Recording, record
from fedtailor.core.rng import Key, join_key
from fedtailor.core.task import Batch

_OFTEN = 16
"""Steps of one shape before it is recorded, which costs as much as several steps."""
_TRIALS = 3
"""Batches on which a recording must be right before it is used."""
_MOST_PHASES, _MOST_SHAPES = 8, 4

Function = Callable[[Any, Key], list[Tensor]]
"""``function(batch or tuple of batches, key)``: reads parameters and context from the memory."""


class Memory:
    """Copies of the parameters of a phase, channels last for convolutions, and its context."""

    def __init__(self, phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor], *, kept: bool) -> None:
        formats = (torch.channels_last if leaf.dim() == 4 else torch.contiguous_format for leaf in params)
        self.params = [leaf.detach().clone(memory_format=form) for leaf, form in zip(params, formats, strict=True)]
        self.context = [leaf.detach().clone() for leaf in context] if kept else list(context)
        self.kept = kept
        """Whether a later phase may take it over."""
        self.shapes: dict[Hashable, Shape] = {}
        self._places = {leaf.untyped_storage()._cdata for leaf in self.params}
        self._model = phase.task.model  # held, so that nothing else gets its id, by which the memory is found

    def load(self, params: Sequence[Tensor], context: Sequence[Tensor]) -> None:
        """Take in the values of a phase of the same shapes."""
        self.store([*self.params, *self.context], [*params, *context])

    def store(self, places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Write values, none of which lies in one of the places."""
        for place, value in zip(places, values, strict=True):
            place.copy_(value)

    def apart(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return values copied where they lie in the memory of parameters, which are about to change."""
        own = (value.untyped_storage()._cdata in self._places for value in values)
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
            if len(self.shapes) == _MOST_SHAPES:
                return function(batch, key)
            self.shapes[form] = Shape([*self.params, *self.context])
        return self.shapes[form].run(function, batch, key)


class Shape:
    """The steps of one memory whose batches have one shape."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        self.refused = ""
        """Why there is no recording, if there will be none."""
        self.recording: Recording | None = None
        self._held, self._seen, self._right = held, 0, 0
        self._own: list[tuple[int, Tensor]] = []

    @property
    def trusted(self) -> bool:
        """Whether the recording is used: it was right on batches that it was not made from."""
        return self._right == _TRIALS

    def run(self, function: Function, batch: Any, key: Key) -> list[Tensor]:
        """Return ``function(batch, key)``, from the recording once it is trusted."""
        if self.trusted:
            return self._replay(batch, key)
        self._seen += 1
        expected = function(batch, key)
        if self.refused or self._seen <= _OFTEN:
            return expected
        if self.recording is None:
            self._record(function, batch, key)
        else:
            self._right += 1
            self._replay(batch, key)
        if self.recording is not None and not all(map(torch.equal, expected, self.recording.outputs)):
            self._right, self.recording, self.refused = 0, None, "a replay gives something else"
        return expected

    def _replay(self, batch: Any, key: Key) -> list[Tensor]:
        assert self.recording is not None
        given = [*_columns(batch), *key[:4]]
        for number, own in self._own:
            own.copy_(given[number])
        self.recording.replay()
        return self.recording.outputs

    def _record(self, function: Function, batch: Any, key: Key) -> None:
        batch = tree.map(torch.clone, batch)
        own = join_key([field.clone() for field in key[:4]], key.purpose)
        inputs = [*_columns(batch), *own[:4]]
        try:
            self.recording = record(partial(function, batch, own), [*self._held, *inputs])
        except Exception as reason:  # whatever it is: the step itself has run
            self.refused = str(reason) or type(reason).__name__
        else:
            self._own = [(number, leaf) for number, leaf in enumerate(inputs) if self.recording.reads(leaf)]


class _Kept(threading.local):
    """The memories of this thread, the latest last."""

    def __init__(self) -> None:
        self.memories: dict[Hashable, Memory] = {}


_kept = _Kept()


@contextmanager
def memory_for(phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]) -> Iterator[Memory]:
    """Lend the memory of an earlier phase of this thread that differed in values only, or a new one."""
    name = _name(phase, params, context)
    memory = _kept.memories.pop(name, None) if name is not None else None  # nobody else gets it meanwhile
    if memory is None:
        memory = Memory(phase, params, context, kept=name is not None)
    else:
        memory.load(params, context)
    try:
        yield memory
    finally:
        if name is not None:
            _kept.memories[name] = memory
            for oldest in list(_kept.memories)[:-_MOST_PHASES]:
                del _kept.memories[oldest]


def _name(phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]) -> Hashable | None:
    """Return what phases have in common that may share recordings; None: this one is too large, or not comparable."""
    if sum(leaf.nbytes for leaf in (*params, *context)) > MOST_BYTES:
        return None
    function = _fixed(phase.loss or phase.step)
    if function is None:
        return None
    task = phase.task
    structure = tuple(tree.paths(phase.params)), tuple(tree.paths(phase.context))
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in params)
    layouts = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in context)
    settings = phase.training, phase.purpose, torch.get_default_dtype()
    return function, id(task.model), task.num_classes, task.input_shape, settings, structure, shapes, layouts


def _fixed(value: Any) -> Hashable | None:
    """Return a stand-in for what a step uses besides tensors; None if it may change while it stays the same object."""
    if isinstance(value, partial):
        named = sorted(value.keywords.items())
        parts = [_fixed(part) for part in (value.func, *value.args, *(part for _, part in named))]
        return None if None in parts else (tuple(parts), tuple(name for name, _ in named))
    if isinstance(value, FunctionType):
        return value if value.__closure__ is None else None
    if isinstance(value, bool | int | float | str):
        return type(value), value
    frozen = dataclasses.is_dataclass(value) and type(value).__dataclass_params__.frozen  # type: ignore[union-attr]
    try:
        return (type(value), hash(value), value) if frozen else None
    except TypeError:  # it holds something that can change
        return None


def _form(batch: Batch) -> Hashable:
    """Return what batches have in common that one recording does for; labels and weights are as many as images."""
    return batch.x.shape, batch.x.stride(), batch.x.dtype


def _columns(batch: Any) -> Sequence[Tensor]:
    return batch if isinstance(batch, Batch) else [column for one in batch for column in one]
