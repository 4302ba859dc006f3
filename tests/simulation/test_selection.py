"""The best round on validation examples, and runs that stop early."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedtailor
from fedtailor.algorithms import load_algorithm
from fedtailor.core import tree
from fedtailor.core.codec import decode
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Split, Splits
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.tracking import RunProgress
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.evaluation import ValidationAccuracy
from fedtailor.simulation.report import RunState, Selection
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.runs import assert_same_bits

ROUNDS = 5
UNSTABLE = {
    "data": {
        "dataset": "digits",
        "clients": 5,
        "fraction": 0.15,
        "val_fraction": 0.3,
        "new_clients": 1,
    },
    "model": {"name": "mlp", "options": {"hidden": 8}},
    "training": {"epochs": 1, "lr": 3.0},
    "federation": {"rounds": ROUNDS, "participation": "fixed(2)", "full_last_round": False},
    "evaluation": {"every": 0, "personalized_every": 1, "select": "best"},
    "engine": {"name": "reference"},
}
"""Training diverges now and then, so that the best round is not the last one."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def config(algorithm, **overrides):
    pairs = [(key.replace("__", "."), value) for key, value in overrides.items()]
    return make_config({**UNSTABLE, "algorithm": {"name": algorithm}}, pairs)


def curve(folder):
    """Return the mean validation accuracy after every round."""
    return {
        record["round"]: evaluation["metrics"]["accuracy"]["mean"]
        for record in read_run(folder).rounds
        for evaluation in record["evaluations"]
        if evaluation["test_set"] == "validation" and evaluation["group"] == "known"
    }


def models(folder):
    return {path.name: path.read_bytes() for path in Path(folder, "models").glob("*.safetensors")}


def server_state(folder, round):
    """Return the tensors of the server in a checkpoint, as bytes."""
    raw = Path(folder, "checkpoints", f"{round:06d}.safetensors").read_bytes()
    leaves = tree.paths(decode(raw, modules=["fedtailor"])["server"])
    return {name: leaf.numpy().tobytes() for name, leaf in leaves.items()}


def first_best(accuracies):
    return max(accuracies, key=lambda round: (accuracies[round], -round))


@pytest.mark.parametrize(
    ("algorithm", "engine"),
    [
        pytest.param("scaffold", "reference", marks=pytest.mark.slow),
        ("fedpac", "workers"),
        pytest.param("ditto", "batched", marks=pytest.mark.slow),
        pytest.param("ditto", "processes", marks=pytest.mark.slow),
        pytest.param("fedpac", "batched", marks=pytest.mark.slow),
        pytest.param("pfedfda", "workers", marks=pytest.mark.slow),
    ],
)
def test_the_models_are_those_of_a_run_that_ends_with_the_best_round(algorithm, engine):
    result = run(config(algorithm, engine__name=engine), out="best")
    accuracies = curve("best")
    best = first_best(accuracies)
    assert best < ROUNDS, "this test needs a best round that is not the last one"
    assert (
        result["rounds"] == ROUNDS
        and result["selected"]["round"] == result["selected"]["best_round"] == best
    )
    assert result["selected"]["best_validation_accuracy"] == accuracies[best]
    assert result["metrics"]["validation"]["accuracy"]["mean"] == accuracies[best]
    shorter = config(
        algorithm, engine__name=engine, evaluation__select="last", federation__rounds=best
    )
    expected = run(shorter, out="shorter")
    assert models("best") == models("shorter")
    for place in ("metrics", "new_clients"):
        assert {name: result[place][name] for name in expected[place] if name != "local"} == {
            name: figures for name, figures in expected[place].items() if name != "local"
        }
    assert read_run("best").model_file(0)[1]["round"] == best
    assert server_state("best", ROUNDS) == server_state("shorter", best)


def test_a_run_stops_when_its_patience_ends():
    whole = run(config("fedavg", federation__rounds=8), out="whole")
    accuracies = curve("whole")
    stop = next(
        round
        for round in accuracies
        if round - first_best({other: accuracies[other] for other in accuracies if other <= round})
        == 2
    )
    assert stop < 8, "this test needs a run that stops"
    stopped = run(config("fedavg", federation__rounds=8, evaluation__patience=2), out="stopped")
    assert stopped["rounds"] == stop and list(curve("stopped")) == list(range(1, stop + 1))
    assert stopped["selected"]["round"] == stop - 2
    assert any(
        "stopped after round" in event.get("text", "") for event in read_run("stopped").events
    )
    last = run(
        config("fedavg", federation__rounds=8, evaluation__patience=2, evaluation__select="last"),
        out="last",
    )
    assert last["rounds"] == last["selected"]["round"] == stop
    run(config("fedavg", federation__rounds=stop, evaluation__select="last"), out="shorter")
    assert models("last") == models("shorter") != models("stopped")
    assert whole["rounds"] == 8


class StopAfter(RunProgress):
    def __init__(self, round):
        self.stop = round

    def round(self, record):
        if record["round"] == self.stop:
            raise KeyboardInterrupt


def content(folder, last):
    rounds = [json.loads(line) for line in Path(folder, "rounds.jsonl").read_text().splitlines()]
    result = json.loads(Path(folder, "result.json").read_text())
    for record in (result, *rounds):
        del record["seconds"]
    del result["run"]
    clients = Path(folder, "clients.jsonl").read_text()
    return rounds, result, models(folder), clients, server_state(folder, last)


@pytest.mark.parametrize(
    ("algorithm", "moments"),
    [
        ("ditto", [2]),
        pytest.param("ditto", range(1, 9), marks=pytest.mark.slow),
        pytest.param("fedpac", range(1, 9), marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_selects_the_same_round_with_the_same_bits(algorithm, moments):
    settings = config(algorithm, evaluation__patience=2, federation__rounds=8)
    done = run(settings, out="whole")["rounds"]
    for after in [moment for moment in moments if moment <= done]:
        out = f"after-{after}"
        with pytest.raises(KeyboardInterrupt):
            run(settings, out=out, progress=StopAfter(after))
        run(settings, out=out)
        assert content(out, done) == content("whole", done)


def test_test_examples_never_decide():
    parts = assemble(config("fedavg"), 0)
    federation = parts.federation
    nothing = torch.empty(0, dtype=torch.int64)
    without = replace(
        federation,
        splits=Splits(Split(each.train, each.val, nothing) for each in federation.splits),
    )
    chosen = []
    for each in (federation, without):
        *_, last = simulate(parts.algorithm, each, Reference(), parts.config.schedule, seed=0)
        chosen.append(last.state.selection)
        assert last.is_last and last.final.round == last.state.selection.state.round < ROUNDS
    assert chosen[0].state.round == chosen[1].state.round
    assert chosen[0].accuracy == chosen[1].accuracy
    assert_same_bits(chosen[0].state.server, chosen[1].state.server)


@pytest.mark.parametrize("values", [{"select": "best"}, {"patience": 3}])
def test_an_error_says_what_is_missing(values):
    with pytest.raises(ConfigError, match=r"evaluation\.personalized_every must be 1 or more"):
        make_config({"data": {"val_fraction": 0.2}, "evaluation": values})
    settings = make_config({"evaluation": {"personalized_every": 1, **values}})
    with pytest.raises(ConfigError, match=r"data\.val_fraction must be more than 0"):
        fedtailor.run(settings, out="one")
    assert not Path("one").exists()
    algorithm = load_algorithm("fedavg")(training=Training())
    parts = assemble(make_config({}), 0)
    schedule = Schedule(personalized_every=1, **values)
    with pytest.raises(ConfigError, match="No client has validation examples"):
        next(simulate(algorithm, parts.federation, Reference(), schedule, seed=0))


@pytest.mark.parametrize(
    ("by_client", "is_above"),
    [
        ({0: 1.0}, False),  # client 1, with a low accuracy, is away
        ({0: 1.0, 1: 0.6}, True),
        ({1: 0.6, 2: 0.1}, True),
        ({0: 1.0, 1: 0.5, 2: 1.0}, False),
        ({2: 1.0}, False),
    ],
)
def test_rounds_are_compared_over_the_clients_of_both(by_client, is_above):
    best = Selection(RunState(()), 0.75, {0: 1.0, 1: 0.5})
    mean = sum(by_client.values()) / len(by_client)
    assert ValidationAccuracy(mean, by_client).is_above(best) == is_above


def test_sums_are_compared_by_their_means():
    best = Selection(RunState(()), 0.75)
    assert ValidationAccuracy(0.8, {}).is_above(best)
    assert not ValidationAccuracy(0.75, {}).is_above(best)
