"""Quantiles from counts of many sites against those of all values together."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.build import build
from fedtailor.data.columns import Columns, RawColumn, RawTable
from fedtailor.data.options import DataOptions
from fedtailor.data.quantiles import (
    RANK_ERROR,
    count_cells,
    find_quantiles,
    ordered,
    read_counts,
    read_request,
)

LEVELS = np.linspace(0, 1, 9)


def federated(columns, sites):
    """Return the quantiles of columns (columns, rows), whose rows lie at sites, through JSON."""
    x = np.array(columns, dtype=np.float32).T
    raw = RawTable(tuple(RawColumn(str(place)) for place in range(x.shape[1])))

    def ask(exchange, request):
        exchange, request = read_request(*json.loads(json.dumps([exchange, request])))
        answers = []
        for rows in sites:
            counts = count_cells(x, raw, rows, exchange, request)
            record = {name: column.to_record() for name, column in counts.items()}
            answers.append(read_counts(json.loads(json.dumps(record)), exchange, request))
        return {name: [answer[name] for answer in answers] for name in request}

    found = find_quantiles([column.name for column in raw.columns], lambda count: LEVELS, ask)
    return [found.get(column.name) for column in raw.columns]


def rank_error(values, quantiles):
    """Return how far the shares of values below quantiles are from the levels, at most."""
    inner = np.sort(np.array(values, dtype=np.float32))
    below = np.searchsorted(inner, quantiles, "left") / len(inner)
    up_to = np.searchsorted(inner, quantiles, "right") / len(inner)
    return np.maximum(np.maximum(below - LEVELS, LEVELS - up_to), 0).max()


def test_ranks_are_those_of_all_values_together():
    generator = np.random.default_rng(0)
    for count in (40, 700, 20_000):
        columns = [
            generator.normal(size=count),
            np.exp(2 * generator.normal(size=count)),
            1e6 + generator.normal(size=count),
            -np.exp(generator.normal(size=count)) * 1e-30,
            generator.standard_cauchy(count),
            generator.integers(20, 90, count) * 1.1,
            generator.random(count) < 0.1,
        ]
        columns = [np.array(column, dtype=np.float32) for column in columns]
        sites = np.array_split(generator.permutation(count), [count // 9, count // 2])
        for values, quantiles in zip(columns, federated(columns, sites), strict=True):
            assert rank_error(values, quantiles) <= max(RANK_ERROR, 1 / count) < 0.005 + 1 / count
            assert (np.diff(quantiles) >= 0).all()

        # Of many equal values, the quantile is the value.
        assert set(federated(columns, sites)[5][1:-1]) <= set(columns[5])


def test_neither_number_nor_order_of_sites_changes_a_bit():
    generator = np.random.default_rng(1)
    columns = [generator.normal(size=300), np.round(generator.normal(size=300)), [7.0] * 300]
    together = federated(columns, [np.arange(300)])
    for parts in (2, 5):
        sites = np.array_split(generator.permutation(300), parts)
        for order in (sites, sites[::-1], [*sites, np.zeros(0, dtype=np.int64)]):
            for quantiles, expected in zip(federated(columns, order), together, strict=True):
                np.testing.assert_array_equal(quantiles, expected)


def test_empty_cells_and_columns_do_not_count():
    cells = [1.0, math.nan, 2.0, math.nan, 3.0, 3.0]
    first, second = federated([cells, [math.nan] * 6], [np.arange(2), np.arange(2, 6)])
    assert first[4] == 2 and first[-1] == 3 and second is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20))
def test_keys_are_in_the_order_of_numbers(numbers):
    keys = ordered(np.array(numbers, dtype=np.float32))
    assert np.array_equal(rankdata(keys), rankdata(np.array(numbers, dtype=np.float32)))


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        {"n": 1},
        {"n": {"parts": [0], "counts": []}},
        {"n": {"parts": [1, 0], "counts": [1, 1]}},
        {"n": {"parts": [0, 0], "counts": [1, 1]}},
        {"n": {"parts": [4096], "counts": [1]}},
        {"n": {"parts": [-1], "counts": [1]}},
        {"n": {"parts": [0], "counts": [-1]}},
        {"n": {"parts": [0], "counts": [2**41]}},
        {"n": {"parts": [0], "counts": [True]}},
        {"n": {"parts": [0], "counts": [1.0]}},
        {"n": {"parts": [0], "counts": [1]}, "m": {"parts": [0], "counts": [1]}},
    ],
)
def test_wrong_counts_are_refused(record):
    with pytest.raises(DataError, match="counts of column"):
        read_counts(record, 0, {"n": [0]})


@pytest.mark.parametrize(
    ("exchange", "request_"),
    [(3, {}), ("0", {}), (0, []), (0, {"n": [1]}), (1, {"n": [4096]}), (1, {"n": [2, 1]})],
)
def test_wrong_requests_are_refused(exchange, request_):
    with pytest.raises(DataError):
        read_request(exchange, request_)


@pytest.fixture
def tables(tmp_path):
    """Return a folder of three tables: with heavy tails, two values, one value, and empty cells."""
    generator = np.random.default_rng(2)
    for site in "abc":
        lines = ["dose,sex,unit,score,label"]
        for row in range(40):
            dose = math.exp(generator.normal(0, 2))
            score = "" if site == "b" or row % 9 == 0 else generator.integers(0, 50)
            lines.append(f"{dose},{row % 2},3.5,{score},{'xy'[row % 3 == 0]}")
        (tmp_path / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return str(tmp_path)


def built(path, **options):
    divided = build(DataOptions(path=path, **options), run_seed=0)
    columns = divided.dataset.columns
    assert Columns.from_record(json.loads(json.dumps(columns.to_record()))) == columns
    return divided, {column.name: column for column in columns.columns}


def test_bins(tables):
    divided, columns = built(tables, numbers="bins", missing="indicator")
    assert columns["sex"].knots == (0, 1) and columns["unit"].knots == ()
    assert len(columns["dose"].knots) == 5 and not columns["dose"].indicates_missing
    assert columns["score"].feature_names[-1] == "score (missing)"

    # Each bin has a quarter of the training cells, give or take one.
    train = np.concatenate([client.train for client in divided.positions])
    full = (divided.dataset.x[train, :4] == 1).mean(axis=0)
    np.testing.assert_allclose(full, [0.75, 0.5, 0.25, 0], atol=0.02)

    # Features fill up one after the other, and the mark is where the score is the median.
    x = divided.dataset.x[:, :4]
    assert x.min() >= 0 and x.max() <= 1 and (np.diff(x, axis=1) <= 0).all()
    is_empty = divided.dataset.x[:, -1] == 1
    assert is_empty.sum() == 40 + 2 * 5
    assert len(np.unique(divided.dataset.x[is_empty, -5:-1], axis=0)) == 1


def test_quantile(tables):
    divided, columns = built(tables, numbers="quantile")
    assert columns["sex"].knots == (0, 1) and columns["unit"].scores == ()
    train = np.concatenate([client.train for client in divided.positions])
    scores = divided.dataset.x[train, 0]
    exact = norm.ppf((rankdata(scores) - 0.5) / len(scores))
    inside = np.abs(exact) < 1.5
    np.testing.assert_allclose(scores[inside], exact[inside], atol=0.15)
    assert np.abs(divided.dataset.x).max() <= 3.5


def test_arrays_have_no_columns(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3))
    for site in "ab":
        (tmp_path / site).mkdir()
        np.savez(tmp_path / site / "train.npz", x=x.astype(np.float32), y=np.arange(20) % 2)

    with pytest.raises(ConfigError, match="for arrays and pictures"):
        build(DataOptions(path=str(tmp_path), numbers="bins"), run_seed=0)
