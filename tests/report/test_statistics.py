"""The statistics of comparisons equal SciPy, or a hand computation, to 1e-12."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtailor.core.metrics import smallest_tenth, worst_tenth
from fedtailor.report import statistics
from fedtailor.report.statistics import (
    Outcomes,
    Wilcoxon,
    bootstrap_interval,
    differences,
    joint_p_values,
    mean,
    outcomes,
    standard_error,
    wilcoxon,
)

EXACT = {"rel": 1e-12, "abs": 1e-12}
VALUES = st.lists(st.integers(-6, 6).map(lambda number: number / 8), min_size=1, max_size=9)


def gaps(count, *, seed=0, decimals=15, center=0.02):
    return np.round(np.random.default_rng(seed).normal(center, 0.1, count), decimals).tolist()


def test_mean_and_standard_error_are_those_of_scipy():
    values = gaps(20)
    assert mean(values) == pytest.approx(np.mean(values), **EXACT)
    assert standard_error(values) == pytest.approx(stats.sem(values), **EXACT)
    assert standard_error([0.7]) is None


def test_the_tenths_are_those_of_results():
    values = [0.1 * (value % 7) for value in range(25)]
    sizes = [30 - client // 3 for client in range(25)]
    assert worst_tenth(values) == 0.0 and worst_tenth(
        values, higher_is_better=False
    ) == pytest.approx(0.6)
    assert smallest_tenth(values, sizes) == mean(
        [values[24], values[21]]
    )  # of two equal sizes, the lower id
    assert worst_tenth([0.5]) == smallest_tenth([0.5], [3]) == 0.5


@pytest.mark.parametrize("count", [2, 3, 13, 60])
@pytest.mark.parametrize("decimals", [15, 1])
def test_the_bootstrap_interval_is_that_of_scipy(count, decimals):
    values = gaps(count, decimals=decimals)
    expected = stats.bootstrap(
        (np.array(values),),
        np.mean,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(3),
    ).confidence_interval
    found = bootstrap_interval(values, resamples=2000, seed=3)
    assert found == pytest.approx((expected.low, expected.high), **EXACT)
    assert found == bootstrap_interval(values, resamples=2000, seed=3)


def test_the_bootstrap_does_not_depend_on_how_much_is_drawn_at_a_time(monkeypatch):
    whole = bootstrap_interval(gaps(7))
    monkeypatch.setattr(statistics, "_BLOCK", 100)
    assert bootstrap_interval(gaps(7)) == whole


def test_one_client_has_no_bootstrap_interval_and_equal_ones_have_no_width():
    assert bootstrap_interval([0.1]) is None
    assert bootstrap_interval([0.1] * 7) == (0.1, 0.1)


@pytest.mark.parametrize("count", [1, 2, 5, 20, 50])
def test_wilcoxon_without_ties_is_the_exact_test_of_scipy(count):
    values = gaps(count)
    expected = stats.wilcoxon(values, method="exact")
    found = wilcoxon(values)
    assert (found.statistic, found.p_value) == pytest.approx(
        (expected.statistic, expected.pvalue), **EXACT
    )
    assert found.method == "exact" and found.num_different == count


@pytest.mark.parametrize("decimals", [15, 1])
def test_wilcoxon_of_many_clients_is_the_normal_approximation_of_scipy(decimals):
    values = gaps(200, decimals=decimals)
    different = [value for value in values if value]
    expected = stats.wilcoxon(values, zero_method="wilcox", correction=False, method="asymptotic")
    found = wilcoxon(values)
    assert (found.statistic, found.p_value) == pytest.approx(
        (expected.statistic, expected.pvalue), **EXACT
    )
    assert found.method == "normal" and found.num_different == len(different) > 50


@given(VALUES)
def test_wilcoxon_with_ties_counts_all_signs(values):
    different = np.array([value for value in values if value])
    found = wilcoxon(values)
    assert found.num_different == len(different)
    if len(different):
        ranks = stats.rankdata(np.abs(different))
        smaller = min(ranks[different > 0].sum(), ranks[different < 0].sum())
        sums = [np.dot(signs, ranks) for signs in itertools.product((0, 1), repeat=len(different))]
        at_most = np.mean(np.array(sums) <= smaller)
        assert found.statistic == smaller and found.p_value == pytest.approx(
            min(1.0, 2 * at_most), **EXACT
        )


def test_wilcoxon_of_equal_scores_finds_nothing():
    assert wilcoxon([0.0, 0.0]) == Wilcoxon(0.0, 1.0, "exact", 0)


def test_rounding_breaks_no_ties():
    found = differences([0.3, 0.2, 0.7], [0.2, 0.1, 0.7])
    assert 0.3 - 0.2 != 0.2 - 0.1 and found == [0.1, 0.1, 0.0]
    assert outcomes(found) == Outcomes(2, 1, 0) and outcomes([-0.1, 0.0]) == Outcomes(0, 1, 1)


def test_the_joint_test_of_one_pair_is_the_sign_flip_test_of_scipy():
    values = np.array(gaps(12, center=0.05))
    scipys = stats.permutation_test(
        (values,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    (p_value,) = joint_p_values(values[None, :], draws=100_000)
    assert p_value == pytest.approx(scipys.pvalue, abs=0.005)


def test_the_joint_test_counts_the_largest_statistic_of_all_pairs():
    one = np.array(gaps(10, center=0.06))
    two = np.array(gaps(10, seed=1, center=0.0))
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=10)))
    scaled = np.stack([one / np.linalg.norm(one), two / np.linalg.norm(two)])
    largest = np.abs(signs @ scaled.T).max(axis=1)
    exact = [(largest >= abs(row.sum()) - 1e-9).mean() for row in scaled]
    assert joint_p_values(np.stack([one, two]), draws=100_000) == pytest.approx(exact, abs=0.005)

    # A pair that repeats another one costs nothing.
    again = joint_p_values(np.stack([one, -one, 3 * one]))
    assert np.ptp(again) == 0 and again[0] == joint_p_values(one[None, :])[0]


def test_the_joint_test_leaves_out_what_is_missing_and_equal():
    one = np.array(gaps(10, center=0.06))
    longer = np.append(one, [np.nan, np.nan])
    p_values = joint_p_values(np.stack([longer, np.zeros(12)]))
    assert p_values[1] == 1.0 and p_values[0] < 0.5


def test_the_joint_test_rarely_finds_a_difference_that_is_not_there():
    generator = np.random.default_rng(5)
    found = 0
    for _ in range(200):
        rows = generator.normal(size=(8, 30)) + generator.normal(size=30)
        first, second = np.triu_indices(8, k=1)
        found += joint_p_values(rows[first] - rows[second], draws=400).min() < 0.05
    # 10 of 200 are expected; 19 or more have a chance of 0.5 %.
    assert 1 <= found <= 19
