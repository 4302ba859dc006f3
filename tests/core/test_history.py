"""The history of a federation: who takes part in which round."""

import pytest

from fedtailor.core.errors import ConfigError
from fedtailor.core.history import History, read_change
from fedtailor.core.schedule import Participation, Schedule

NAMES = ["a", "b", "c"]


def test_members_by_round():
    history = History(["2 pause a", "2 leave b", "4 resume a"], NAMES)
    assert [history.members(round) for round in range(1, 6)] == [
        [0, 1, 2],
        [2],
        [2],
        [0, 2],
        [0, 2],
    ]
    assert history.changes(2) == [("pause", 0), ("leave", 1)]
    assert history.rounds == [2, 4]
    assert history.standing(2) == ["paused", "gone", "there"]
    assert history.standing(4) == ["there", "gone", "there"]


def test_clients_that_join_come_last():
    history = History(["2 join b", "2 leave a", "4 join c"], [*NAMES, "new"], num_new=1)
    assert [history.members(round) for round in range(1, 5)] == [[0, 3], [1, 3], [1, 3], [1, 2, 3]]
    assert [history.population(round) for round in range(1, 5)] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["0 pause a"], "a round from 1"),
        (["pause a"], "lines such as '4 pause Oslo'"),
        (["2 forget a"], "join, pause, resume or leave"),
        (["2 pause d"], "unknown client 'd'"),
        (["3 pause a", "2 pause b"], "in the order of rounds"),
        (["2 pause a", "3 pause a"], "the client is paused then"),
        (["2 resume a"], "the client is there then"),
        (["2 leave a", "3 resume a"], "the client is gone then"),
        (["2 pause c", "3 join c"], "the client is expected then"),
        (["2 join b"], "in the order of their numbers, after all others"),
        (["2 join c", "3 join b"], "in the order of their numbers, after all others"),
    ],
)
def test_what_cannot_be_is_refused(lines, text):
    with pytest.raises(ConfigError, match=text) as caught:
        History(lines, NAMES)
    assert caught.value.key == "federation.history"


def test_a_schedule_checks_the_form():
    assert read_change("12 leave St. Mary").client == "St. Mary"
    with pytest.raises(ConfigError, match="must be lines"):
        Schedule(history=("soon pause a",))


@pytest.mark.parametrize(
    "plan", [Participation(plan="bernoulli", probability=0.5), Participation(plan="all")]
)
def test_who_is_away_does_not_change_whether_others_are_drawn(plan):
    members = [0, 2, 3, 5, 8, 9]
    for round in range(1, 10):
        everybody = plan.cohort(0, round, 20, 10).tolist()
        drawn = plan.cohort(0, round, 20, 10, members=members).tolist()
        assert drawn == [client for client in everybody if client in members] or not set(
            everybody
        ) & set(members)


def test_a_fixed_number_is_drawn_of_those_who_are_there():
    plan = Participation(plan="fixed", count=3)
    for round in range(1, 10):
        drawn = plan.cohort(0, round, 20, 10, members=[1, 4, 5, 7, 8]).tolist()
        assert len(drawn) == 3 and set(drawn) <= {1, 4, 5, 7, 8}
    assert plan.cohort(0, 1, 20, 10, members=[2, 6]).tolist() == [2, 6]
