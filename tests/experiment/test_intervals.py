"""Intervals against SciPy, brute force over pairs, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from fedtailor.experiment.estimates import auroc_interval, mean_interval


def delong_error(positives, negatives):
    """Return the AUROC and its standard error as DeLong et al. 1988 define them, from all pairs."""
    won = [[(p > n) + (p == n) / 2 for n in negatives] for p in positives]
    of_positives = [sum(row) / len(row) for row in won]
    of_negatives = [sum(column) / len(column) for column in zip(*won, strict=True)]
    variance = np.var(of_positives, ddof=1) / len(positives) + np.var(of_negatives, ddof=1) / len(
        negatives
    )
    return float(np.mean(of_positives)), math.sqrt(variance)


@pytest.mark.parametrize("true", [0.7, 0.9])
def test_for_many_examples_it_is_as_wide_as_delongs(true):
    rng = np.random.default_rng(0)
    positives = rng.normal(math.sqrt(2) * stats.norm.ppf(true), 1, 200)
    negatives = rng.normal(0, 1, 300)
    area, error = delong_error(positives, negatives)
    found = auroc_interval(area, 200, 300)
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * error, rel=0.12)
    assert found["low"] < area < found["high"]


@pytest.mark.parametrize(
    ("positives", "negatives", "true"), [(5, 20, 0.95), (5, 20, 0.8), (40, 60, 0.85)]
)
def test_it_holds_the_true_value_about_as_often_as_it_says(positives, negatives, true):
    rng = np.random.default_rng(1)
    shift = math.sqrt(2) * stats.norm.ppf(true)
    ours = rng.normal(shift, 1, (400, positives, 1))
    others = rng.normal(0, 1, (400, 1, negatives))
    intervals = [
        auroc_interval(area, positives, negatives) for area in (ours > others).mean((1, 2))
    ]
    held = np.mean([each["low"] <= true <= each["high"] for each in intervals])
    assert 0.93 <= held <= 0.99


@pytest.mark.parametrize(("positives", "negatives"), [(1, 1), (1, 50), (7, 7), (1000, 10)])
def test_bounds_are_where_the_distance_is_1_96_standard_errors(positives, negatives):
    for area in (0.0, 0.1, 0.5, 0.85, 1.0):
        found = auroc_interval(area, positives, negatives)
        assert 0 <= found["low"] <= area <= found["high"] <= 1 and found["high"] - found["low"] > 0
        for bound in found.values():
            if 0 < bound < 1:
                first = bound / (2 - bound)
                second = 2 * bound**2 / (1 + bound)
                # Hanley and McNeil's (n_p - 1) (Q1 - A^2) + (n_n - 1) (Q2 - A^2), with the mean of
                # both factors
                others = (positives + negatives) / 2 - 1
                variance = bound * (1 - bound) + others * (first + second - 2 * bound**2)
                distance = abs(area - bound) / math.sqrt(variance / (positives * negatives))
                assert distance == pytest.approx(1.96, abs=1e-3)
        mirrored = auroc_interval(1 - area, negatives, positives)
        assert mirrored["low"] == pytest.approx(1 - found["high"], abs=1e-12)


def test_an_error_of_the_value_widens_it():
    plain = auroc_interval(0.8, 30, 40)
    wide = auroc_interval(0.8, 30, 40, error=0.05)
    assert wide["low"] == auroc_interval(0.75, 30, 40)["low"] < plain["low"]
    assert (
        wide["high"] == pytest.approx(auroc_interval(0.85, 30, 40)["high"])
        and wide["high"] > plain["high"]
    )
    assert auroc_interval(0.99, 30, 40, error=0.05)["high"] == 1.0


def test_the_interval_of_a_mean_is_that_of_students_t():
    values = np.array([0.5, 0.62, 0.71, 0.55])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = mean_interval(values.mean(), values.std(ddof=1), 4)
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert mean_interval(0.5, 0.0, 1) is None
    assert mean_interval(0.9, 0.4, 2) == {"low": 0.0, "high": 1.0}
    assert mean_interval(2.0, 0.1, 3, is_share=False)["high"] > 2
