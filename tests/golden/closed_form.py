"""Runs of methods of one exchange, and the pool of all clients' features, in NumPy."""

import numpy as np
import torch

from fedtailor.core.federation import Federation, Split
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.models.networks import linear
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from golden import harness
from golden.network import features

CLASSES, D = 3, 5
COUNTS = ([4, 3, 0], [0, 5, 6], [6, 0, 1], [0, 0, 4], [3, 2, 1])
"""Training examples by client and class: one client has a single class, others lack one."""


def labeled_federation(counts=COUNTS, *, seed=2, d=D, tests=4):
    """Return clients of the model ``linear``, whose features are their inputs."""
    draw = np.random.default_rng(seed)
    labels = [np.repeat(np.arange(CLASSES), row) for row in counts]
    labels = [np.concatenate([own, draw.integers(0, CLASSES, tests)]) for own in labels]
    y = np.concatenate(labels)
    mixing = draw.normal(size=(d, d))
    x = draw.normal(size=(CLASSES, d))[y] + draw.normal(size=(len(y), d)) @ mixing
    splits, start = [], 0
    for own in labels:
        rows = torch.arange(start, start + len(own))
        splits.append(Split(rows[:-tests], rows[:0], rows[-tests:]))
        start += len(own)
    task = Task(linear((d,), CLASSES), CLASSES, (d,))
    return Federation(torch.from_numpy(x), torch.from_numpy(y), splits, task)


def pool(federation):
    """Return inputs and labels of all training examples."""
    parts = [harness.examples(federation, client) for client in federation.roster.known]
    return tuple(np.concatenate(column) for column in zip(*parts))


def run(algorithm, federation, engine=None, **schedule):
    """Return the report of the last round of a run that has the method's exchanges."""
    options = Schedule(rounds=algorithm.exchanges, **schedule)
    *_, report = simulate(algorithm, federation, engine or Reference(), options, seed=5)
    return report


def head_of(algorithm, federation, engine=None):
    """Return the head of a run, of a federation with any model."""
    return run(algorithm, federation, engine).state.server.head


def body_features(federation, x):
    """Return the features of the common initial body of a run with a hidden layer."""
    model = harness.arrays(federation.common_task.model.init(new_key(5).common("model")))
    return features(model, x)


def in_other_parts(federation, parts, seed):
    """Return the same training examples in the hands of as many other clients."""
    rows = torch.cat([split.train for split in federation.splits])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
    shares = rows[order].tensor_split(parts)
    splits = [Split(share, share[:0], share) for share in shares]
    return Federation(federation.x, federation.y, splits, federation.common_task)
