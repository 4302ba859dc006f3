"""The algorithm that is checked, and its runs on the small federations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.engine import Engine, Failure
from fedtailor.core.federation import Federation
from fedtailor.core.task import Task, Training
from fedtailor.core.text import counted
from fedtailor.core.upload_checks import Problem
from fedtailor.testing import federations
from fedtailor.testing.engines import Exposed, Guarding, NotStacked, Strict
from fedtailor.testing.isolation import seed_globally
from fedtailor.testing.runs import (
    Disagreement,
    Trace,
    TracingEngine,
    accuracy,
    assert_close,
    assert_same_bits,
    problem_with_output,
    run,
    scores_of,
)
from fedtailor.testing.spy import SOURCES, Observations, spied

TRAINING = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.5, weight_decay=0.01, clip_norm=3.0)
"""Shorter last batches, momentum, decay and clipping: everything that padding and stacking could
break."""

Check = Callable[["Case"], str | None]
"""Returns a sentence that says what is wrong, or None."""

_TASKS: dict[str, Callable[[], Task]] = {
    "mlp": federations.perceptron,
    "cnn": federations.convolutional,
    "module": lambda: federations.module(bias=False),
}


class Spied(NamedTuple):
    """What a run of the spied algorithm showed."""

    observed: Observations
    changed: str
    """The input that changed, or an empty string."""


class Lesson(NamedTuple):
    """How well personal models predict, as accuracies over test examples."""

    accuracy: float
    majority: float
    """Accuracy of always guessing a client's most frequent class."""

    @property
    def learned(self) -> bool:
        """Whether the accuracy is clearly above the majority's: by 8 of 160 examples."""
        return self.accuracy > self.majority + 0.05


class Case:
    """An algorithm with its runs; what several checks need is computed once."""

    def __init__(self, algorithm: AnyAlgorithm) -> None:
        self.algorithm = replace(algorithm, training=TRAINING)
        self.attributes = copy.deepcopy(vars(self.algorithm))
        self._tasks: dict[str, Task] = {}
        self._bases: dict[str, Trace] = {}
        self._stacked: dict[int, Trace | NotStacked] = {}

    def task(self, model: str = "mlp") -> Task:
        """Return the task of a kind of model: mlp, cnn, or module (normalization and dropout)."""
        if model not in self._tasks:
            self._tasks[model] = _TASKS[model]()
        return self._tasks[model]

    def federation(self, model: str = "mlp") -> Federation:
        """Return a new copy of the uneven federation: an algorithm may have changed another."""
        return federations.make_federation(self.task(model), validation=True)

    def run(
        self,
        engine: Engine,
        federation: Federation | None = None,
        *,
        algorithm: AnyAlgorithm | None = None,
        randomness: int = 1,
        **options: Any,
    ) -> Trace:
        """Run the algorithm, or another one, in equal global random states in every run."""
        seed_globally(randomness)
        return run(algorithm or self.algorithm, engine, federation or self.federation(), **options)

    def base(self, model: str = "mlp") -> Trace:
        """Return the run that other runs are compared with: clients one by one."""
        if model not in self._bases:
            self._bases[model] = self.run(Exposed(), self.federation(model))
        return self._bases[model]

    @cached_property
    def new_clients_fail(self) -> bool:
        """Whether a new client gets no model; the check of what clients return says why."""
        new = set(self.federation().roster.new)
        outputs = self.base().of("personalize")
        return any(
            isinstance(output, Failure) for (_, client), output in outputs.items() if client in new
        )

    def stacked(self, block: int = 3) -> Trace | NotStacked:
        """Return the run with clients in blocks, or the reason why there is none."""
        if block not in self._stacked:
            try:
                self._stacked[block] = self.run(Strict(block))
            except NotStacked as error:
                self._stacked[block] = error

        return self._stacked[block]

    @cached_property
    def spied(self) -> Spied:
        """What methods return and change, in a run with clients one by one."""
        twin, observed = spied(self.algorithm)
        try:
            self.run(Guarding(Exposed()), algorithm=twin)
        except Disagreement as error:
            return Spied(observed, str(error))
        return Spied(observed, "")

    @cached_property
    def _until_failure(self) -> tuple[Observations, Trace]:
        """What methods return in the first round of a run that fails."""
        twin, observed = spied(self.algorithm)
        tracing = TracingEngine(Exposed())
        with suppress(Exception):  # the first run has shown it
            self.run(tracing, algorithm=twin, rounds=1)
        return observed, tracing.trace

    def wrong_type(self) -> str:
        """Return which method returns numbers that are not float64, or an empty string."""
        observed, _ = self._until_failure
        for kind, source in SOURCES.items():
            for value in observed.values[kind]:
                path, leaf = _first_of_wrong_type(value)
                if leaf is not None:
                    return f"{source} in which '{path or '.'}' is of type {leaf.dtype}"

        return ""

    def first_problem(self) -> Problem | None:
        """Return the first problem with what a client returns, in a run that may fail."""
        _, trace = self._until_failure
        messages = self.algorithm.messages(self.task())
        problems = (problem_with_output(output, messages) for output in trace.of("train").values())
        return next((problem for problem in problems if problem is not None), None)

    @cached_property
    def lessons(self) -> list[Lesson]:
        """How well models of known and of new clients predict classes that are easy to tell apart.

        Algorithms that learn little in a few rounds get more rounds.
        """
        lessons = self._lessons(rounds=6)
        if not all(lesson.learned for lesson in lessons):
            lessons = self._lessons(rounds=40)
        return lessons

    def _lessons(self, rounds: int) -> list[Lesson]:
        """Return the lesson of known clients, and that of new clients."""
        # More examples than in the other checks, and classes three deviations apart.
        federation = federations.make_federation(
            self.task(), (24, 36, 30, 40), (30, 24), distance=3.0, test_size=40
        )
        algorithm = replace(
            self.algorithm, training=replace(TRAINING, epochs=3, lr=0.1, batch_size=10)
        )
        trace = self.run(
            Exposed(),
            federation,
            algorithm=algorithm,
            rounds=rounds,
            evaluate_every=0,
            personalized_every=0,
        )
        return [_lesson(federation, trace, "known"), _lesson(federation, trace, "new")]

    @cached_property
    def unrepeatable(self) -> str:
        """Where a second run with the same seeds differs, or an empty string."""
        return same_bits(self.base(), self.run(Exposed()))

    @cached_property
    def unkeyed(self) -> str:
        """Where a run with other global random states differs, or an empty string."""
        return same_bits(self.base(), self.run(Exposed(), randomness=2))

    @property
    def comparable(self) -> bool:
        """Whether runs can be compared: results repeat, and inputs do not change."""
        return not (self.spied.changed or self.unrepeatable or self.unkeyed)

    def size(self, client: int) -> int:
        """Return the number of a client's training examples."""
        return len(self.federation().splits[client].train)

    def where(self, round: int, client: int) -> str:
        """Return a round and a client in words, as sentences begin."""
        return f"Round {round}, {self.who(client)}"

    def who(self, client: int) -> str:
        """Return a client with the number of its training examples, in words."""
        return f"client {client} ({counted(self.size(client), 'training example')})"


def same_bits(first: Trace, second: Trace) -> str:
    """Return where two runs differ in a bit, or an empty string.

    Clients that fail in the first run are left out.
    """
    return _difference(assert_same_bits, first, second)


def close(first: Trace, second: Trace, tolerance: float = 1e-12) -> str:
    """Return where two runs do not agree, or an empty string.

    Clients that fail in the first run are left out.
    """
    return _difference(lambda one, other: assert_close(one, other, tolerance), first, second)


def _difference(compare: Callable[[Any, Any], None], first: Trace, second: Trace) -> str:
    failed = {entry[:3] for entry in first.outputs if isinstance(entry.output, Failure)}
    try:
        compare(_finite_numbers(first, failed), _finite_numbers(second, failed))
    except Disagreement as error:
        return str(error)
    return ""


def _finite_numbers(trace: Trace, failed: set[tuple[int, str, int]]) -> dict[str, Tensor]:
    """Return every tensor of a run but those of failed programs, with finite numbers only."""
    sound = Trace([entry for entry in trace.outputs if entry[:3] not in failed])
    return {name: leaf.nan_to_num() for name, leaf in sound.numbers().items()}


def _first_of_wrong_type(value: Any) -> tuple[str, Tensor | None]:
    """Return path and tensor of the first leaf that is not float64; None if there is none."""
    with suppress(TypeError):  # another check reports what is not a tree
        for path, leaf in tree.paths(value).items():
            if leaf.is_floating_point() and leaf.dtype != torch.float64:
                return path, leaf
    return "", None


def _lesson(federation: Federation, trace: Trace, clients: str) -> Lesson:
    scores = scores_of(trace, "personalized", clients)
    right = []
    for client in federation.roster.new if clients == "new" else federation.roster.known:
        guess = federation.info(client).class_counts.argmax()
        right.append(federation.test(client).labels() == guess)
    return Lesson(accuracy(scores) if scores else 0.0, float(torch.cat(right).double().mean()))
