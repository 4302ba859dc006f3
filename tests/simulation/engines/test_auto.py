"""What ``auto`` chooses, by a timing that is handed in."""

import dataclasses

import pytest
import torch

from federations import make_federation, perceptron
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.errors import ConfigError
from fedtailor.core.participation import Participation
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Silence
from fedtailor.experiment.run import run_seed
from fedtailor.simulation.engines import auto
from fedtailor.simulation.engines.auto import choose, expected_steps, obstacle, step_seconds
from fedtailor.simulation.engines.build import choose_engine
from fedtailor.simulation.engines.options import EngineOptions

WORLD = make_federation(perceptron(), sizes=(10, 20, 30, 40, 0), new_sizes=(1000,))
TRAINING = Training(epochs=5, batch_size=10)  # 15 steps on the client of 30 examples
LONG = Schedule(rounds=10_000)


def chosen(seconds, schedule=LONG, workers=2, algorithm=None, federation=WORLD):
    """Return the choice for steps of a length."""
    algorithm = algorithm or FedAvg(training=TRAINING)
    return choose(algorithm, federation, schedule, workers, measure=lambda *_: seconds)


def test_short_steps_of_a_long_run_get_processes():
    choice = chosen(0.0003)
    assert (choice.engine.name, choice.engine.workers, choice.seconds) == ("processes", 2, 0.0003)
    assert choice.reason == "engine processes: a training step takes 0.3 ms, too short for threads."


@pytest.mark.parametrize("seconds", [0.001, 0.5])
def test_long_steps_get_threads(seconds):
    choice = chosen(seconds)
    assert (choice.engine.name, choice.seconds) == ("workers", seconds)
    assert f"{1e3 * seconds:.2g} ms, long enough" in choice.reason


def test_a_run_must_earn_the_start():
    rounds = 1000  # of 4 clients with 15 steps each
    assert (
        chosen(0.0007, Schedule(rounds=rounds)).engine.name == "processes"
    )  # 21 s for each of two processes
    choice = chosen(0.0006, Schedule(rounds=rounds))
    assert (
        choice.engine.name == "workers"
        and "for a run of about 18 s it is not worth starting processes" in choice.reason
    )


def test_short_runs_and_single_cores_are_not_timed():
    def never(*_):
        raise AssertionError

    for schedule, workers, why in ((Schedule(rounds=10), 2, "600 steps"), (LONG, 1, "one core")):
        choice = choose(FedAvg(training=TRAINING), WORLD, schedule, workers, measure=never)
        assert (choice.engine.name, choice.seconds) == ("workers", None) and why in choice.reason


def test_what_cannot_be_sent_gets_threads(monkeypatch):
    class Nearby(FedAvg):
        """Defined where no other process finds it."""

    choice = chosen(0.0003, algorithm=Nearby(training=TRAINING))
    assert choice.engine.name == "workers" and "cannot send the algorithm 'Nearby'" in choice.reason
    task = WORLD.common_task._replace(model=lambda: 0)
    assert "the model 'function'" in obstacle(
        FedAvg(), dataclasses.replace(WORLD, client_tasks=[task])
    )
    assert obstacle(FedAvg(), WORLD) == ""


@pytest.mark.parametrize(
    ("training", "draw", "train", "steps"),
    [
        (TRAINING, Participation(), "auto", 10 * 4 * 15),
        (TRAINING, Participation(plan="fixed", count=2), "auto", 10 * 2 * 15),
        (TRAINING, Participation(plan="fixed", count=2), "all", 10 * 4 * 15),
        (TRAINING, Participation(plan="bernoulli", probability=0.5), "cohort", 10 * 2 * 15),
        (Training(steps=7), Participation(), "auto", 10 * 4 * 7),
        (Training(epochs=3, batch_size=0), Participation(), "auto", 10 * 4 * 3),
        (Training(epochs=1, batch_size=20), Participation(), "auto", 10 * 4 * 2),
    ],
)
def test_expected_steps(training, draw, train, steps):
    schedule = Schedule(rounds=10, participation=draw, train=train)
    assert expected_steps(FedAvg(training=training), WORLD, schedule) == steps


def test_nobody_who_trains():
    federation = make_federation(perceptron(), sizes=(0, 0), new_sizes=())
    assert expected_steps(FedAvg(), federation, LONG) == 0
    assert chosen(0.0, federation=federation).engine.name == "workers"


def test_a_step_is_timed_on_the_client_of_median_size(monkeypatch):
    sizes = []
    original = auto.train

    def watch(*arguments, data, steps, **options):
        sizes.append((len(data.rows), steps, torch.get_num_threads()))
        return original(*arguments, data=data, steps=steps, **options)

    monkeypatch.setattr(auto, "train", watch)
    assert step_seconds(FedAvg(training=TRAINING), WORLD) > 0
    assert sizes[0] == (30, 1, 1) and {size for size, *_ in sizes} == {30}
    monkeypatch.setattr(auto, "_SLOW", 0.0)
    sizes.clear()
    step_seconds(FedAvg(training=TRAINING), WORLD)
    assert len(sizes) == 1, "one slow step is enough"


def test_a_step_that_fails_is_left_to_the_run():
    def broken(*_):
        raise RuntimeError("no such layer")

    choice = choose(FedAvg(training=TRAINING), WORLD, LONG, 2, measure=broken)
    assert (choice.engine.name, choice.seconds) == (
        "workers",
        None,
    ) and "no such layer" in choice.reason


def test_named_engines_are_taken_as_they_are():
    choice = choose_engine(EngineOptions(name="reference"), FedAvg(), WORLD, LONG)
    assert (choice.engine.name, choice.reason, choice.seconds) == ("reference", "", None)


class Notes(Silence):
    """Keeps what is noted."""

    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def test_a_run_says_what_was_chosen_and_writes_the_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "physical_cores", lambda: 2)
    monkeypatch.setattr(auto, "WORTH_A_START", 1e-9)
    monkeypatch.setattr(auto, "step_seconds", lambda *_: 0.002)
    config = make_config(
        {"data": {"clients": 3}, "federation": {"rounds": 1}, "algorithm": {"name": "fedavg"}}
    )
    parts = assemble(config, 0)
    notes = Notes()
    closed = []
    monkeypatch.setattr(type(parts.engine), "close", lambda self: closed.append(self))
    result = run_seed(parts, tmp_path / "run", notes)
    assert parts.choice.reason in notes.texts and "2 ms" in parts.choice.reason
    assert (parts.config.engine.name, result["engine"], closed) == (
        "workers",
        "workers",
        [parts.engine],
    )
    kept = {
        path.name
        for path in (tmp_path / "run").rglob("*.json*")
        if parts.choice.reason in path.read_text()
    }
    assert kept == {"provenance.json"}, "what was timed stands in no record that must not change"


LIMITED = dataclasses.replace(LONG, client_timeout=2.5)


def test_a_limit_of_time_needs_processes():
    choice = choose_engine(EngineOptions(workers=3), FedAvg(), WORLD, LIMITED)
    assert (choice.engine.name, choice.engine.workers, choice.engine.timeout) == (
        "processes",
        3,
        2.5,
    )
    assert choice.reason == "engine processes: federation.client_timeout needs it."
    assert (
        choose_engine(EngineOptions(name="processes"), FedAvg(), WORLD, LIMITED).engine.timeout
        == 2.5
    )


@pytest.mark.parametrize("name", ["reference", "workers", "batched"])
def test_other_engines_refuse_a_limit_of_time(name):
    with pytest.raises(
        ConfigError, match=f"client_timeout needs engine.name = 'processes'.*'{name}' cannot"
    ) as caught:
        choose_engine(EngineOptions(name=name), FedAvg(), WORLD, LIMITED)
    assert caught.value.key == "federation.client_timeout"


def test_a_limit_of_time_is_refused_where_processes_cannot_run():
    class Local(FedAvg):
        """A class that other processes cannot import."""

    with pytest.raises(ConfigError, match=r"here it cannot run: engine 'processes' cannot send"):
        choose_engine(EngineOptions(), Local(), WORLD, LIMITED)
