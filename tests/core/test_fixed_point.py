"""Uploads as whole numbers: the stored vector, bounds, rare classes, and exact sums in any order."""

import itertools

import numpy as np
import pytest
import torch

from fedtailor.core.errors import ConfigError
from fedtailor.core.fixed_point import make_fixed_point
from fedtailor.core.message import Field, Mean, Sum
from fedtailor.core.reduction import FieldSum

MODEL = Field(kind="model", shapes=(4,))


def test_the_whole_numbers_of_a_known_vector() -> None:
    point = make_fixed_point({"model": MODEL}, population=4, most_examples=2**20)
    field = point.fields["model"]
    value = torch.tensor([0.1, -3.25, 1e-7, 1023.9], dtype=torch.float32).double() * 37

    numbers = [number % 2**64 for number in field.encode_value(value).tolist()]

    assert field.value_bits == 30
    assert numbers == [0xECCCCD08, 0xFFFFFFE1F0000000, 0xF85, 0x24FF13420000]


def test_a_mean_is_that_of_floats_up_to_the_last_bit_of_the_grid() -> None:
    generator = np.random.default_rng(0)
    field = make_fixed_point({"model": MODEL}, population=10, most_examples=2**20).fields["model"]
    entries = {
        client: Mean(
            torch.from_numpy(generator.normal(size=4)),
            torch.tensor(float(generator.integers(50, 200))),
        )
        for client in range(10)
    }

    exact = _reduced(entries, None)
    fixed = _reduced(entries, field)

    mean_weight = float(exact.total_weight) / 10
    assert torch.equal(fixed.total_weight, exact.total_weight)
    assert (fixed.value - exact.value).abs().max() <= 2.0 ** -(field.value_bits + 1) / mean_weight


def test_the_order_of_clients_changes_no_bit() -> None:
    field = make_fixed_point({"model": MODEL}, population=4, most_examples=2**20).fields["model"]
    generator = np.random.default_rng(1)
    entries = [
        Mean(torch.from_numpy(generator.normal(size=4)), torch.tensor(3.0 + client))
        for client in range(4)
    ]

    sums = [
        _reduced(dict(enumerate(order)), field).value for order in itertools.permutations(entries)
    ]

    assert all(torch.equal(other, sums[0]) for other in sums)


def test_a_sum_of_parts_has_the_bits_of_the_whole() -> None:
    table = Field(kind="statistics", shapes=(3, 2), reduction="sum")
    field = make_fixed_point({"sums": table}, population=4, most_examples=100).fields["sums"]
    entries = {client: Sum(torch.randn(3, 2, dtype=torch.float64)) for client in range(4)}

    first = FieldSum(range(4), field)
    for client in (0, 1):
        first.add(client, entries[client])
    whole = FieldSum(range(4), field)
    for client, part in first.parts().items():
        whole.add(client, part)
    whole.skip(1)
    for client in (2, 3):
        whole.add(client, entries[client])

    assert torch.equal(whole.reduced().value, _reduced(entries, field).value)


def test_numbers_beyond_the_bound_are_named() -> None:
    messages = {"model": MODEL, "known": Field(kind="counts", shapes=(2,), reduction="none")}
    point = make_fixed_point(messages, population=4, most_examples=100)

    too_large = {"model": Mean(torch.tensor([0.0, -1530.0, 0.0, 0.0]), torch.tensor(5.0))}
    too_many = {"model": Mean(torch.zeros(4), torch.tensor(101.0))}
    sound = {"model": Mean(torch.full((4,), 1024.0), torch.tensor(100.0))}

    assert str(point.problem_with(too_large)) == (
        "field 'model': a value of 1,530 is beyond the bound 1,024 of secure sums"
    )
    assert str(point.problem_with(too_many)) == (
        "field 'model': a weight of 101 is beyond 100, the largest in secure sums"
    )
    assert point.problem_with(sound) is None


def test_sums_at_the_bounds_stay_in_the_ring() -> None:
    point = make_fixed_point({"model": MODEL}, population=7, most_examples=1000)
    entries = {client: Mean(torch.full((4,), -1024.0), torch.tensor(1000.0)) for client in range(7)}

    reduced = _reduced(entries, point.fields["model"])

    assert reduced.value.tolist() == [-1024.0] * 4


def test_rare_classes_count_nothing() -> None:
    means = Field(kind="class_means", shapes=(3, 2), weight="class_counts")
    messages = {"means": means, "model": MODEL}
    point = make_fixed_point(messages, population=3, most_examples=100, rare_classes=[1])
    counts = torch.tensor([4.0, 5.0, 6.0], dtype=torch.float64)
    entries = {client: Mean(torch.ones(3, 2), counts) for client in range(3)}

    reduced = _reduced(entries, point.fields["means"])

    assert reduced.total_weight.tolist() == [12.0, 0.0, 18.0]
    assert counts.tolist() == [4.0, 5.0, 6.0]
    assert point.fields["model"].rare_classes == ()


def test_too_many_clients_for_the_ring_are_refused() -> None:
    with pytest.raises(ConfigError, match="'model' has only 12 fraction bits"):
        make_fixed_point({"model": MODEL}, population=10**6, most_examples=2**20)


def test_weights_of_more_axes_than_declared_are_named() -> None:
    models = Field(kind="model", shapes=(3, 2), weight="own")
    point = make_fixed_point({"models": models}, population=3, most_examples=100)

    problem = point.problem_with({"models": Mean(torch.zeros(3, 2), torch.ones(3))})

    assert str(problem) == ("field 'models': a weight with 1 axes, declared with weight_axes = 0")


def _reduced(entries, field):
    total = FieldSum(entries, field)
    for client, entry in entries.items():
        total.add(client, entry)
    return total.reduced()
