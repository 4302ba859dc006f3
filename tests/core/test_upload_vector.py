"""Uploads as vectors: what is where, and sums of vectors with the bits of sums of uploads."""

from typing import NamedTuple

import pytest
import torch

from contract.cases import ALGORITHMS, build, small_federation
from fedtailor.core import tree
from fedtailor.core.fixed_point import make_fixed_point
from fedtailor.core.message import Field, Mean, Sum
from fedtailor.core.reduction import FieldSum
from fedtailor.core.schedule import Schedule
from fedtailor.core.upload_vector import UploadVector
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from marks import quick


class Head(NamedTuple):
    """A value with two tensors."""

    weight: tuple
    bias: tuple


MESSAGES = {
    "model": Field(kind="model", shapes={"a": (2, 3), "b": ()}),
    "head": Field(kind="model", shapes=Head((2, 2), (2,)), weight="own", weight_axes=1),
    "known": Field(kind="counts", shapes=(2,), reduction="none"),
    "covariance": Field(kind="covariance", shapes=(3, 3)),
    "means": Field(kind="class_means", shapes=(4, 2), weight="class_counts"),
    "control": Field(kind="statistics", shapes=(5,), weight="equal"),
    "table": Field(kind="statistics", shapes=(4, 2), reduction="sum", weight_axes=1),
}
POINT = make_fixed_point(MESSAGES, population=4, most_examples=100, rare_classes=[3])


def upload(seed):
    torch.manual_seed(seed)
    half = torch.randn(3, 3)
    count = torch.tensor(10.0 + seed)
    return {
        "model": Mean({"a": torch.randn(2, 3), "b": torch.randn(())}, count),
        "head": Mean(Head(torch.randn(2, 2), torch.randn(2)), torch.rand(2)),
        "covariance": Mean(half @ half.mT, count),
        "means": Mean(torch.randn(4, 2), torch.tensor([1.0, 0.0, 4.0, 5.0])),
        "control": Mean(torch.randn(5), torch.ones(())),
        "table": Sum(torch.randn(4, 2), torch.tensor([1.0, 1.0, 0.0, 1.0])),
    }


def test_all_rows_and_every_weight_once():
    # 6 + 1 of the model, 4 + 2, a triangle of 6, 8, 5, 8; examples, confidences, classes, rows.
    assert UploadVector(MESSAGES, POINT).entries == 7 + 6 + 6 + 8 + 5 + 8 + 1 + 2 + 4 + 4


def test_a_sum_of_vectors_has_the_bits_of_a_sum_of_uploads():
    vector = UploadVector(MESSAGES, POINT)
    uploads = [upload(seed) for seed in range(3)]

    total = sum(vector.encode(each) for each in uploads)
    decoded = vector.decode(total, 3)

    assert not vector.problem_with_sum(total, 3)
    for name, part in decoded.items():
        expected = FieldSum(range(3), POINT.fields[name])
        for client, each in enumerate(uploads):
            expected.add(client, each[name])
        total_of_field = FieldSum([1], POINT.fields[name])
        total_of_field.add(1, part)
        _assert_equal(total_of_field.reduced(), expected.reduced())


def _assert_equal(one, other):
    assert torch.equal(one.total_weight, other.total_weight)
    assert tree.paths(one.value).keys() == tree.paths(other.value).keys()
    assert type(one.value) is type(other.value)
    for first, second in zip(tree.leaves(one.value), tree.leaves(other.value), strict=True):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)


def test_vectors_of_other_layouts_have_other_digests():
    finer = make_fixed_point(MESSAGES, population=4, most_examples=10, rare_classes=[3])
    kept = make_fixed_point(MESSAGES, population=4, most_examples=100)
    digests = {UploadVector(MESSAGES, point).digest for point in (POINT, finer, kept)}
    assert len(digests) == 3


@pytest.mark.parametrize("position", [0, -1])
def test_a_vector_beyond_the_range_shows_in_the_sum(position):
    vector = UploadVector(MESSAGES, POINT)
    numbers = vector.encode(upload(0))
    numbers[position] = 2**62

    assert "beyond 1 times the bound" in vector.problem_with_sum(numbers, 1)


class Recorded(Reference):
    """An engine that keeps the uploads that it makes."""

    def __init__(self):
        """Begin with none."""
        super().__init__()
        self.uploads = []

    def map(self, program, common, jobs):
        """Run the jobs."""
        outputs = list(super().map(program, common, jobs))
        self.uploads += [
            (job.task, output.upload)
            for job, output in zip(jobs, outputs, strict=True)
            if getattr(output, "upload", None)
        ]
        return outputs


@pytest.mark.parametrize("name", quick(ALGORITHMS, "fedavg", "ifca", "pfedvem", "scaffold"))
def test_uploads_of_every_method_fit_their_vectors(name):
    algorithm = build(name)
    engine = Recorded()
    federation = small_federation("mlp")
    for _ in simulate(algorithm, federation, engine, Schedule(rounds=2), seed=3):
        pass

    for task, sent in engine.uploads:
        messages = algorithm.messages(algorithm.bind(task))
        point = make_fixed_point(messages, population=4, most_examples=2**20)
        vector = UploadVector(messages, point)
        summed = {field: sent[field] for field in point.fields}
        assert point.problem_with(summed) is None

        parts = vector.decode(vector.encode(summed), 1)
        for field, part in parts.items():
            expected = FieldSum([0], point.fields[field])
            expected.add(0, summed[field])
            total = FieldSum([0], point.fields[field])
            total.add(0, part)
            _assert_equal_values(total.reduced(), expected.reduced())


def _assert_equal_values(one, other):
    weight = other.total_weight.expand(one.total_weight.shape)
    _assert_equal(one, other._replace(total_weight=weight))
