"""The algorithm under examination, and its runs on the small federations."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Engine, Failure
from fedtailor.core.federation import Federation
from fedtailor.core.message import Problem
from fedtailor.core.task import Task, Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.quarantine import problem_with_output
from fedtailor.testing.engines import Guarding, NotStacked, Strict
from fedtailor.testing.federations import convolutional, federation, module, perceptron
from fedtailor.testing.isolation import disturb
from fedtailor.testing.runs import (
    Disagreement,
    Trace,
    TracingEngine,
    accuracy,
    assert_close,
    assert_same_bits,
    run,
    scores_of,
)
from fedtailor.testing.spy import SOURCES, Notes, Seen, spied

TRAINING = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.5, weight_decay=0.01, clip_norm=3.0)
"""Shorter last batches, momentum, decay and clipping: whatever padding and stacking could spoil."""

Check = Callable[["Case"], str | None]
"""Returns a sentence that says what is wrong, or None."""

_TASKS: dict[str, Callable[[], Task]] = {"mlp": perceptron, "cnn": convolutional, "module": lambda: module(bias=False)}


class Spied(NamedTuple):
    """What a spied run showed."""

    seen: Seen
    notes: Notes
    changed: str
    """Which input was changed, or nothing."""


class Lesson(NamedTuple):
    """What was learned, as accuracies over test examples."""

    accuracy: float
    majority: float
    """Of always guessing a client's most frequent class."""

    @property
    def learned(self) -> bool:
        """Whether it is more than a guess: by 8 of 160 examples."""
        return self.accuracy > self.majority + 0.05


def _lesson(world: Federation, record: Trace, clients: str) -> Lesson:
    ids = world.new if clients == "new" else world.known
    guesses = [world.info(client).class_counts.argmax() for client in ids]
    right = [world.test(client).labels() == guess for client, guess in zip(ids, guesses, strict=True)]
    found = scores_of(record, "personalized", clients)
    return Lesson(accuracy(found) if found else 0.0, float(torch.cat(right).double().mean()))


class Case:
    """An algorithm with its runs; what several checks need is computed once."""

    def __init__(self, algorithm: Algorithm[Any, Any, Any]) -> None:
        self.algorithm = replace(algorithm, training=TRAINING)
        self.attributes = copy.deepcopy(vars(self.algorithm))
        self._tasks: dict[str, Task] = {}
        self._bases: dict[str, Trace] = {}

    def task(self, model: str = "mlp") -> Task:
        """Return the task of a kind of model: mlp, cnn, or a module with batch normalization and dropout."""
        if model not in self._tasks:
            self._tasks[model] = _TASKS[model]()
        return self._tasks[model]

    def federation(self, model: str = "mlp") -> Federation:
        """Return the uneven federation, fresh: an algorithm may have spoiled an earlier one."""
        return federation(self.task(model))

    def run(self, engine: Engine, world: Federation | None = None, **options: Any) -> Trace:
        """Run the algorithm, global random states being always the same."""
        disturb(1)
        return run(self.algorithm, engine, world or self.federation(), **options)

    def base(self, model: str = "mlp") -> Trace:
        """Return the run to which others are compared: clients one by one."""
        if model not in self._bases:
            self._bases[model] = self.run(Reference(), self.federation(model))
        return self._bases[model]

    @cached_property
    def stacked(self) -> Trace | NotStacked:
        """The run with clients in blocks of 3, or the reason why there is none."""
        try:
            return self.run(Strict(3))
        except NotStacked as error:
            return error

    @cached_property
    def spied(self) -> Spied:
        """What methods return and change, in a run on the loop."""
        notes: Notes = defaultdict(list)
        twin, seen = spied(self.algorithm, notes)
        disturb(1)
        try:
            run(twin, Guarding(Reference()), self.federation())
        except Disagreement as error:
            return Spied(seen, notes, str(error))
        return Spied(seen, notes, "")

    def odd_type(self) -> str:
        """Return which method gives numbers that are not float64, in a run that need not end well; or nothing."""
        notes: Notes = defaultdict(list)
        twin, seen = spied(self.algorithm, notes)
        disturb(1)
        with suppress(Exception):  # the first run told it
            run(twin, Reference(), self.federation(), rounds=1)
        for kind, value in [(each, value) for each in SOURCES for value in {**notes, **seen}.get(each, ())]:
            with suppress(TypeError):  # what is no tree is told elsewhere
                for path, leaf in tree.paths(value).items():
                    if leaf.is_floating_point() and leaf.dtype != torch.float64:
                        return f"{SOURCES[kind]}: '{path or '.'}' is of type {leaf.dtype}"
        return ""

    def first_problem(self) -> Problem | None:
        """Return why the first of the clients whose work cannot be used gets nowhere, in a run that may fail."""
        recording = TracingEngine(Reference())
        disturb(1)
        with suppress(Exception):  # the first run has shown it
            run(self.algorithm, recording, self.federation(), rounds=1)
        messages = self.algorithm.messages(self.task())
        problems = (problem_with_output(output, messages) for output in recording.trace.of("train").values())
        return next((problem for problem in problems if problem is not None), None)

    @cached_property
    def lessons(self) -> list[Lesson]:
        """How well models of known and of new clients do on data that are easily told apart; slow ones get longer."""
        world = federation(self.task(), (24, 36, 30, 40), (30, 24), distance=3.0, test_size=40)
        one = replace(self.algorithm, training=replace(TRAINING, epochs=3, lr=0.1, batch_size=10))
        lessons: list[Lesson] = []
        for rounds in (6, 40):
            if not lessons or not all(lesson.learned for lesson in lessons):
                disturb(1)
                record = run(one, Reference(), world, rounds=rounds, evaluate_every=0, personalized_every=0)
                lessons = [_lesson(world, record, "known"), _lesson(world, record, "new")]
        return lessons

    @cached_property
    def unrepeatable(self) -> str:
        """Where a second run with the same seed and the same global random states differs, or nothing."""
        return same_bits(self.base(), self.run(Reference()))

    @cached_property
    def unkeyed(self) -> str:
        """Where a run with other global random states differs, or nothing."""
        disturb(2)
        return same_bits(self.base(), run(self.algorithm, Reference(), self.federation()))

    @property
    def comparable(self) -> bool:
        """Whether a difference between runs can come from what the runs differ in."""
        return not (self.spied.changed or self.unrepeatable or self.unkeyed)

    def size(self, client: int) -> int:
        """Return the number of a client's training examples."""
        return len(self.federation().splits[client].train)

    def who(self, client: int) -> str:
        """Return a client with the number of its training examples, in words."""
        return f"client {client} (training examples: {self.size(client)})"


def same_bits(first: Trace, second: Trace) -> str:
    """Return where two runs differ in a bit, or nothing; what fails in the first is another check's matter."""
    return _difference(assert_same_bits, first, second)


def close(first: Trace, second: Trace, tolerance: float = 1e-12) -> str:
    """Return where two runs do not agree, or nothing; what fails in the first is another check's matter."""
    return _difference(lambda one, other: assert_close(one, other, tolerance), first, second)


def _difference(compare: Callable[[Any, Any], None], first: Trace, second: Trace) -> str:
    failed = {entry[:3] for entry in first.outputs if isinstance(entry[3], Failure)}
    both = [Trace([entry for entry in record.outputs if entry[:3] not in failed]) for record in (first, second)]
    try:
        compare(*(_finite(record.numbers()) for record in both))
    except Disagreement as error:
        return str(error)
    return ""


def _finite(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf.nan_to_num() for name, leaf in numbers.items()}
