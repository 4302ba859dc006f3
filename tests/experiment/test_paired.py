"""Paired comparisons of two models: intervals, tests and areas, against hand computations."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest, rankdata, t

from fedtailor.experiment.paired import (
    compare_areas,
    holm,
    paired_interval,
    rank_examples,
    sign_flip_p_value,
    sum_by_group,
    swap_gains,
)


def test_repeated_examples_of_a_group_make_no_interval_narrower():
    generator = np.random.default_rng(0)
    single = generator.choice([-1.0, 0.0, 1.0], 30, p=[0.1, 0.7, 0.2])
    alone = paired_interval(single, None)
    repeated = paired_interval(np.repeat(single, 8), np.repeat(np.arange(30), 8))
    as_if_independent = paired_interval(np.repeat(single, 8), None)
    assert repeated[1] - repeated[0] == pytest.approx(alone[1] - alone[0], rel=0.1)
    assert as_if_independent[1] - as_if_independent[0] < 0.5 * (alone[1] - alone[0])


def test_few_examples_that_agree_leave_an_interval_with_width():
    low, high = paired_interval(np.ones(5), None)
    assert 0 < low < 0.8 and high <= 1
    low, high = paired_interval(np.zeros(10), None)
    assert low < -0.1 and high > 0.1


def test_the_paired_interval_covers_the_difference():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(500):
        sample = generator.choice([-1.0, 0.0, 1.0], 40, p=[0.1, 0.65, 0.25])
        low, high = paired_interval(sample, None)
        covered += low <= 0.15 <= high
    assert 0.93 <= covered / 500 <= 0.98


def test_one_seed_without_groups_is_mcnemars_exact_test():
    generator = np.random.default_rng(0)
    for count in (1, 2, 7, 60, 300):
        sums = generator.choice([-1, 0, 1], count, p=[0.1, 0.6, 0.3])
        first = int((sums > 0).sum())
        differ = int((sums != 0).sum())
        expected = binomtest(first, differ).pvalue if differ else 1.0
        assert sign_flip_p_value(sums) == pytest.approx(expected, abs=1e-11)


def test_sign_flips_are_counted_as_by_hand():
    # 2, 1 and 1 with all signs: totals 4, 2, 2, 0, 0, -2, -2, -4.
    assert sign_flip_p_value(np.array([2, 1, 1])) == pytest.approx(0.25)
    assert sign_flip_p_value(np.array([2, 1, -1])) == pytest.approx(0.75)
    assert sign_flip_p_value(np.zeros(5)) == sign_flip_p_value(np.array([])) == 1.0
    assert sign_flip_p_value(np.array([1])) == 1.0


def test_totals_too_large_to_count_have_nearly_the_same_p_value():
    sums = np.array([5] * 10_080 + [-5] * 9_920)
    many = np.tile(sums, 2)
    assert sign_flip_p_value(sums) == pytest.approx(0.26, abs=0.02)
    assert sign_flip_p_value(many) == pytest.approx(0.11, abs=0.01)


def test_holm_is_a_hand_computation():
    # sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 -> 0.02, 0.03, 0.06, then at least 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([0.04]) == [0.04] and holm([]) == []
    assert holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)


def test_scores_of_two_models_are_never_ranked_together():
    # Each model ranks both kinds rightly, and the second one gives all examples low scores.
    scores = np.array([0.9, 0.8, 0.2, 0.1])
    positive = np.array([True, False, True, False])
    assert rank_examples(scores, positive, np.array([0, 0, 1, 1])) == 1.0
    assert rank_examples(scores, positive, np.zeros(4, int)) == 0.75
    assert rank_examples(scores, positive, np.array([0, 1, 1, 0])) == 0.5
    assert rank_examples(scores, positive, np.arange(4)) is None


def test_swapped_predictions_turn_the_sign_of_what_an_example_adds_to_a_difference_of_areas():
    generator = np.random.default_rng(0)
    positive = generator.random(8) < 0.5
    models = np.array([0] * 5 + [1] * 3)
    # Two models whose scores are not on one scale, with ties; only ranks are swapped.
    first = generator.normal(size=8).round(1)
    second = 1000 * generator.normal(size=8).round(1)
    gains = swap_gains(first, second, positive, models)

    ranks = [np.zeros(8), np.zeros(8)]
    for model, (kind, scores) in itertools.product((0, 1), enumerate((first, second))):
        ranks[kind][models == model] = rankdata(scores[models == model])

    for signs in itertools.product((1, -1), repeat=8):
        is_swapped = np.array(signs) < 0
        one = rank_examples(np.where(is_swapped, ranks[1], ranks[0]), positive, models)
        other = rank_examples(np.where(is_swapped, ranks[0], ranks[1]), positive, models)
        assert (signs * gains).sum() == pytest.approx(one - other)


def test_the_difference_of_areas_is_tested_by_its_interval():
    gains = np.array([0.05] * 8 + [-0.05] * 2)
    test = compare_areas(gains, None)
    error = 1.2 * 0.05 * math.sqrt(10)
    assert test.p_value == pytest.approx(2 * t.sf(0.3 / error, 9))
    assert (test.low, test.high) == pytest.approx(t.interval(0.95, 9, 0.3, error))
    assert compare_areas(np.zeros(3), None).p_value == 1.0


def test_sums_of_any_size_can_be_flipped():
    # 4 ways of 8 have a total of at least 1.12 in size.
    assert sign_flip_p_value(np.array([1.0, 0.41, -0.29])) == 0.5
    # Multiples of a step are exact: two of three seeds, and sums that only rounding keeps from 0.
    exact = sign_flip_p_value(np.array([2, 3, 3, -2]))
    assert sign_flip_p_value(np.array([2, 3, 3, -2, 1e-15]) / 7) == exact


def test_the_interval_of_a_balanced_difference_is_that_of_its_strata():
    generator = np.random.default_rng(1)
    paired = generator.integers(-1, 2, 50).astype(float)
    strata = np.repeat([0, 1], [42, 8])
    ends = [paired_interval(paired[strata == stratum], None) for stratum in (0, 1)]
    centers = [(low + high) / 2 for low, high in ends]
    low, high = paired_interval(paired, None, strata)
    assert (low + high) / 2 == pytest.approx(np.mean(centers))

    # Each half-width is that of a t distribution; together they have Satterthwaite's degrees.
    errors = [
        (high - low) / 2 / t.ppf(0.975, n - 1) for (low, high), n in zip(ends, (42, 8), strict=True)
    ]
    variances = np.square(errors) / 4
    degrees = variances.sum() ** 2 / (variances**2 / [41, 7]).sum()
    assert (high - low) / 2 == pytest.approx(t.ppf(0.975, degrees) * math.sqrt(variances.sum()))
    assert paired_interval(np.ones(3), None, np.array([0, 0, 1])) == (-1.0, 1.0)


def test_sums_by_group():
    assert sum_by_group(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1])).tolist() == [2.0, 4.0]
