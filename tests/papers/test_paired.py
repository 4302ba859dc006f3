"""The difference between two methods, client by client."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedtailor.core.errors import DataError
from fedtailor.papers.paired import difference
from fedtailor.papers.tables import expand, load_paper

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
SIZES = [10, 20, 40, None]
FIRST = [[5, 15, 20, None], [6, 11, 30, None]]
SECOND = [[4, 16, 10, None], [7, 10, 20, None]]


def cell(method, figure="pooled"):
    found = expand(load_paper("pfedfda", FOLDER), "scarce", "cifar10_dir05_25_release", method)
    (reading,) = found.readings
    return replace(found, readings=(replace(reading, score=replace(reading.score, figure=figure)),))


def record(one, seed, correct, split="a"):
    by_client = {"num_test": SIZES, "correct": {"personalized": correct}}
    return {
        "digest": one.digest,
        "seed": seed,
        "by_client": by_client,
        "provenance": {"split_sha256": split},
    }


def records(first, second, **changes):
    own = [record(first, seed, correct, **changes) for seed, correct in enumerate(FIRST)]
    return own + [record(second, seed, correct, **changes) for seed, correct in enumerate(SECOND)]


def test_the_mean_difference_has_the_interval_of_a_paired_t_test():
    first, second = cell("pfedfda", "mean"), cell("fedavg_ft", "mean")
    found = difference(first, second, records(first, second))
    ours, theirs = (
        np.mean([np.array(each[:3]) / SIZES[:3] for each in by_seed], 0)
        for by_seed in (FIRST, SECOND)
    )
    expected = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.num_clients == 3 and found.figure == "mean"
    assert found.value == pytest.approx((ours - theirs).mean())
    assert found.over_clients == pytest.approx((expected.low, expected.high))
    assert found.by_seed == pytest.approx({0: (0.1 - 0.05 + 0.25) / 3, 1: (-0.1 + 0.05 + 0.25) / 3})
    spread = 12.706 * abs(found.by_seed[0] - found.by_seed[1]) / 2  # t with one degree of freedom
    assert found.over_seeds == pytest.approx((found.value - spread, found.value + spread), abs=1e-4)


def test_a_pooled_difference_is_that_of_all_examples():
    first, second = cell("pfedfda"), cell("fedavg_ft")
    found = difference(first, second, records(first, second))
    assert found.by_seed == pytest.approx({0: 10 / 70, 1: 10 / 70})
    assert found.value == pytest.approx(10 / 70) and found.figure == "pooled"
    gaps, share = np.array([0.0, 0.0, 0.25]), np.array(SIZES[:3]) / 70
    error = np.sqrt(1.5 * (share**2 * (gaps - 10 / 70) ** 2).sum())
    assert found.over_clients == pytest.approx(
        (10 / 70 - 4.30265 * error, 10 / 70 + 4.30265 * error), abs=1e-6
    )


def test_seeds_with_splits_of_their_own_have_no_interval_over_clients():
    first, second = cell("pfedfda"), cell("fedavg_ft")
    pairs = [
        record(one, seed, FIRST[seed], split=str(seed))
        for one in (first, second)
        for seed in (0, 1)
    ]
    found = difference(first, second, pairs)
    assert found.over_clients is None and found.over_seeds is not None and found.value == 0


def test_records_that_cannot_be_compared_are_refused():
    first, second = cell("pfedfda"), cell("fedavg_ft")
    with pytest.raises(DataError, match="no seed has a record of both pfedfda and fedavg_ft"):
        difference(first, second, [record(first, 0, FIRST[0]), record(second, 1, SECOND[0])])
    with pytest.raises(DataError, match="seed 0: the records are of other clients"):
        difference(
            first, second, [record(first, 0, FIRST[0]), record(second, 0, SECOND[0], split="b")]
        )
    fewer = record(second, 0, [None, *SECOND[0][1:]])
    with pytest.raises(DataError, match="seed 0: the records are of other clients"):
        difference(first, second, [record(first, 0, FIRST[0]), fewer])
    old = record(first, 0, FIRST[0])
    del old["by_client"]
    with pytest.raises(
        DataError, match="no scores of single clients at the evaluation point 'personalized'"
    ):
        difference(first, second, [old, record(second, 0, SECOND[0])])
