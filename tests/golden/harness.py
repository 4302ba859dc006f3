"""Runs the library on two small clients, and records what it was given: downloads, orders of
batches, folds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedtailor.algorithms import _beta_search
from fedtailor.core.engine import Failure
from fedtailor.core.federation import ExampleSet, Federation, Split
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.models.networks import mlp
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from fedtailor.training import one_client

CLASSES, INPUTS, HIDDEN = 3, 3, 4
LABELS = ([0, 0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 1, 0], [1, 1, 2, 1, 1, 1, 1])
"""Training labels: uneven sizes, a class with two examples, one with a single, one that is
absent."""
TEST_SIZE = 6


def task(hidden=HIDDEN):
    return Task(mlp((INPUTS,), CLASSES, hidden=hidden), CLASSES, (INPUTS,))


def client_with(z, y, classes):
    """Return the task and data of a client whose inputs are the given features.

    The body is the identity, so no feature may be negative.
    """
    dim = z.shape[1]
    wide = Task(mlp((dim,), classes, hidden=dim), classes, (dim,))
    rows = torch.arange(len(y))
    splits = [Split(rows, rows[:0], rows[:0])]
    return wide, Federation(torch.from_numpy(z), torch.from_numpy(y), splits, wide).data(0)


def make_federation(labels=LABELS, *, seed=11, num_new=0, change=None, hidden=HIDDEN):
    """Return clients whose rows lie scattered in the table; ``change(x, splits)`` edits the inputs
    in place."""
    draw = np.random.default_rng(seed)
    parts = [
        np.concatenate([own, draw.integers(0, CLASSES, TEST_SIZE)]).astype(int) for own in labels
    ]
    y = np.concatenate(parts)
    centers = 1.5 * draw.normal(size=(CLASSES, INPUTS))
    x = centers[y] + draw.normal(size=(len(y), INPUTS))
    place = draw.permutation(len(y))
    table_x, table_y = np.empty_like(x), np.empty_like(y)
    table_x[place], table_y[place] = x, y
    splits, start = [], 0
    for part in parts:
        rows = torch.from_numpy(place[start : start + len(part)])
        count = len(part) - TEST_SIZE
        splits.append(Split(rows[:count], rows[:0], rows[count:]))
        start += len(part)
    if change is not None:
        change(table_x, splits)
    return Federation(
        torch.from_numpy(table_x), torch.from_numpy(table_y), splits, task(hidden), num_new=num_new
    )


def examples(federation, client, part="train"):
    """Return a client's inputs and labels as arrays."""
    rows = getattr(federation.splits[client], part)
    return federation.x[rows].numpy(), federation.y[rows].numpy()


def initial_params(federation):
    """Return the common initial model of a run with the recorder's seed."""
    return federation.common_task.model.init(new_key(5).common("model"))


def initial(federation):
    """Return the common initial model of a run with the recorder's seed, as arrays."""
    return arrays(initial_params(federation))


def part(w, names):
    """Return some entries of a model."""
    return {name: w[name] for name in names}


def zeros(w):
    """Return zeros in the shapes of a model of arrays."""
    return {name: np.zeros_like(value) for name, value in w.items()}


def arrays(tree):
    """Return a dict of tensors as a dict of arrays."""
    return {name: tensor.numpy() for name, tensor in tree.items()}


@dataclass
class Visit:
    """One program of one client: what went in, the random choices made on the way, what came
    out."""

    shared: Any
    plans: list[Any] = field(default_factory=list)
    """Position of the examples of every batch, for every training phase."""
    folds: list[Any] = field(default_factory=list)
    """Row numbers of the two halves, for every cross-validation."""
    kept: Any = None
    """Positions of the examples that a draw kept."""
    output: Any = None


class Recorder:
    """An engine that runs one client after the other and keeps a :class:`Visit` of each."""

    name = "recorder"
    smallest_group = 32

    def __init__(self, monkeypatch):
        self.visits = {}
        self.reports = []
        self.current = Visit(())
        for module, name, keep in (
            (one_client, "plan_batches", self._keep_plan),
            (_beta_search, "stratified_folds", self._keep_folds),
            (ExampleSet, "keep", self._keep_kept),
        ):
            original = getattr(module, name)
            monkeypatch.setattr(
                module, name, lambda *a, original=original, keep=keep: keep(original(*a))
            )

    def _keep_plan(self, plan):
        self.current.plans.append([batch.numpy() for batch in plan.batches])
        return plan

    def _keep_folds(self, folds):
        halves = [rows[weight > 0].numpy() for rows, weight in zip(*folds)]
        self.current.folds.append(halves)
        return folds

    def _keep_kept(self, chosen):
        self.current.kept = np.flatnonzero(chosen.weight.numpy())
        return chosen

    def begin_run(self):
        """Nothing is kept between clients."""

    def map(self, program, common, jobs):
        outputs = []
        for job in jobs:
            self.current = Visit(common.shared)
            name = program.func.__name__.removesuffix("_program")
            self.visits[int(common.round), name, job.client] = self.current
            self.current.output = Reference().map(program, common, [job])[0]
            outputs.append(self.current.output)
        return outputs

    def run(self, algorithm, federation, *, rounds=2, seed=5, **schedule):
        """Run rounds with evaluations after each; return the recorder."""
        options = {"evaluate_every": 1, "personalized_every": 1, **schedule}
        self.reports += simulate(
            algorithm, federation, self, Schedule(rounds=rounds, **options), seed=seed
        )
        return self

    def visit(self, round, program, client):
        """Return the visit of a client in a program: ``train``, ``score`` or ``personalize``."""
        found = self.visits[round, program, client]
        assert not isinstance(found.output, Failure), found.output
        return found


def assert_epochs(batches, count, size, epochs, *, drop_last=False):
    """Assert that batches divide ``epochs`` permutations of ``count`` examples as the specification
    says."""
    size = min(size, count)
    sizes = [size] * (count // size) + [count % size] * (count % size > 0 and not drop_last)
    assert [len(batch) for batch in batches] == sizes * epochs
    for epoch in range(epochs):
        seen = np.concatenate(batches[epoch * len(sizes) : (epoch + 1) * len(sizes)])
        assert len(set(seen)) == len(seen) and set(seen) <= set(range(count))


def assert_close(given, expected, tolerance=1e-12):
    """Assert equality in float64, relative to the largest number of each array or 1."""
    if isinstance(expected, dict):
        assert set(given) == set(expected)
        for name, value in expected.items():
            assert_close(given[name], value, tolerance)
        return
    given = given.numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    assert given.dtype == np.float64 and given.shape == expected.shape
    worst, scale = (
        np.abs(given - expected).max(initial=0),
        max(1.0, np.abs(expected).max(initial=0)),
    )
    assert worst <= tolerance * scale, f"differs by {worst:.2e}, of {scale:.2e}"
