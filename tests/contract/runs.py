"""Running an algorithm for the contract: what is recorded, how runs are compared, and engines that disturb."""

import random
from dataclasses import dataclass, field

import torch

from fedtailor.core import tree
from fedtailor.core.engine import Failure, Ragged
from fedtailor.core.federate import Protocol, federate
from fedtailor.core.metrics import Scores


@dataclass
class Record:
    """All that a run produced, in order."""

    outputs: list = field(default_factory=list)
    """(round, program, client, output) of every client's program."""
    reports: list = field(default_factory=list)

    def of(self, program):
        """Return (round, client) -> output of one program: train, personalize or score."""
        return {(round, client): output for round, name, client, output in self.outputs if name == program}

    def numbers(self):
        """Return every tensor of the run by name, and the final personal models."""
        result = {}
        for round, program, client, output in self.outputs:
            assert not isinstance(output, Failure), output
            for path, leaf in tree.paths(output).items():
                result[f"round {round}, {program}, client {client}: {path}"] = leaf
        return result


class Recording:
    """Passes work on to another engine and records what comes back."""

    name = "recording"

    def __init__(self, engine):
        self.engine = engine
        self.record = Record()

    def map(self, program, common, jobs):
        outputs = self.engine.map(program, common, jobs)
        name = program.func.__name__.removesuffix("_program")
        found = [(int(common.round), name, job.client, output) for job, output in zip(jobs, outputs, strict=True)]
        self.record.outputs += found
        return outputs


class Shuffled:
    """Hands over the clients in another order."""

    name = "shuffled"

    def __init__(self, engine):
        self.engine = engine

    def map(self, program, common, jobs):
        order = list(range(len(jobs)))
        random.Random(1).shuffle(order)
        outputs = self.engine.map(program, common, [jobs[position] for position in order])
        return [outputs[order.index(position)] for position in range(len(jobs))]


class Padded:
    """Puts examples of weight 0 before, between and behind the examples of every client."""

    name = "padded"

    def __init__(self, engine):
        self.engine = engine

    def map(self, program, common, jobs):
        total = len(common.y)
        rows = [job.row._replace(train=_pad(job.row.train, total), test=_pad(job.row.test, total)) for job in jobs]
        return self.engine.map(program, common, [job._replace(row=row) for job, row in zip(jobs, rows, strict=True)])


def _pad(part, total):
    """Return examples at the places 1, 2, 4, 5, 7, 8, ... with others' examples of weight 0 between them."""
    count = len(part.rows)
    places = torch.arange(count) + torch.arange(count) // 2 + 1
    rows = torch.arange(count + count // 2 + 3) % total
    weight = torch.zeros(len(rows))
    rows[places], weight[places] = part.rows, part.weight
    return Ragged(rows, weight)


class Guarding:
    """Checks that a program leaves its inputs as they are."""

    name = "guarding"

    def __init__(self, engine):
        self.engine = engine

    def map(self, program, common, jobs):
        before = tree.map(torch.clone, (common, *(job.row for job in jobs)))
        outputs = self.engine.map(program, common, jobs)
        assert_same_bits(before, (common, *(job.row for job in jobs)))
        return outputs


def run(algorithm, engine, federation, *, rounds=2, seed=3, **options):
    """Run an algorithm, evaluating at every point after every round; return the record."""
    recording = Recording(engine)
    protocol = Protocol(rounds=rounds, **{"evaluate_every": 1, "personalized_every": 1, **options})
    recording.record.reports = list(federate(algorithm, federation, recording, protocol, seed=seed))
    return recording.record


def assert_same_bits(first, second):
    """Assert that two trees have the same leaves, bit for bit."""
    first, second = tree.paths(first), tree.paths(second)
    assert list(first) == list(second)
    for path, leaf in first.items():
        other = second[path]
        assert leaf.dtype == other.dtype and leaf.shape == other.shape, path
        assert torch.equal(leaf, other), f"{path}: differs by {(leaf - other).abs().max()}"


def assert_same_runs(first, second):
    """Assert that two runs agree bit for bit."""
    assert_same_bits(first.numbers(), second.numbers())


def assert_close_runs(first, second, tolerance=1e-12):
    """Assert that two runs agree in float64, each number relative to the largest of its tensor or 1."""
    first, second = first.numbers(), second.numbers()
    assert list(first) == list(second)
    for name, leaf in first.items():
        scale = max(1.0, float(leaf.abs().max())) if leaf.numel() else 1.0
        assert leaf.dtype == second[name].dtype, name
        assert torch.allclose(leaf, second[name], rtol=0, atol=tolerance * scale), (
            f"{name}: {(leaf - second[name]).abs().max():.2e} apart, of {scale:.2e}"
        )


def scores_of(record, point, clients="known"):
    """Return the scores of the last evaluation at a point."""
    found = [e for report in record.reports for e in report.evaluations if (e.point, e.clients) == (point, clients)]
    return found[-1].scores if found else None


def accuracy(scores):
    """Return the accuracy over the test examples of all clients."""
    total = Scores(*(torch.stack(column).sum(0) for column in zip(*scores, strict=True)))
    return float(total.class_correct.sum() / total.class_total.sum())
