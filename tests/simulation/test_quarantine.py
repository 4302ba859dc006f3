"""One broken client never spoils the others: its work is left out, its state is rolled back, and it
is named."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch

from federations import Planned, make_federation, perceptron
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core import tree
from fedtailor.core.engine import Failure
from fedtailor.core.errors import ClientError
from fedtailor.core.message import Each, Mean
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.simulation.rounds import federate, simulate
from fedtailor.testing.runs import assert_same_bits, run

pytestmark = [
    pytest.mark.usefixtures("float64"),
    # programs that fail for one client branch on data, so they cannot be stacked
    pytest.mark.filterwarnings("ignore:engine .batched. runs clients one by one:RuntimeWarning"),
]

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
FAULTY, ROUND = 4, 2


class Broken(RuntimeError):
    """What a client's program raises."""


def spoiled(update, fault, hit):
    """Return a client's update with a fault where ``hit`` is true."""

    def where(value, leaf):
        return torch.where(hit, torch.full_like(leaf, value), leaf)

    field = next(iter(update.upload))
    entry = update.upload[field]
    if fault == "nan upload":
        changed = entry._replace(
            value=tree.map(lambda leaf: where(float("nan"), leaf), entry.value)
        )
    elif fault == "negative weight":
        changed = entry._replace(weight=where(-1.0, entry.weight))
    elif fault == "nan state":
        state = tree.map(
            lambda leaf: where(float("nan"), leaf) if leaf.is_floating_point() else leaf,
            update.state,
        )
        return update._replace(state=state)
    elif fault == "raise" and bool(hit):
        raise Broken("no luck")
    elif fault == "field" and bool(hit):
        return update._replace(upload={})
    elif fault == "kind" and bool(hit):
        changed = Each(entry.value)
    elif fault == "shape" and bool(hit):
        changed = Mean(tree.map(lambda leaf: leaf[None], entry.value), entry.weight)
    else:
        return update
    return update._replace(upload={**update.upload, field: changed})


@dataclass(frozen=True, kw_only=True)
class FaultyRep(FedRep):
    fault: Literal[
        "nan upload", "negative weight", "nan state", "raise", "field", "kind", "shape"
    ] = "raise"

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        return spoiled(update, self.fault, (key.client == FAULTY) & (key.round == ROUND))


@dataclass(frozen=True, kw_only=True)
class FaultyPAC(FedPAC):
    fault: Literal["nan upload", "raise"] = "nan upload"

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        return spoiled(update, self.fault, (key.client == FAULTY) & (key.round == ROUND))


CASES = {
    "nan upload": (
        FaultyRep,
        FedRep,
        "field 'body': 'hidden.weight' has values that are not finite",
    ),
    "negative weight": (FaultyRep, FedRep, "field 'body': weight is negative or not finite"),
    "nan state": (FaultyRep, FedRep, "client state: values that are not finite"),
    "raise": (FaultyRep, FedRep, "local_update: Broken: no luck"),
    "field": (FaultyRep, FedRep, "the upload has fields [] instead of ['body']"),
    "kind": (FaultyRep, FedRep, "field 'body': sent as Each, declared as mean"),
    "shape": (
        FaultyRep,
        FedRep,
        "field 'body': 'hidden.weight' has shape (1, 5, 4) instead of (5, 4)",
    ),
}


def event_of(fault):
    """Return the event that a fault must give."""
    _, _, reason = CASES[fault]
    kind = "failed" if fault == "raise" else "quarantine"
    event = {"kind": kind, "round": ROUND, "client": FAULTY, "reason": reason}
    return {**event, "field": "body"} if reason.startswith("field 'body'") else event


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


@pytest.mark.parametrize("engine", [Reference(), Workers(2)], ids=lambda engine: engine.name)
@pytest.mark.parametrize("fault", CASES)
def test_the_result_is_that_of_the_cohort_without_the_client(federation, fault, engine):
    faulty, sound, _ = CASES[fault]
    broken = run(faulty(training=TRAINING, fault=fault), engine, federation, rounds=3)
    absent = run(
        sound(training=TRAINING), engine, federation, rounds=3, participation=without_faulty()
    )
    assert_same_bits(numbers(broken), numbers(absent))
    assert [report.events for report in broken.reports][1:] == [[event_of(fault)], []]
    one, two = broken.reports[1], absent.reports[1]
    assert FAULTY in one.cohort and FAULTY not in two.cohort
    assert (one.bytes_up, one.steps, one.metrics) == (two.bytes_up, two.steps, two.metrics)
    assert [e.ids for e in one.evaluations] == [e.ids for e in two.evaluations]


@pytest.mark.parametrize("engine", [Reference(), Workers(2)], ids=lambda engine: engine.name)
def test_values_at_the_server_are_kept(federation, engine):
    broken = run(FaultyPAC(training=TRAINING), engine, federation, rounds=3)
    absent = run(
        FedPAC(training=TRAINING), engine, federation, rounds=3, participation=without_faulty()
    )
    assert_same_bits(numbers(broken), numbers(absent))


@pytest.mark.parametrize("fault", ["nan upload", "raise", "shape"])
def test_stacked_clients_are_not_spoiled(federation, fault):
    """The whole stack fails if one client's program raises; then only that client may be lost."""
    faulty, _, _ = CASES[fault]
    expected = run(faulty(training=TRAINING, fault=fault), Reference(), federation, rounds=3)
    found = run(faulty(training=TRAINING, fault=fault), Batched(3), federation, rounds=3)
    assert found.reports[1].events == expected.reports[1].events == [event_of(fault)]
    for client, personal in expected.reports[-1].personal.items():
        for path, leaf in tree.paths(personal).items():
            assert torch.allclose(
                leaf, tree.paths(found.reports[-1].personal[client])[path], rtol=0, atol=1e-12
            )


NONSENSE = {
    "nothing": lambda update: None,
    "no state": lambda update: update._replace(state=None),
    "no upload": lambda update: update._replace(upload=None),
    "a metric per class": lambda update: update._replace(metrics={"loss": torch.zeros(3)}),
    "a metric that is no number": lambda update: update._replace(metrics={"loss": "low"}),
}


@dataclass(frozen=True, kw_only=True)
class Nonsense(FedRep):
    kind: Literal[
        "nothing", "no state", "no upload", "a metric per class", "a metric that is no number"
    ]

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        return (
            NONSENSE[self.kind](update)
            if bool((key.client == FAULTY) & (key.round == ROUND))
            else update
        )


@pytest.mark.parametrize("kind", NONSENSE)
def test_whatever_a_client_returns_only_that_client_is_lost(federation, kind):
    broken = run(Nonsense(training=TRAINING, kind=kind), Reference(), federation, rounds=3)
    absent = run(
        FedRep(training=TRAINING), Reference(), federation, rounds=3, participation=without_faulty()
    )
    events = broken.reports[1].events
    expected = "failed" if kind == "nothing" else "quarantine"
    assert [(event["kind"], event["client"]) for event in events] == [
        (expected, FAULTY)
    ] and events[0]["reason"]
    for client, personal in absent.reports[-1].personal.items():
        assert_same_bits(broken.reports[-1].personal[client], personal)


@dataclass(frozen=True, kw_only=True)
class AllFail(FedRep):
    fault: Literal["nan upload", "raise"] = "raise"

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        return spoiled(update, self.fault, key.round == ROUND)


@pytest.mark.parametrize(
    "engine", [Reference(), Workers(2), Batched(3)], ids=lambda engine: engine.name
)
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


@pytest.mark.parametrize(
    "engine", [Reference(), Workers(2), Batched(3)], ids=lambda engine: engine.name
)
def test_a_client_that_fails_in_evaluation_is_left_out_and_named(federation, engine):
    report = run(FailsLater(training=TRAINING), engine, federation, rounds=1).reports[0]
    personalized = next(
        e for e in report.evaluations if (e.point, e.group) == ("personalized", "known")
    )
    assert personalized.ids == [0, 1, 2, 3, 5, 6] and len(personalized.scores) == 6
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
        personalized.ids == list(range(7)) and personalized.scores[FAULTY].class_correct.sum() == 0
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
