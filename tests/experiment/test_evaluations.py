"""When models are tested by default: a rule on numbers of examples, never on time."""

import pytest

from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config


@pytest.mark.parametrize(
    ("algorithm", "epochs", "rounds", "expected"),
    [
        ("fedavg", 20, 100, (10, 10)),
        ("fedavg", 5, 5, (1, 1)),
        ("fedavg_ft", 20, 100, (10, 0)),
        ("fedavg", 1, 6, (2, 2)),
    ],
)
def test_models_are_tested_every_tenth_of_the_rounds(algorithm, epochs, rounds, expected):
    values = {
        "data": {"clients": 3, "test_share": 0.05},
        "algorithm": {"name": algorithm},
        "training": {"epochs": epochs},
        "federation": {"rounds": rounds},
    }
    prepared = assemble(make_config(values), 0)
    schedule = prepared.config.schedule
    assert (schedule.evaluate_every, schedule.personalized_every) == expected


def test_tests_that_would_take_too_long_come_after_the_last_round():
    values = {"data": {"clients": 3, "fraction": 0.05}, "federation": {"rounds": 3}}
    schedule = assemble(make_config(values), 0).config.schedule
    assert (schedule.evaluate_every, schedule.personalized_every) == (0, 0)
    explicit = make_config(values, [("evaluation.every", 2)])
    assert assemble(explicit, 0).config.schedule.evaluate_every == 2


def test_steps_on_all_examples_count_as_much_as_epochs():
    schedules = []
    for training in ({"epochs": 1}, {"steps": 1}):
        values = {
            "data": {"clients": 3, "test_share": 0.05},
            "training": {**training, "batch_size": 0},
            "federation": {"rounds": 200},
        }
        schedules.append(assemble(make_config(values), 0).config.schedule.evaluate_every)
    assert schedules == [20, 20]
