"""Mistakes that popular implementations make, each with a test that would catch it here, for every
algorithm.

Mistakes in the equations of one method (SCAFFOLD's steps, pFedMe's personal model, APFL's double
step, FedRoD's prediction, FedBABU's drifting head, FedSR that never communicates, frozen groups
that momentum moves) are caught by that method's tests in tests/golden.
"""

from dataclasses import replace

import pytest
import torch

from contract.cases import ALGORITHMS, FEW, TRAINING, build, cases, oracle, small_federation
from federations import TASKS, Planned, make_federation
from fedtailor import make_config
from fedtailor import run as run_experiment
from fedtailor.core import tree
from fedtailor.core.rng import new_key
from fedtailor.experiment.reader import read_run
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run


@cases("small_clients", models=("mlp",), few=FEW)
def test_clients_with_less_than_a_batch_train(algorithm, model):
    """Loaders that drop the last batch never train clients with fewer examples than a batch."""
    federation = make_federation(TASKS[model](), (1, 2), ())
    outputs = []
    for epochs in (2, 3):
        training = replace(TRAINING, drop_last=True, epochs=epochs)
        one = replace(build(algorithm), training=training)
        trace = run(one, Reference(), federation, rounds=1, evaluate_every=0, personalized_every=0)
        outputs.append(trace.of("train"))
    for client in federation.roster.known:  # a batch has 5 examples
        state, upload, metrics, *_ = outputs[0][1, client]
        assert metrics["steps"] > 0
        pairs = zip(
            tree.leaves((state, upload)), tree.leaves((*outputs[1][1, client][:2],)), strict=True
        )
        assert not all(torch.equal(one, other) for one, other in pairs)


@cases("buffers", models=("module",))
def test_running_statistics_travel_with_the_layers_they_belong_to(algorithm, model):
    """Sending only what has a gradient leaves batch normalization with the statistics of nobody."""
    one = build(algorithm)
    task = small_federation(model).common_task
    models = [field for field in one.messages(task).values() if field.kind == "model"]
    sent = {path.rsplit("/", 1)[-1] for field in models for path in field.leaf_shapes()}
    kept = {
        path.rsplit("/", 1)[-1]
        for path in tree.paths(one.init_client(task, small_federation(model).info(0), new_key(0)))
    }
    if sent & set(task.names("body")):
        assert set(task.names("buffer")) <= sent | kept


@cases("moving_buffers", models=("module",))
def test_running_statistics_follow_the_training_passes(algorithm, model):
    """A loss that returns no buffers, or a step that drops them, leaves the initial statistics in
    every model."""
    first = small_federation(model).common_task.model.init(new_key(3).common("model"))
    client = max(
        small_federation(model).roster.known,
        key=lambda client: len(small_federation(model).splits[client].train),
    )
    left = tree.paths(oracle(algorithm, model).of("train")[1, client][:2])  # state and upload
    leaves = [(path, path.rsplit("/", 1)[-1], leaf) for path, leaf in left.items()]
    for path, name, leaf in leaves:
        if name in small_federation(model).common_task.names("buffer"):
            own = (
                leaf.sum(0) if leaf.dim() > first[name].dim() else leaf
            )  # IFCA: the chosen model among zeros
            assert not torch.equal(own, first[name]), path


def test_buffers_are_averaged():
    trace = oracle("fedavg", "module")
    uploads = [output[1]["model"] for (round, _), output in trace.of("train").items() if round == 2]
    total = sum(entry.weight for entry in uploads)
    name = next(iter(small_federation("module").common_task.names("buffer")))
    expected = sum(entry.weight * entry.value[name] for entry in uploads) / total
    assert torch.allclose(trace.reports[-1].personal[0][name], expected, rtol=0, atol=1e-12)


def test_the_result_is_that_of_the_last_round(tmp_path, monkeypatch):
    """The best round on test data is no result."""
    monkeypatch.chdir(tmp_path)
    values = {
        "algorithm": {"name": "fedavg"},
        "data": {"clients": 5},
        "federation": {"rounds": 6},
        "training": {"lr": 1.0, "momentum": 0.9, "epochs": 1},
        "evaluation": {"every": 1},
    }
    result = run_experiment(make_config(values), out="one")
    by_round = [each["evaluations"] for each in read_run("one").rounds]
    means = [
        evaluation["metrics"]["accuracy"]["mean"]
        for line in by_round
        for evaluation in line
        if evaluation["point"] == "global"
    ]
    assert len(means) == 6 and means[-1] < max(means), (
        "the test needs rounds of which the last is not the best"
    )
    assert result["metrics"]["global"]["accuracy"]["mean"] == means[-1]


@cases("everybody", few=("fedbn", "ditto", "fedavg"))
def test_everybody_is_evaluated_after_aggregation(algorithm, model):
    """Tables of the sampled clients, before or after their training, are no personalized
    accuracy."""
    plan = Planned(cohorts={1: [3], 2: [6]})
    trace = run(build(algorithm), Reference(), small_federation(model), participation=plan)
    for report in trace.reports:
        found = {
            e.point: list(e.scores)
            for e in report.evaluations
            if e.group == "known" and e.test_set == "clients"
        }
        assert found["personalized"] == list(small_federation(model).roster.known)
        assert set(found.get("local", [])) <= {0, 1, 2, 3, 4, 6}
        assert found.get("global", found["personalized"]) == found["personalized"]


def test_a_client_that_was_not_drawn_gets_the_new_body():
    plan = Planned(cohorts={1: [3], 2: [6]})
    trace = run(build("fedper"), Reference(), small_federation("mlp"), participation=plan)
    sent = trace.of("train")[2, 6][1]["body"].value
    for name, value in sent.items():
        assert torch.allclose(trace.reports[-1].personal[4].model[name], value, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_not_degenerate(name):
    task = small_federation("module").common_task  # has normalization layers
    assert ALGORITHMS[name]().warnings(task) == []
