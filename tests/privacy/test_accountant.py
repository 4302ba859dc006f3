"""Epsilon of releases: beside another accountant, exact where everybody takes part, monotone."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.privacy.accountant import Release, epsilon_of, noise_for
from marks import quick, slow

ORACLE = json.loads((Path(__file__).parent / "epsilons.json").read_text())
"""Noise, rate, number, delta, and epsilon of dp-accounting; tools/privacy_oracle.py writes them."""
STEPS = st.integers(1, 40)


@pytest.mark.parametrize("setting", quick(ORACLE, *ORACLE[::4]), ids=str)
def test_epsilons_are_those_of_dp_accounting_and_never_below(setting):
    noise, rate, count, delta, expected = setting

    epsilon = epsilon_of(delta, [Release(noise, rate, count)])

    # The other one is an upper bound too. With everybody in every release, ours is exact.
    assert epsilon <= expected * 1.01
    assert epsilon >= expected * (1 - (1e-4 if rate == 1 else 0.0))


def test_everybody_in_every_release_is_one_gaussian():
    # delta(1) of one release with noise 1: Phi(-1/2) - e Phi(-3/2).
    assert epsilon_of(0.1269367, [Release(1.0, 1.0, 1)]) == pytest.approx(1.0, abs=1e-5)
    four = epsilon_of(1e-5, [Release(2.0, 1.0, 4)])
    assert four == pytest.approx(epsilon_of(1e-5, [Release(1.0, 1.0, 1)]), rel=1e-12)


def test_releases_of_two_rates_add_up():
    # dp-accounting: 6.87776.
    releases = [Release(1.5, 0.3, 29), Release(1.5, 1.0, 1)]
    assert epsilon_of(1e-5, releases) == pytest.approx(6.87777, abs=1e-4)


@settings(max_examples=2, deadline=None)
@given(noise=st.floats(0.7, 5), rate=st.floats(0.01, 0.9), count=STEPS)
def test_less_noise_more_clients_and_more_releases_tell_more(noise, rate, count):
    epsilon = epsilon_of(1e-5, [Release(noise, rate, count)])
    slack = 1e-6 * (1 + epsilon)
    assert epsilon_of(1e-5, [Release(noise * 1.2, rate, count)]) <= epsilon + slack
    assert epsilon_of(1e-5, [Release(noise, min(1.0, rate * 1.1), count)]) >= epsilon - slack
    assert epsilon_of(1e-5, [Release(noise, rate, count + 1)]) >= epsilon - slack
    assert epsilon_of(1e-6, [Release(noise, rate, count)]) >= epsilon - slack


@pytest.mark.parametrize(("epsilon", "plan"), [(8.0, [(1.0, 30)]), (2.0, [(0.3, 10), (1.0, 1)])])
def test_the_noise_for_a_budget_keeps_it_and_is_not_wasted(epsilon, plan):
    noise = noise_for(epsilon, 1e-5, plan)
    assert epsilon_of(1e-5, [Release(noise, *part) for part in plan]) <= epsilon
    assert epsilon_of(1e-5, [Release(noise * 0.999, *part) for part in plan]) > epsilon * 0.999


@pytest.mark.parametrize(
    ("epsilon", "delta", "plan"),
    [
        slow(2.0, 1e-5, [(0.05, 100)]),
        slow(4.0, 1e-3, [(16 / 133, 15)]),
        (1e9, 1e-5, [(1.0, 5)]),
        (0.01, 1e-5, [(1.0, 30)]),
    ],
)
def test_the_search_for_noise_begins_anywhere_and_is_a_bisection(monkeypatch, epsilon, delta, plan):
    noises = {noise_for(epsilon, delta, plan, near=near) for near in (1.0, 0.7, 50.0)}
    monkeypatch.setattr("fedtailor.privacy.accountant._MOST_GUESSES", 0)
    assert noises == {noise_for(epsilon, delta, plan)}


def test_nothing_released_tells_nothing_and_no_noise_tells_everything():
    assert epsilon_of(1e-5, []) == 0
    assert epsilon_of(1e-5, [Release(1.0, 1.0, 0)]) == 0
    assert epsilon_of(1e-5, [Release(0.0, 1.0, 1)]) == math.inf


def test_hardly_any_noise_counts_as_if_everybody_took_part():
    drawn = epsilon_of(1e-5, [Release(1e-3, 0.3, 5), Release(1e-3, 1.0, 1)])
    assert drawn == pytest.approx(epsilon_of(1e-5, [Release(1e-3, 1.0, 6)]))
    assert drawn > epsilon_of(1e-5, [Release(0.2, 0.3, 6)])
