"""Values at the server survive a broken client, evaluations go on without it, and total failure ends
the run. What single clients do wrong in training is in ``faults/test_bad_clients.py``."""

from dataclasses import dataclass, replace

import pytest
import torch

from federations import CLASSES, Planned, make_federation, perceptron
from fedtailor.algorithms import load_algorithm
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core import tree
from fedtailor.core.engine import Failure
from fedtailor.core.errors import ClientError
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task, Training
from fedtailor.models.networks import mlp
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.simulation.quarantine import problem_with_personal
from fedtailor.simulation.rounds import federate, simulate
from fedtailor.testing.runs import assert_same_bits, run
from marks import slow

pytestmark = [
    pytest.mark.usefixtures("float64"),
    # programs that fail for one client branch on data, so they cannot be stacked
    pytest.mark.filterwarnings("ignore:engine .batched. runs clients one by one:RuntimeWarning"),
]

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
FAULTY, ROUND = 4, 2
ENGINES = [
    Reference(),
    slow(Workers(2)),
    slow(Batched(3)),
]


class Broken(RuntimeError):
    """What a client's program raises."""


def spoiled(update, hit):
    """Return a client's update whose upload is not finite where ``hit`` is true."""

    def spoil(leaf):
        return torch.where(hit, torch.full_like(leaf, float("nan")), leaf)

    field = next(iter(update.upload))
    entry = update.upload[field]
    changed = entry._replace(value=tree.map(spoil, entry.value))
    return update._replace(upload={**update.upload, field: changed})


@dataclass(frozen=True, kw_only=True)
class FaultyPAC(FedPAC):
    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        return spoiled(update, (key.client == FAULTY) & (key.round == ROUND))


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


def without_faulty():
    return Planned(cohorts={ROUND: [0, 1, 2, 3, 5, 6]})


def numbers(record):
    """Return every client's outputs, but for what the faulty client trained in the faulty round."""
    return {
        f"{round} {name} {client}": output
        for round, name, client, output in record.outputs
        if (round, name, client) != (ROUND, "train", FAULTY)
    }


@pytest.mark.parametrize("engine", ENGINES[:2], ids=lambda engine: engine.name)
def test_values_at_the_server_are_kept(federation, engine):
    broken = run(FaultyPAC(training=TRAINING), engine, federation, rounds=3)
    absent = run(
        FedPAC(training=TRAINING), engine, federation, rounds=3, participation=without_faulty()
    )
    assert_same_bits(numbers(broken), numbers(absent))


@dataclass(frozen=True, kw_only=True)
class AllFail(FedRep):
    def local_update(self, task, download, state, data, key):
        if bool(key.round == ROUND):
            raise Broken("no luck")
        return super().local_update(task, download, state, data, key)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_all_failing_ends_the_run(federation, engine):
    rounds = simulate(AllFail(training=TRAINING), federation, engine, Schedule(rounds=3), seed=1)
    next(rounds)
    with pytest.raises(
        ClientError, match="client 0, local_update, round 2: every client failed"
    ) as caught:
        next(rounds)
    error = caught.value
    assert "Broken: no luck" in error.message
    assert (error.round, error.client, error.stage, error.exit_code) == (2, 0, "local_update", 5)
    assert isinstance(error.__cause__, Broken)


@dataclass(frozen=True, kw_only=True)
class FailsLater(FedRep):
    all: bool = False

    def personalize(self, task, download, state, data, key):
        if self.all or bool(key.client == FAULTY):
            raise Broken("no luck")
        return super().personalize(task, download, state, data, key)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_client_that_fails_in_evaluation_is_left_out_and_named(federation, engine):
    report = run(FailsLater(training=TRAINING), engine, federation, rounds=1).reports[0]
    personalized = next(
        e for e in report.evaluations if (e.point, e.group) == ("personalized", "known")
    )
    assert list(personalized.scores) == [0, 1, 2, 3, 5, 6]
    assert sorted(report.personal) == [0, 1, 2, 3, 5, 6, 7, 8]
    event = {
        "kind": "failed",
        "round": 1,
        "client": FAULTY,
        "reason": "personalize: Broken: no luck",
    }
    assert report.events[1:] == [event]


def test_an_evaluation_that_fails_for_all_ends_the_run(federation):
    with pytest.raises(
        ClientError, match="client 0, personalize, round 1: every client failed"
    ) as caught:
        run(FailsLater(training=TRAINING, all=True), Reference(), federation, rounds=1)
    assert isinstance(caught.value.__cause__, Broken) and caught.value.stage == "personalize"


@dataclass(frozen=True, kw_only=True)
class Diverges(FedRep):
    def personalize(self, task, download, state, data, key):
        tuned = super().personalize(task, download, state, data, key)
        model = {
            name: torch.where(key.client == FAULTY, float("nan"), value)
            for name, value in tuned.model.items()
        }
        return tuned._replace(model=model)


@pytest.mark.parametrize("engine", [Reference(), Batched(3)], ids=lambda engine: engine.name)
def test_a_model_that_is_not_finite_is_scored_named_and_not_kept(federation, engine):
    report = run(Diverges(training=TRAINING), engine, federation, rounds=1).reports[0]
    personalized = next(
        e for e in report.evaluations if (e.point, e.group) == ("personalized", "known")
    )
    assert (
        list(personalized.scores) == list(range(7))
        and personalized.scores[FAULTY].class_correct.sum() == 0
    )
    assert sorted(report.personal) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [(e["kind"], e["client"]) for e in report.events] == [("skipped", 5), ("failed", FAULTY)]
    assert "not finite" in report.events[1]["reason"]


class NoCompletePart(LocalClients):
    def score_complete(self, request, model, round):
        return Failure(Broken("no luck"))


def test_a_failure_on_the_complete_test_part_is_named(federation):
    clients = NoCompletePart(FedAvg(training=TRAINING), federation, Reference(), seed=1)
    report = next(
        federate(clients.algorithm, federation.roster, clients, Schedule(rounds=1), seed=1)
    )
    reason = "evaluate on the complete test part: Broken: no luck"
    assert report.events[1:] == [{"kind": "failed", "round": 1, "client": -1, "reason": reason}]


@pytest.mark.parametrize("name", ["fedcgs", "fed3r", "fedncm", "fedcof", "one_shot_fda"])
def test_models_that_rule_out_a_class_that_nobody_has_are_kept(name):
    whole = make_federation(perceptron())
    task = Task(mlp((4,), CLASSES + 1, hidden=5), CLASSES + 1, (4,))
    trace = run(load_algorithm(name)(), Reference(), replace(whole, common_task=task), rounds=1)
    (report,) = trace.reports
    assert sorted(report.personal) == list(range(len(whole.splits)))
    assert [event for event in report.events if event["kind"] == "failed"] == []


def test_a_model_may_hold_minus_infinity_and_nothing_else_that_is_not_finite():
    numbers = {"w": torch.tensor([1.0, -torch.inf]), "n": torch.tensor(3), "e": torch.empty(0)}
    assert problem_with_personal(numbers) == ""
    for wrong in (torch.nan, torch.inf):
        for dtype in (torch.float32, torch.float16):
            values = torch.tensor([1.0, wrong, -torch.inf], dtype=dtype)
            assert "not finite" in problem_with_personal({**numbers, "w": values})
