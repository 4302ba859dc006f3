"""Paired comparisons of two models: intervals, tests and areas, against hand computations."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, norm, t

from fedtailor.experiment.paired import (
    compare_areas,
    compare_pairs,
    count_pairs,
    design_effect,
    holm,
    paired_interval,
    sign_flip_p_value,
    sum_by_group,
)


def test_repeated_examples_of_a_group_make_no_interval_narrower():
    generator = np.random.default_rng(0)
    single = generator.choice([-1.0, 0.0, 1.0], 30, p=[0.1, 0.7, 0.2])
    alone = paired_interval(single, None)
    repeated = paired_interval(np.repeat(single, 8), np.repeat(np.arange(30), 8))
    as_if_independent = paired_interval(np.repeat(single, 8), None)
    assert repeated[1] - repeated[0] == pytest.approx(alone[1] - alone[0], rel=0.1)
    assert as_if_independent[1] - as_if_independent[0] < 0.5 * (alone[1] - alone[0])


def test_the_design_effect_is_that_of_groups_and_repeated_tests():
    generator = np.random.default_rng(0)
    single = generator.choice([0.0, 1.0], 300)
    assert design_effect(single, None) == design_effect(np.ones(4), None) == 1
    repeated = design_effect(np.repeat(single, 4), np.repeat(np.arange(300), 4))
    assert repeated == pytest.approx(4, rel=0.01)
    assert design_effect(np.ones(8), np.repeat([0, 1], 4)) == 4
    assert design_effect(np.array([1.0, 0.0, 1.0]), np.zeros(3, int)) == 3
    assert design_effect(np.ones(7) / 3, None) == 1

    # Two independent tests of an example halve the variance.
    twice = generator.choice([0.0, 1.0], (2, 4_000)).mean(0)
    assert design_effect(twice, None) == pytest.approx(0.5, rel=0.05)


def test_few_examples_that_agree_leave_an_interval_with_width():
    low, high = paired_interval(np.ones(5), None)
    assert low < 0.8 and high == pytest.approx(1)
    low, high = paired_interval(np.zeros(10), None)
    assert low < -0.1 and high > 0.1
    assert paired_interval(np.ones(3), np.zeros(3, int)) == (-1.0, 1.0)
    low, _ = paired_interval(np.full(5, -1 + 2e-15), None)  # -1 but for rounding
    assert low == pytest.approx(-1)


@pytest.mark.parametrize(("better", "worse", "both"), [(9, 2, 29), (3, 0, 17), (0, 4, 56)])
def test_limits_are_where_the_most_likely_shares_give_the_error(better, worse, both):
    total = better + worse + both
    paired = np.repeat([1.0, -1.0, 0.0], [better, worse, both])

    for limit in paired_interval(paired, None):
        # By brute force: the likelihood of the counts, over all shares with this difference.
        def log_likelihood(share, limit=limit):
            shares = np.array([share + limit, share, 1 - 2 * share - limit])
            return (np.array([better, worse, both]) * np.log(shares.clip(1e-300))).sum()

        bounds = (max(0.0, -limit), (1 - limit) / 2)
        share = minimize_scalar(
            lambda share, f=log_likelihood: -f(share), bounds=bounds, options={"xatol": 1e-10}
        ).x
        error = math.sqrt((2 * share + limit - limit**2) / total)
        distance = abs((better - worse) / total - limit) / (1.05 * error)
        assert distance == pytest.approx(t.ppf(0.975, total - 1), rel=1e-3)


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
    for times in (1, 6, 7):  # those of 7 are too many to count
        many = np.tile(sums, times)
        normal = 2 * norm.sf(many.sum() / np.sqrt((many**2).sum()))
        assert sign_flip_p_value(many) == pytest.approx(normal, rel=0.02)


def test_holm_is_a_hand_computation():
    # sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 -> 0.02, 0.03, 0.06, then at least 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([0.04]) == [0.04] and holm([]) == []
    assert holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)


def area(scores, positive, models):
    pairs = count_pairs(scores, positive, models)
    return pairs.won.sum() / pairs.number.sum()


def test_scores_of_two_models_are_never_ranked_together():
    # Each model ranks both kinds rightly, and the second one gives all examples low scores.
    scores = np.array([0.9, 0.8, 0.2, 0.1])
    positive = np.array([True, False, True, False])
    assert area(scores, positive, np.array([0, 0, 1, 1])) == 1.0
    assert area(scores, positive, np.zeros(4, int)) == 0.75
    assert area(scores, positive, np.array([0, 1, 1, 0])) == 0.5
    assert not count_pairs(scores, positive, np.arange(4)).number.any()


def test_pairs_are_those_of_a_loop():
    generator = np.random.default_rng(0)
    positive = generator.random(12) < 0.5
    models = np.array([0] * 7 + [1] * 5)
    scores = generator.normal(size=12).round(1)
    pairs = count_pairs(scores, positive, models)
    for one in range(12):
        others = [j for j in range(12) if positive[j] != positive[one] and models[j] == models[one]]
        higher = [np.sign(scores[one] - scores[other]) for other in others]
        sign = 1 if positive[one] else -1
        assert pairs.number[one] == len(others)
        assert pairs.won[one] == sum((1 + sign * of_one) / 2 for of_one in higher)


def test_the_error_of_a_difference_of_areas_is_that_of_delong():
    generator = np.random.default_rng(0)
    labels = np.repeat([1, 0], [8, 30])
    scores = generator.normal(size=(2, 38)) + labels
    one = np.zeros(38, int)
    pairs = [count_pairs(of_model, labels == 1, one) for of_model in scores]
    difference, influence = compare_pairs(*pairs)
    test = compare_areas(difference, influence, labels, None)

    # DeLong's components: of every example, in which share of its pairs only one model is right.
    components = (pairs[0].won - pairs[1].won) / pairs[0].number
    assert difference == pytest.approx(components[labels == 1].mean())
    variances = [
        components[labels == label].var(ddof=1) / count + (0.2 / count) ** 2
        for label, count in ((1, 8), (0, 30))
    ]
    degrees = sum(variances) ** 2 / (variances[0] ** 2 / 7 + variances[1] ** 2 / 29)
    error = 1.05 * math.sqrt(sum(variances))
    assert (test.low, test.high) == pytest.approx(t.interval(0.95, degrees, difference, error))
    assert test.p_value == pytest.approx(2 * t.sf(abs(difference) / error, degrees))


def test_areas_that_say_nothing_of_others_and_repeated_examples_of_a_group():
    labels = np.repeat([1, 0], [1, 30])
    assert compare_areas(1.0, np.zeros(31), labels, None)[1:] == (-1.0, 1.0, 1.0)
    labels = np.repeat([2, 1, 0], [1, 15, 15])
    low, high, p_value = compare_areas(0.1, np.zeros(31), labels, None)[1:]
    assert -1 < low < 0 and 0.1 < high < 1.0 and p_value > 0.05

    generator = np.random.default_rng(0)
    labels = np.repeat([1, 0], 20)
    influence = generator.normal(size=40) / 200
    alone = compare_areas(0.1, influence, labels, None)
    repeated = compare_areas(
        0.1, np.repeat(influence / 4, 4), np.repeat(labels, 4), np.repeat(np.arange(40), 4)
    )
    assert repeated == pytest.approx(alone)


def test_sums_of_any_size_can_be_flipped():
    # 4 ways of 8 have a total of at least 1.12 in size.
    assert sign_flip_p_value(np.array([1.0, 0.41, -0.29])) == 0.5
    # Multiples of a step are exact: two of three seeds, and sums that only rounding keeps from 0.
    exact = sign_flip_p_value(np.array([2, 3, 3, -2]))
    assert sign_flip_p_value(np.array([2, 3, 3, -2, 1e-15]) / 7) == exact


def test_the_interval_of_a_balanced_difference_is_that_of_its_strata():
    generator = np.random.default_rng(1)
    parts = [generator.integers(-1, 2, 900), generator.choice([-1, 0, 1], 2_000, p=[0.0, 0.9, 0.1])]
    strata = np.repeat([0, 1], [900, 2_000])
    low, high = paired_interval(np.concatenate(parts).astype(float), None, strata)

    # Zou and Donner 2008.
    ends = [paired_interval(part.astype(float), None) for part in parts]
    means = [part.mean() for part in parts]
    below = math.hypot(*(mean - low for mean, (low, _) in zip(means, ends, strict=True)))
    above = math.hypot(*(high - mean for mean, (_, high) in zip(means, ends, strict=True)))
    assert low == pytest.approx(np.mean(means) - below / 2, rel=1e-3)
    assert high == pytest.approx(np.mean(means) + above / 2, rel=1e-3)


def test_sums_by_group():
    assert sum_by_group(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1])).tolist() == [2.0, 4.0]
