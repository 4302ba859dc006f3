"""Who runs the training steps of the clients of each engine."""

import pytest

from fedtailor.simulation.engines.processes import Processes
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.training.one_client import PLAIN, current_runner, steps_run_by
from fedtailor.training.replay import ReplayRunner
from simulation.engines.programs import job, runner_is_new


@pytest.mark.parametrize(
    "make", [Workers, pytest.param(Processes, marks=pytest.mark.slow)], ids=["workers", "processes"]
)
def test_a_runner_lasts_as_long_as_a_run(make):
    engine = make(1)
    for _ in range(2):
        engine.begin_run()
        assert engine.map(runner_is_new, {}, [job(client) for client in range(3)]) == [
            True,
            False,
            False,
        ]
        assert engine.map(runner_is_new, {}, [job(0)]) == [False]
    engine.close()


def test_the_reference_engine_runs_steps_as_they_are_written():
    met = []

    def look(task, common, inputs):
        met.append(current_runner())
        return inputs.client

    with steps_run_by(ReplayRunner()):
        Reference().map(look, {}, [job(client) for client in range(2)])
    assert met == [PLAIN, PLAIN]
