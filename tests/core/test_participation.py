"""Who takes part in a round."""

import math

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, RunError
from fedtailor.core.schedule import Participation, _lowest, parse_participation


def cohorts(plan, *, population=40, rounds=60, seed=1):
    return [
        plan.cohort(seed, round, rounds + 1, population).tolist() for round in range(1, rounds + 1)
    ]


def test_everybody():
    assert cohorts(Participation(), population=5, rounds=2) == [[0, 1, 2, 3, 4]] * 2


def test_fixed_numbers_without_replacement():
    drawn = cohorts(Participation(plan="fixed", count=7))
    assert all(
        len(set(ids)) == 7 and ids == sorted(ids) and ids[0] >= 0 and ids[-1] < 40 for ids in drawn
    )
    assert len({tuple(ids) for ids in drawn}) > 50
    counts = [sum(client in ids for ids in drawn) for client in range(40)]
    assert max(abs(count - 10.5) for count in counts) < 5 * math.sqrt(60 * 7 / 40 * 33 / 40)


def test_bernoulli_draws_every_client_by_itself():
    drawn = cohorts(Participation(plan="bernoulli", probability=0.3), rounds=200)
    sizes = [len(ids) for ids in drawn]
    assert abs(sum(sizes) / 200 - 12) < 5 * math.sqrt(40 * 0.3 * 0.7 / 200)
    assert len(set(sizes)) > 5 and all(ids == sorted(set(ids)) for ids in drawn)
    assert Participation(plan="bernoulli", probability=1.0).cohort(1, 1, 5, 3).tolist() == [0, 1, 2]


def test_a_function_of_seed_and_round_alone():
    plan = Participation(plan="fixed", count=7)
    assert cohorts(plan) == cohorts(plan) != cohorts(plan, seed=2)
    alone = plan.cohort(1, 17, 99, 40).tolist()
    assert alone == cohorts(plan)[16]


@pytest.mark.parametrize("count", [1, 3, 7, 50])
def test_the_lowest_words_are_the_first_of_a_stable_sort(count):
    words = np.random.default_rng(0).integers(0, 9, 50, dtype=np.uint64)
    assert _lowest(words, count).tolist() == sorted(
        np.argsort(words, kind="stable")[:count].tolist()
    )


def test_more_clients_do_not_change_who_was_drawn_before():
    """Every client has a word of its own: the draw of the first 40 does not depend on how many
    follow."""
    plan = Participation(plan="bernoulli", probability=0.3)
    small, large = cohorts(plan, population=40), cohorts(plan, population=60)
    assert [[client for client in ids if client < 40] for ids in large] == small


def test_everybody_in_the_last_round():
    plan = Participation(plan="fixed", count=2)
    assert len(plan.cohort(1, 5, 5, 10)) == 10 and len(plan.cohort(1, 4, 5, 10)) == 2
    assert len(Participation(plan="fixed", count=2, full_last_round=False).cohort(1, 5, 5, 10)) == 2


def test_small_cohorts_are_drawn_again():
    few = Participation(plan="bernoulli", probability=0.1, min_clients=6)
    drawn = cohorts(few)
    assert min(len(ids) for ids in drawn) >= 6
    assert any(len(ids) < 6 for ids in cohorts(Participation(plan="bernoulli", probability=0.1)))


def test_a_minimum_that_is_never_reached_ends_the_run():
    hopeless = Participation(plan="bernoulli", probability=1e-6, min_clients=5)
    with pytest.raises(
        RunError, match=r"1e-06 of 6 clients .*min_clients 5 in 10000 draws of round 2"
    ):
        hopeless.cohort(1, 2, 5, 6)


@pytest.mark.parametrize(
    ("plan", "key"),
    [
        (Participation(plan="fixed", count=11), "federation.participation"),
        (Participation(min_clients=11), "federation.min_clients"),
        (
            Participation(plan="bernoulli", probability=0.5, min_clients=11),
            "federation.min_clients",
        ),
    ],
)
def test_more_clients_than_there_are(plan, key):
    with pytest.raises(ConfigError, match=r"must be at most 10, .*, got 11") as caught:
        plan.check(10)
    assert caught.value.key == key and caught.value.got == "11"
    plan.check(11)


def test_a_fixed_number_below_the_minimum_is_refused():
    with pytest.raises(ConfigError, match="min_clients"):
        Participation(plan="fixed", count=2, min_clients=5).check(10)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("all", Participation()),
        (0.3, Participation(plan="bernoulli", probability=0.3)),
        ("0.3", Participation(plan="bernoulli", probability=0.3)),
        (1, Participation(plan="bernoulli", probability=1.0)),
        ("bernoulli(0.25)", Participation(plan="bernoulli", probability=0.25)),
        ("fixed(30)", Participation(plan="fixed", count=30)),
        (" fixed( 30 ) ", Participation(plan="fixed", count=30)),
    ],
)
def test_parse(value, expected):
    assert parse_participation(value) == expected
    named = parse_participation(value, min_clients=2, full_last_round=False)
    assert named.min_clients == 2 and not named.full_last_round and named.plan == expected.plan


NONSENSE = [
    "",
    "some",
    "fixed",
    "fixed(",
    "fixed()",
    "fixed(2.5)",
    "bernoulli(x)",
    "bernoulli(nan)",
    "fixed(3)x",
    "2",
]
NUMBERS = [0, 0.0, -0.5, 1.5, True, False, float("nan"), float("inf")]


@pytest.mark.parametrize("value", NONSENSE + NUMBERS, ids=str)
def test_parse_refuses(value):
    with pytest.raises(
        ConfigError, match=r"federation.participation must be a probability such as 0.3"
    ) as caught:
        parse_participation(value)
    assert caught.value.key == "federation.participation"


def test_parse_passes_on_what_the_plan_refuses():
    with pytest.raises(ConfigError, match=r"federation.participation must be >= 1, got 0"):
        parse_participation("fixed(0)")
    with pytest.raises(ConfigError, match=r"federation.min_clients must be >= 1, got 0"):
        parse_participation("all", min_clients=0)


def test_clients_without_examples_do_not_count_towards_the_fewest():
    plan = Participation(plan="bernoulli", probability=0.3, min_clients=2)
    for round in range(1, 60):
        drawn = plan.cohort(1, round, 99, 8, trainable=[0, 1, 2]).tolist()
        assert len({0, 1, 2}.intersection(drawn)) >= 2
        assert plan.cohort(1, round, 99, 8, trainable=range(8)).equal(plan.cohort(1, round, 99, 8))

    # If fewer can train, all of them are enough.
    assert 4 in plan.cohort(1, 1, 99, 8, trainable=[4]).tolist()
