"""The statistics of audits, against loops written from their definitions and against formulas."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest

from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.audit import (
    area,
    chance_of_guesses,
    detect,
    estimate_epsilon,
    guessed_epsilon,
    likelihood_ratios,
    most_by_guessing,
    true_positive_rate,
)

NORMAL = NormalDist()


def ratios_by_loops(inside, signals):
    """Carlini et al. (2022), one deviation for all examples, one training left out."""
    trainings, examples = signals.shape
    ratios = np.full(signals.shape, math.nan)
    for attacked in range(trainings):
        means = {}
        deviations = {}
        for truth in (True, False):
            squares = 0.0
            degrees = 0
            for example in range(examples):
                seen = [
                    signals[other, example]
                    for other in range(trainings)
                    if other != attacked and inside[other, example] == truth
                ]
                if seen:
                    means[truth, example] = sum(seen) / len(seen)
                    squares += sum((value - means[truth, example]) ** 2 for value in seen)
                    degrees += len(seen) - 1
            deviations[truth] = math.sqrt(squares / degrees)

        for example in range(examples):
            if (True, example) in means and (False, example) in means:
                densities = [
                    NormalDist(means[truth, example], deviations[truth]).pdf(
                        signals[attacked, example]
                    )
                    for truth in (True, False)
                ]
                ratios[attacked, example] = math.log(densities[0] / densities[1])

    return ratios


def test_ratios_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    inside = rng.random((6, 12)) < 0.5
    inside[:, 0] = True
    signals = rng.normal(size=(6, 12)) + 1.5 * inside
    ratios = likelihood_ratios(inside, signals)
    np.testing.assert_allclose(ratios, ratios_by_loops(inside, signals), atol=1e-12)
    assert np.isnan(ratios[:, 0]).all(), "nothing shows what the example looks like outside"
    assert np.isfinite(ratios).sum() > 40


def test_the_attacked_training_does_not_tell_about_itself():
    rng = np.random.default_rng(1)
    inside = rng.random((8, 4000)) < 0.5
    signals = rng.normal(size=inside.shape)
    found = detect(inside, likelihood_ratios(inside, signals))
    assert abs(found.auc - 0.5) < 0.01
    assert found.tpr_at_1_percent < 0.02


@pytest.mark.slow
def test_a_known_gap_gives_the_rates_of_two_normals():
    # Each example has a level of its own, which a plain threshold does not know. Many trainings
    # show it well; with few, less is found.
    rng = np.random.default_rng(2)
    inside = rng.random((256, 800)) < 0.5
    levels = 5 * rng.normal(size=800)
    signals = levels + rng.normal(size=inside.shape) + inside
    found = detect(inside, likelihood_ratios(inside, signals))
    assert found.auc == pytest.approx(NORMAL.cdf(1 / math.sqrt(2)), abs=0.01)
    expected = 1 - NORMAL.cdf(NORMAL.inv_cdf(0.99) - 1)
    assert found.tpr_at_1_percent == pytest.approx(expected, abs=0.01)
    assert found.auc_standard_error < 0.005
    assert detect(inside, signals).auc < 0.6

    few = detect(inside[:16], likelihood_ratios(inside[:16], signals[:16]))
    assert 0.65 < few.auc < found.auc


def test_missing_signals_are_left_out():
    rng = np.random.default_rng(3)
    inside = rng.random((24, 50)) < 0.5
    signals = rng.normal(size=inside.shape) + inside
    signals[2, 7] = math.nan
    ratios = likelihood_ratios(inside, signals)
    assert np.isnan(ratios[2, 7])
    assert np.isfinite(np.delete(ratios, 7, axis=1)).all()
    assert math.isfinite(detect(inside, ratios).auc)


def test_signals_that_never_change_are_no_error():
    inside = np.array([[True, False], [False, True], [True, False], [False, True]])
    found = detect(inside, likelihood_ratios(inside, np.zeros((4, 2))))
    assert found.auc == 0.5 and found.tpr_at_1_percent == 0.0


def test_areas_count_pairs():
    rng = np.random.default_rng(4)
    inside = rng.random(60) < 0.4
    scores = rng.integers(0, 10, 60).astype(float)
    won = [
        1.0 if member > other else 0.5 if member == other else 0.0
        for member in scores[inside]
        for other in scores[~inside]
    ]
    assert area(inside, scores) == pytest.approx(np.mean(won))
    assert math.isnan(area(np.ones(3, bool), np.zeros(3)))


def test_rates_are_those_of_the_best_threshold():
    rng = np.random.default_rng(5)
    inside = rng.random(300) < 0.5
    scores = rng.integers(0, 40, 300) + 8.0 * inside
    for most_false in (0.0, 0.01, 0.1, 0.5, 1.0):
        best = 0.0
        for threshold in [*np.unique(scores), math.inf, -math.inf]:
            if (scores[~inside] > threshold).mean() <= most_false:
                best = max(best, float((scores[inside] > threshold).mean()))
        assert true_positive_rate(inside, scores, most_false) == pytest.approx(best)


def chance_by_enumeration(canaries, right, epsilon, delta):
    """Return how often guesses are right about a mechanism that has just this epsilon and delta.

    With probability delta a canary is shown; otherwise a coin tells the truth about it with
    probability exp(epsilon) / (1 + exp(epsilon)).
    """
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    rate = delta + (1 - delta) * truth
    total = 0.0
    for guesses in itertools.product((True, False), repeat=canaries):
        if sum(guesses) >= right:
            total += math.prod(rate if guess else 1 - rate for guess in guesses)
    return total


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_chance_of_right_guesses_is_that_of_all_outcomes(epsilon):
    for canaries in (1, 4, 9):
        for right in range(1, canaries + 1):
            exact = chance_by_enumeration(canaries, right, epsilon, 0.0)
            chance = chance_of_guesses(canaries, canaries, right, epsilon, 0.0)
            assert chance == pytest.approx(exact, rel=1e-9)

            # With delta it is a bound.
            exact = chance_by_enumeration(canaries, right, epsilon, 0.02)
            assert chance_of_guesses(canaries, canaries, right, epsilon, 0.02) >= exact - 1e-12


@pytest.mark.slow
def test_right_guesses_prove_no_more_than_is_true():
    # A coin tells the truth with epsilon 1, so that 5 % of all bounds may be larger.
    rng = np.random.default_rng(6)
    rate = math.e / (1 + math.e)
    bounds = []
    for _ in range(400):
        inside = rng.random(200) < 0.5
        scores = np.where(rng.random(200) < rate, inside, ~inside) + rng.random(200) / 2
        bounds.append(guessed_epsilon(inside, scores.astype(float), 1e-6))
    assert np.mean(np.array(bounds) > 1.0) <= 0.05 + 0.03
    assert np.median(bounds) > 0.4

    inside = np.arange(200) < 100
    proven = guessed_epsilon(inside, inside.astype(float), 1e-3)
    assert proven == most_by_guessing(200, 1e-3) == pytest.approx(2.85, abs=0.01)


def test_the_estimate_of_normal_scores_is_the_accountants_and_its_ends_hold():
    rng = np.random.default_rng(7)
    true = epsilon_of(1e-5, [Release(noise=2.0, rate=1.0, times=9)])
    below = above = 0
    for _ in range(1000):
        inside = rng.random(200) < 0.5
        estimate = estimate_epsilon(inside, rng.normal(size=200) * 6 + 9 * inside, 1e-5)
        below += estimate.high < true
        above += estimate.low > true
    assert 30 <= below <= 70
    assert 30 <= above <= 70

    inside = rng.random(200_000) < 0.5
    estimate = estimate_epsilon(inside, rng.normal(size=len(inside)) * 6 + 9 * inside, 1e-5)
    assert estimate.epsilon == pytest.approx(true, rel=0.02)


def test_scores_that_tell_nothing_or_everything():
    inside = np.array([True, False, True, False])
    assert estimate_epsilon(inside, np.array([0.0, 1.0, 0.1, 1.1]), 1e-5) == (0.0, 0.0, 0.0)
    assert estimate_epsilon(inside, inside.astype(float), 1e-5).low == math.inf
    assert estimate_epsilon(inside, np.zeros(4), 1e-5).high == 0.0
