"""Mean and deviation merged from those of single sites."""

import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedtailor.core.errors import DataError
from fedtailor.data import moments as module
from fedtailor.data.build import build
from fedtailor.data.dataset import Dataset
from fedtailor.data.moments import ColumnMoments, merge_moments, moments_of, normalization_of
from fedtailor.data.options import DataOptions
from fedtailor.data.tensors import normalization

laws = settings(max_examples=20, deadline=None)


def made(seed, rows, *shape):
    generator = np.random.default_rng(seed)
    if len(shape) == 3:
        return generator.integers(0, 256, (rows, *shape), dtype=np.uint8)
    return (
        generator.normal(size=(rows, *shape)) * 10.0 ** generator.integers(-3, 6, shape)
    ).astype(np.float32)


def bits(moments):
    return moments.count, moments.mean.tobytes(), moments.squares.tobytes()


@laws
@given(st.integers(0, 2**20), st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any))
def test_merged_moments_are_those_of_all_rows(seed, sizes):
    for shape, axes in (((4,), 0), ((3, 2, 2), (0, 1, 2))):
        x = made(seed, sum(sizes), *shape)
        parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
        merged = merge_moments([moments_of(x, rows) for rows in parts])
        pooled = x.astype(np.float64)
        assert merged.count == x.size // x.shape[-1]
        np.testing.assert_allclose(merged.mean, pooled.mean(axes), rtol=1e-12, atol=1e-300)
        expected = ((pooled - pooled.mean(axes)) ** 2).sum(axes)
        np.testing.assert_allclose(merged.squares, expected, rtol=1e-9, atol=1e-9)


@laws
@given(st.integers(0, 2**20), st.integers(1, 40))
def test_a_site_alone_has_the_bits_of_a_simulation(seed, rows):
    """Whatever lies around its rows, and in whatever order the split names them."""
    generator = np.random.default_rng(seed)
    for shape in ((5,), (3, 4, 2)):
        pooled = made(seed, 90, *shape)
        place = np.sort(generator.choice(90, rows, replace=False))
        own = np.ascontiguousarray(pooled[place])
        alone = moments_of(own, np.arange(rows))
        assert bits(moments_of(pooled, generator.permutation(place))) == bits(alone)
        assert bits(moments_of(np.asfortranarray(own), np.arange(rows))) == bits(alone)


def test_rows_beyond_a_chunk(monkeypatch):
    x = made(1, 50, 3)
    whole = moments_of(x, np.arange(50))
    monkeypatch.setattr(module, "_CHUNK", 21)
    chunked = moments_of(x, np.arange(50))
    assert chunked.count == 50
    np.testing.assert_allclose(chunked.squares, whole.squares, rtol=1e-12)
    own = np.ascontiguousarray(x[10:40])
    assert bits(moments_of(x, np.arange(10, 40))) == bits(moments_of(own, np.arange(30)))


def test_sites_without_or_with_one_row_are_merged_too():
    x = np.array([[1.0, 7.0], [3.0, 7.0], [8.0, 7.0]], dtype=np.float32)
    nobody = moments_of(x, np.arange(0))
    one = moments_of(x, np.array([2]))
    assert (nobody.count, nobody.mean.tolist()) == (0, [0, 0]) and one.squares.tolist() == [0, 0]
    merged = merge_moments([nobody, moments_of(x, np.array([0, 1])), nobody, one])
    assert (
        merged.count == 3 and merged.mean.tolist() == [4, 7] and merged.squares.tolist() == [26, 0]
    )
    assert merge_moments([nobody, nobody]).count == 0


def test_a_constant_feature_gets_the_deviation_1_however_large_it_is():
    x = np.full((1000, 2), 0.1, dtype=np.float32)
    x[:, 1] = 12345678.9
    merged = merge_moments(
        [moments_of(x, rows) for rows in np.split(np.arange(1000), [3, 300, 301])]
    )
    found = normalization_of(merged, white=1.0)
    assert merged.squares.tolist() == [0, 0] and found.std == (1.0, 1.0)
    assert found.mean == (float(np.float32(0.1)), float(np.float32(12345678.9)))


def test_a_run_merges_its_known_clients_in_the_order_of_their_ids():
    x = made(3, 60, 4)
    dataset = Dataset(name="made", x=x, y=np.arange(60) % 2, num_classes=2, white=1.0)
    divided = build(
        DataOptions(partition="iid", clients=5, new_clients=2), run_seed=0, dataset=dataset
    )
    known = [
        moments_of(x[np.sort(rows.train)], np.arange(len(rows.train)))
        for rows in divided.positions[:3]
    ]
    sent = [
        ColumnMoments.from_record(json.loads(json.dumps(each.to_record())), 4) for each in known
    ]
    assert normalization(divided) == normalization_of(merge_moments(sent), 1.0)


@laws
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_a_record_keeps_every_bit(values):
    x = np.array(values, dtype=np.float32)[:, None]
    moments = moments_of(x, np.arange(len(x)))
    assert bits(ColumnMoments.from_record(json.loads(json.dumps(moments.to_record())), 1)) == bits(
        moments
    )


SOUND = {"count": 3, "mean": [1.0, 2], "squares": [0, 5.5]}


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {**SOUND, "more": 1},
        {**SOUND, "count": -1},
        {**SOUND, "count": True},
        {**SOUND, "count": 2**41},
        {**SOUND, "count": 0},
        {**SOUND, "mean": [1.0]},
        {**SOUND, "mean": [1.0, 2.0, 3.0]},
        {**SOUND, "mean": [1.0, True]},
        {**SOUND, "mean": [1.0, math.nan]},
        {**SOUND, "mean": [1.0, math.inf]},
        {**SOUND, "mean": [1.0, 10**400]},
        {**SOUND, "mean": [1.0, 1e39]},
        {**SOUND, "squares": [-1e-9, 0.0]},
        {**SOUND, "squares": [1e300, 0.0]},
        {**SOUND, "squares": [math.nan, 0.0]},
    ],
)
def test_a_hostile_record_is_refused(record):
    assert ColumnMoments.from_record(SOUND, 2).mean.tolist() == [1, 2]
    with pytest.raises(DataError, match="moments must be"):
        ColumnMoments.from_record(record, 2)


def test_the_largest_numbers_that_pass_can_be_merged():
    largest = float(np.finfo(np.float32).max)
    ends = [
        {"count": 2**40, "mean": [sign * largest], "squares": [2**40 * 4 * largest**2]}
        for sign in (1, -1)
    ]
    merged = merge_moments([ColumnMoments.from_record(each, 1) for each in ends * 50])
    found = normalization_of(merged, 1.0)
    assert math.isfinite(found.mean[0]) and math.isfinite(found.std[0])
