"""A round in which too few clients did usable work is attempted again, with other random
numbers."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import torch

from federations import Planned, make_federation, perceptron
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.algorithms.local import Local
from fedtailor.algorithms.scaffold import Scaffold
from fedtailor.core import tree
from fedtailor.core.errors import ClientError, RunError
from fedtailor.core.options import Range
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.runs import assert_same_bits, run
from marks import quick, slow

pytestmark = pytest.mark.usefixtures("float64")

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
FOUR = Participation(min_clients=4)
ROUND = 2
TRAINABLE = [0, 1, 2, 3, 4, 6]


def attempt_of(key):
    """Return which attempt at a round a key belongs to."""
    train = (
        new_key(0)._replace(purpose=0).fold("train")
    )  # purposes do not depend on seed, round or client
    purposes = [
        train.purpose,
        *(train.fold(f"attempt/{number}").purpose for number in range(1, 25)),
    ]
    return purposes.index(key.purpose)


class Unlucky:
    """A method some of whose clients send numbers that are not finite in the first attempts at a
    round."""

    attempts: Annotated[int, Range(ge=0)] = 2
    """How many attempts fail."""
    clients: tuple[int, ...] = tuple(TRAINABLE)
    until: int = ROUND

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        unlucky = ROUND <= int(key.round) <= self.until and int(key.client) in self.clients
        if unlucky and attempt_of(key) < self.attempts:
            name, entry = next(iter(update.upload.items()))
            value = tree.map(lambda leaf: leaf * torch.nan, entry.value)
            return update._replace(upload={**update.upload, name: entry._replace(value=value)})
        return update


@dataclass(frozen=True, kw_only=True)
class UnluckyRep(Unlucky, FedRep):
    attempts: Annotated[int, Range(ge=0)] = 2
    clients: tuple[int, ...] = tuple(TRAINABLE)
    until: int = ROUND


@dataclass(frozen=True, kw_only=True)
class UnluckyScaffold(Unlucky, Scaffold):
    attempts: Annotated[int, Range(ge=0)] = 2
    clients: tuple[int, ...] = tuple(TRAINABLE)
    until: int = ROUND


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


def options(**fields):
    return {"training": TRAINING, **fields}


@pytest.mark.parametrize(
    "engine",
    [Reference(), slow(Workers(2))],
    ids=lambda engine: engine.name,
)
def test_another_attempt_succeeds(federation, engine):
    trace = run(UnluckyRep(**options(head_epochs=1)), engine, federation, rounds=3)
    report = trace.reports[1]
    kinds = [(event["kind"], event.get("attempt", 0)) for event in report.events]
    assert kinds == [
        *[("quarantine", 0)] * 6,
        ("repeated", 0),
        *[("quarantine", 1)] * 6,
        ("repeated", 1),
    ]
    assert report.events[6]["reason"] == "none of 6 clients did usable work: the round is repeated"
    assert (report.attempt, report.trained) == (2, TRAINABLE)
    assert [each.events for each in (trace.reports[0], trace.reports[2])] == [
        trace.reports[0].events[:1],
        [],
    ]
    sound = run(FedRep(**options(head_epochs=1)), Reference(), federation, rounds=3)
    assert (
        report.bytes_down == 3 * sound.reports[1].bytes_down
        and report.bytes_up == sound.reports[1].bytes_up
    )
    assert report.metrics["loss"] != sound.reports[1].metrics["loss"], "other batches"
    assert_same_bits(trace.reports[0].state.server, sound.reports[0].state.server)


def test_every_attempt_draws_another_cohort(federation):
    plan = Participation(plan="fixed", count=2, full_last_round=False)
    cohorts = [plan.cohort(1, 5, 9, 40, attempt).tolist() for attempt in range(4)]
    assert len({tuple(cohort) for cohort in cohorts}) == 4
    assert plan.cohort(1, 5, 9, 40).tolist() == cohorts[0]
    lucky = {4, 6}
    seed = next(
        seed for seed in range(99) if not lucky & set(plan.cohort(seed, ROUND, 9, 7).tolist())
    )
    unlucky = tuple(client for client in TRAINABLE if client not in lucky)
    one = UnluckyRep(**options(clients=unlucky, attempts=99))
    report = run(one, Reference(), federation, participation=plan, seed=seed, rounds=2).reports[1]
    assert report.attempt > 0 and report.cohort == [
        client
        for client in plan.cohort(seed, ROUND, 9, 7, report.attempt).tolist()
        if client in TRAINABLE
    ]
    assert lucky & set(report.trained)


@pytest.mark.parametrize("algorithm", quick([UnluckyRep, UnluckyScaffold], UnluckyScaffold))
def test_work_of_an_attempt_that_fails_leaves_nothing_behind(federation, algorithm):
    """Two of six are enough for nothing: they are as they were, as if nobody had succeeded."""
    some, nobody = (
        run(
            algorithm(**options(attempts=1, clients=clients)),
            Reference(),
            federation,
            rounds=3,
            participation=FOUR,
        )
        for clients in ((0, 1, 2, 3), tuple(TRAINABLE))
    )
    assert (
        some.reports[1]
        .events[4]["reason"]
        .startswith("only 2 of 6 clients did usable work; 4 are needed")
    )
    assert some.reports[1].attempt == nobody.reports[1].attempt == 1
    for one, other in zip(some.reports, nobody.reports, strict=True):
        assert_same_bits(one.state.server, other.state.server)
        assert one.state.client_rounds == other.state.client_rounds
    for client, personal in some.reports[-1].personal.items():
        assert_same_bits(personal, nobody.reports[-1].personal[client])


def test_where_everybody_trains_a_repeated_round_counts_once(federation):
    plan = Planned(cohorts={ROUND: [2, 3]})
    trace = run(
        UnluckyRep(**options(clients=(2, 3))),
        Reference(),
        federation,
        participation=plan,
        train="all",
    )
    whole = run(UnluckyRep(**options()), Reference(), federation, participation=plan, train="all")
    assert trace.reports[1].attempt == whole.reports[1].attempt == 2
    for client, personal in trace.reports[-1].personal.items():
        assert_same_bits(personal, whole.reports[-1].personal[client])
    assert trace.reports[-1].state.client_rounds == 12


def test_a_method_that_uploads_nothing_needs_one_client_that_trains(federation):
    plan = Planned(cohorts={2: [5]})  # has no examples
    trace = run(Local(**options()), Reference(), federation, participation=plan)
    assert [report.trained for report in trace.reports] == [TRAINABLE, TRAINABLE]


@dataclass(frozen=True, kw_only=True)
class Raises(FedRep):
    """Every client raises in some rounds."""

    since: int = ROUND

    def local_update(self, task, download, state, data, key):
        if int(key.round) >= self.since:
            raise ValueError("no luck")
        return super().local_update(task, download, state, data, key)


def rounds_of(algorithm, federation, **fields):
    return simulate(algorithm, federation, Reference(), Schedule(rounds=5, **fields), seed=1)


def test_a_run_stops_after_three_attempts_in_which_everybody_failed(federation):
    rounds = rounds_of(UnluckyRep(**options(attempts=99)), federation)
    next(rounds)
    words = "round 2: in 3 attempts, none of 6 clients did usable work; client 0: field 'body'"
    with pytest.raises(RunError, match=words):
        next(rounds)


def test_a_run_stops_after_three_attempts_in_which_too_few_succeeded(federation):
    plan = Participation(min_clients=5)
    rounds = rounds_of(
        UnluckyRep(**options(attempts=99, clients=(0, 2))), federation, participation=plan
    )
    next(rounds)
    words = "round 2: in 3 attempts, only 4 of 6 clients did usable work; 5 are needed; client 0"
    with pytest.raises(RunError, match=words):
        next(rounds)


def test_a_run_stops_after_twenty_attempts_whoever_was_asked(federation):
    plan = Planned(cohorts={ROUND: [0]})
    rounds = rounds_of(UnluckyRep(**options(attempts=99)), federation, participation=plan)
    next(rounds)
    with pytest.raises(
        RunError, match="in 20 attempts, the only client did no usable work; client 0"
    ):
        next(rounds)


def test_a_run_in_which_nobody_ever_succeeds_stops_at_once(federation):
    with pytest.raises(ClientError, match="client 0, local_update, round 1: every client failed"):
        list(rounds_of(Raises(**options(since=1)), federation))


def test_one_client_alone_that_raises_ends_no_run(federation):
    """Where only that client was drawn, others are drawn in the next attempt."""
    plan = Participation(plan="fixed", count=1, full_last_round=False)

    @dataclass(frozen=True, kw_only=True)
    class Fails(FedRep):
        def local_update(self, task, download, state, data, key):
            if int(key.client) in (1, 4):
                raise ValueError("no luck")
            return super().local_update(task, download, state, data, key)

    reports = list(
        simulate(
            Fails(**options()),
            federation,
            Reference(),
            Schedule(rounds=12, participation=plan),
            seed=1,
        )
    )
    failed = {
        event["client"]
        for report in reports
        for event in report.events
        if event["kind"] == "failed"
    }
    assert (
        failed
        and failed <= {1, 4}
        and all(report.trained or not report.cohort for report in reports)
    )
