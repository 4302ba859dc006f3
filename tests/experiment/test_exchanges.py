"""Methods that are done after some exchanges, whatever rounds and participation a run asks for."""

import pytest

import fedtailor
from fedtailor.experiment.assembly import assemble, resolved
from fedtailor.experiment.config import make_config
from fedtailor.experiment.reader import read_run


def settings(algorithm="fedncm", **federation):
    return make_config(
        {
            "algorithm": {"name": algorithm},
            "data": {"dataset": "digits", "clients": 4},
            "federation": federation,
        }
    )


@pytest.mark.parametrize(
    ("federation", "asked"),
    [
        ({}, ""),
        ({"rounds": 1, "participation": "all"}, ""),
        ({"rounds": 7}, "federation.rounds 7"),
        ({"participation": 0.5}, "federation.participation 0.5"),
        ({"rounds": 7, "participation": "fixed(2)"}, "federation.rounds 7 and federation.part"),
    ],
)
def test_the_resolved_schedule_is_one_round_with_all_clients(federation, asked):
    prepared = assemble(settings(**federation), 0)
    prepared.engine.close()
    schedule = prepared.config.schedule
    assert (schedule.rounds, schedule.participation.as_value()) == (1, "all")
    assert prepared.config.model.name == "linear"

    notes = [note for note in prepared.notes if "exchange" in note]
    assert bool(notes) == bool(asked)
    assert not asked or f"in place of {asked}" in notes[0]

    again = resolved(prepared.config, prepared.algorithm, model_name="linear")
    assert again.schedule == schedule


def test_other_methods_train_as_many_rounds_as_asked():
    prepared = assemble(settings("fedavg", rounds=7, participation=0.5), 0)
    prepared.engine.close()
    assert prepared.config.schedule.rounds == 7
    assert prepared.config.schedule.participation.as_value() == 0.5
    assert prepared.config.model.name == "mlp"


def test_a_run_is_resumed_with_the_rounds_that_were_asked_for(tmp_path):
    config = settings(rounds=5)
    first = fedtailor.run(config, out=tmp_path / "run")
    written = read_run(tmp_path / "run")
    assert [record["round"] for record in written.rounds] == [1]
    assert len(written.rounds[0]["cohort"]) == 4

    again = fedtailor.run(config, out=tmp_path / "run")
    assert again == first
