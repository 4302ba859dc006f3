"""Runs with robust reductions: attacks that they stop, what is left out, and the same bits on every
engine."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import pytest
import torch

from contract.cases import build
from federations import Planned, make_federation, perceptron
from fedtailor import make_config
from fedtailor import run as run_experiment
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core import tree
from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range
from fedtailor.core.task import Training
from fedtailor.experiment.reader import read_run
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.runs import assert_close_runs, assert_same_bits, assert_same_runs, run
from marks import quick, slow

pytestmark = pytest.mark.usefixtures("float64")

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
FAULTY, ROUND = 4, 2
RULES = ("norm_clip", "median", "trimmed_mean", "krum")


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


@dataclass(frozen=True, kw_only=True)
class Attacked(FedRep):
    """FedRep with a client that multiplies what it uploads by a factor."""

    factor: float = 1.0
    since: Annotated[int, Range(ge=1)] = 1
    head_epochs: int = 1

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        body = update.upload["body"]
        hit = (key.client == FAULTY) & (key.round >= self.since)
        value = tree.map(lambda leaf: torch.where(hit, leaf * self.factor, leaf), body.value)
        return update._replace(upload={"body": body._replace(value=value)})


@pytest.mark.parametrize(
    "algorithm", quick(["fedavg", "pfedfda", "fedpac", "scaffold", "ifca"], "fedavg")
)
@pytest.mark.parametrize("rule", quick(RULES, "krum"))
def test_every_engine_gives_the_same(rule, algorithm, federation):
    """And no method knows of it."""
    one = build(algorithm)
    expected = run(one, Reference(), federation, robust=rule)
    assert_same_runs(expected, run(one, Workers(2), federation, robust=rule))
    assert_close_runs(expected, run(one, Batched(3), federation, robust=rule), tolerance=1e-10)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", quick([1e3, -10.0], 1e3))
def test_one_client_of_six_cannot_spoil_the_model(rule, factor):
    honest = attacked_run(rule, 1.0)
    attacked = attacked_run(rule, factor)
    spoiled = attacked_run("none", factor)
    assert (
        distance(attacked, honest) < 2
        and distance(attacked, honest) < distance(spoiled, honest) / 5
    )


@cache
def attacked_run(rule, factor):
    """Return a run with a rule, in which a client multiplies what it uploads."""
    algorithm = Attacked(training=TRAINING, factor=factor)
    return run(algorithm, Reference(), make_federation(perceptron()), robust=rule)


def distance(one, other):
    pairs = zip(*(tree.leaves(each.reports[-1].state.server) for each in (one, other)), strict=True)
    return max(float((first - second).abs().max()) for first, second in pairs)


@pytest.mark.parametrize(
    "engine",
    [Reference(), slow(Workers(2))],
    ids=lambda engine: engine.name,
)
@pytest.mark.parametrize("algorithm", quick(["fedrep", "scaffold"], "scaffold"))
def test_who_is_left_out_did_not_take_part(algorithm, engine, federation):
    one = build(algorithm)
    found = run(one, engine, federation, rounds=3, robust="krum")
    events = [
        [event for event in report.events if event["kind"] == "quarantine"]
        for report in found.reports
    ]
    assert [len(each) for each in events] == [1, 1, 1]  # a quarter of six, rounded down
    words = "krum: the upload is among the farthest from the others ("
    assert all(event["reason"].startswith(words) for each in events for event in each)
    left_out = {event["round"]: event["client"] for each in events for event in each}
    able = federation.roster.trainable_clients
    cohorts = {
        round: [client for client in able if client != left_out[round]] for round in left_out
    }
    absent = run(one, Reference(), federation, rounds=3, participation=Planned(cohorts=cohorts))
    for (round, program, client), output in outputs(absent).items():
        if (program, client) != ("train", left_out[round]):
            assert_same_bits(outputs(found)[round, program, client], output)
    for report, other in zip(found.reports, absent.reports, strict=True):
        assert (report.trained, report.metrics, report.steps) == (
            other.trained,
            other.metrics,
            other.steps,
        )
        assert_same_bits(report.state.server, other.state.server)


def outputs(trace):
    return {(round, program, client): output for round, program, client, output in trace.outputs}


@pytest.mark.parametrize("rule", ["median"])
def test_a_client_whose_upload_cannot_be_used_did_not_take_part(rule, federation):
    bad = Attacked(training=TRAINING, factor=float("1e300"), since=ROUND)
    found = run(bad, Reference(), federation, rounds=2, robust=rule)
    (event,) = found.reports[1].events
    assert (event["kind"], event["client"], event["field"]) == ("quarantine", FAULTY, "body")
    assert event["reason"] == "field 'body': 'hidden.weight' has values beyond 1e+30"
    able = federation.roster.trainable_clients
    plan = Planned(cohorts={ROUND: [client for client in able if client != FAULTY]})
    absent = run(
        Attacked(training=TRAINING),
        Reference(),
        federation,
        rounds=2,
        robust=rule,
        participation=plan,
    )
    assert_same_bits(found.reports[1].state.server, absent.reports[1].state.server)


def test_the_federation_must_have_enough_clients(federation):
    few = replace(federation, splits=[*federation.splits[:3]], num_new=0)
    with pytest.raises(ConfigError, match=r"fewer than 4 clients .* got 'krum'"):
        run(FedAvg(training=TRAINING), Reference(), few, robust="krum")


def test_a_small_cohort_is_drawn_again(federation):
    from fedtailor.core.schedule import Participation

    plan = Participation(plan="bernoulli", probability=0.3, full_last_round=False)
    found = run(
        FedAvg(training=TRAINING),
        Reference(),
        federation,
        rounds=4,
        robust="median",
        participation=plan,
    )
    assert all(len(report.trained) >= 3 for report in found.reports)


def test_the_command_runs_it_and_says_what_is_not_protected(tmp_path):
    values = {
        "algorithm": {"name": "scaffold"},
        "data": {"clients": 5},
        "federation": {"rounds": 2, "robust": "krum", "robust_share": 0.2},
        "training": {"epochs": 1},
    }
    result = run_experiment(make_config(values), out=tmp_path / "krum")
    assert result["events"]["quarantine"] == 2
    assert read_run(tmp_path / "krum").config["federation"]["robust_share"] == 0.2
    values["federation"] = {"rounds": 1, "robust": "median"}
    run_experiment(make_config(values), out=tmp_path / "median")
    notes = [
        event["text"] for event in read_run(tmp_path / "median").events if event["kind"] == "note"
    ]
    assert any(
        "'control' of Scaffold is not a mean, so one client can still corrupt it" in note
        for note in notes
    )
