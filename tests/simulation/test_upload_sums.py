"""Uploads that are reduced where clients run: the same bits, and everything else of a run as it is
otherwise."""

import random
from dataclasses import dataclass

import pytest
import torch

from contract.cases import ALGORITHMS, build, small_federation
from faults.bad_clients import FAULTS, BadClient
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core import tree
from fedtailor.core.reduction import PartialSum
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.core.task import Training
from fedtailor.simulation import clients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from finished_runs import assert_same_reports
from marks import quick
from simulation.in_places import InPlaces

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
SOME = Participation(plan="fixed", count=4, full_last_round=False)


def reports(algorithm, engine, federation, events=(), **options):
    schedule = Schedule(**{"rounds": 2, "evaluate_every": 1, "personalized_every": 1, **options})
    return list(simulate(algorithm, federation, engine, schedule, seed=3, events=events))


def assert_same_anywhere(algorithm, federation, **options):
    """Check that a run is the same wherever its clients run; return the engine that ran them in
    three places."""
    expected = reports(algorithm, Reference(), federation, **options)
    for places in (1, 3):
        engine = InPlaces(places)
        assert_same_reports(reports(algorithm, engine, federation, **options), expected)
    return engine


@pytest.mark.parametrize("algorithm", quick(ALGORITHMS, "fedavg", "scaffold"))
def test_every_algorithm_has_the_same_bits(algorithm):
    engine = assert_same_anywhere(build(algorithm), small_federation("mlp"), participation=SOME)
    assert (engine.num_sums > 0) == (engine.num_outputs > 0), (
        "all methods with uploads have something to add up"
    )


def test_a_place_sends_one_sum_for_neighbors():
    engine = InPlaces(1)
    reports(build("fedavg"), engine, small_federation("mlp"))
    assert engine.num_outputs == 12
    assert engine.num_sums == 2


@pytest.mark.parametrize("robust", quick(["norm_clip", "krum"], "krum"))
def test_what_the_server_needs_one_by_one_is_not_summed(robust):
    engine = assert_same_anywhere(build("fedavg"), small_federation("mlp"), robust=robust)
    assert engine.num_outputs == 0


def test_single_fields_come_with_sums_of_others():
    engine = assert_same_anywhere(build("fedpac"), small_federation("mlp"))
    assert engine.num_sums > 0


def test_clients_outside_the_cohort_are_in_no_sum():
    assert_same_anywhere(build("ditto"), small_federation("mlp"), participation=SOME, train="all")


def test_groups_of_clients_end_where_they_like(monkeypatch):
    monkeypatch.setattr(clients, "_LARGEST_GROUP", 4)
    engine = InPlaces(1)
    expected = reports(build("scaffold"), Reference(), small_federation("mlp"))
    assert_same_reports(reports(build("scaffold"), engine, small_federation("mlp")), expected)
    assert engine.num_sums > 2


@dataclass(frozen=True, kw_only=True)
class NotFinite(FedRep):
    """FedRep with clients whose uploads or states are not finite."""

    bad: tuple[int, ...] = ()
    what: str = "upload"

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        if int(key.client) not in self.bad:
            return update
        if self.what == "state":
            return update._replace(state=tree.map(lambda leaf: leaf * torch.nan, update.state))
        spoiled = {
            name: entry._replace(value=tree.map(lambda leaf: leaf * torch.nan, entry.value))
            for name, entry in update.upload.items()
        }
        return update._replace(upload=spoiled)


@dataclass(frozen=True, kw_only=True)
class Rough(FedRep):
    """FedRep with clients who fail, or send a wrong weight, or a state that is not finite, by
    chance."""

    salt: int = 0

    def init_client(self, task, info, key):
        if int(key.client) == self.salt % 7:
            raise ValueError("no start")
        return super().init_client(task, info, key)

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        luck = random.Random(
            f"{self.salt} {int(key.client)} {int(key.round)} {key.purpose}"
        ).random()
        if luck < 0.2:
            raise ValueError("bad luck")
        if luck < 0.4:
            heavier = {
                name: entry._replace(weight=entry.weight + 1)
                for name, entry in update.upload.items()
            }
            return update._replace(upload=heavier)
        if luck < 0.5:
            return update._replace(state=tree.map(lambda leaf: leaf * torch.nan, update.state))
        return update


def absence(round, client):
    return {
        "kind": "absent",
        "round": round,
        "client": client,
        "stage": "local_update",
        "reason": "late",
    }


@pytest.mark.parametrize("salt", quick(range(3), 1))
def test_whatever_happens_to_clients_happens_anywhere(salt, monkeypatch):
    monkeypatch.setattr(clients, "_LARGEST_GROUP", (512, 3, 4)[salt % 3])
    algorithm = Rough(training=TRAINING, salt=salt)
    options = [
        {},
        {"participation": Participation(min_clients=2)},
        {"participation": SOME, "train": "all"},
    ][salt % 3]
    events = [absence(1, salt % 5), absence(2, (salt + 3) % 7)] if salt % 2 else []
    expected = reports(algorithm, Reference(), small_federation("mlp"), events, **options)
    found = reports(
        algorithm, InPlaces(1 + salt % 3, seed=salt), small_federation("mlp"), events, **options
    )
    assert_same_reports(found, expected)
    assert any(event["kind"] == "failed" for report in found for event in report.events)


def test_an_upload_that_is_alone_comes_as_it_is():
    by_client = {1: [], 3: []}
    for places, found in by_client.items():
        engine = InPlaces(places)
        reports(build("fedavg"), engine, small_federation("mlp"), rounds=1)
        found += engine.sums
    assert [isinstance(each, PartialSum) for each in by_client[1]] == [True]
    assert {isinstance(each, PartialSum) for each in by_client[3]} == {True, False}


@pytest.mark.parametrize(
    ("what", "bad", "min_clients"),
    quick(
        [
            ("upload", (0, 1, 2, 3), 1),
            ("state", (3, 4), 2),
            ("upload", (3, 4), 2),
            ("state", (0, 1, 2, 3), 1),
        ],
        ("state", (3, 4), 2),
    ),
)
def test_who_is_refused_is_in_no_sum(what, bad, min_clients):
    algorithm = NotFinite(training=TRAINING, bad=bad, what=what)
    plan = Participation(min_clients=min_clients)
    assert_same_anywhere(algorithm, small_federation("mlp"), participation=plan)


KINDS = [kind for kind, fault in FAULTS.items() if "reference" not in fault.not_in]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_client_changes_nothing_for_others(kind):
    algorithm = BadClient(training=TRAINING, kind=kind)
    expected = reports(algorithm, Reference(), small_federation("mlp"), rounds=2)
    found = reports(algorithm, InPlaces(2), small_federation("mlp"), rounds=2)
    assert_same_reports(found, expected)


def test_nobody_is_usable():
    everybody = NotFinite(training=TRAINING, bad=tuple(range(7)))
    with pytest.raises(Exception) as expected:
        reports(everybody, Reference(), small_federation("mlp"))
    with pytest.raises(type(expected.value)) as found:
        reports(everybody, InPlaces(2), small_federation("mlp"))
    assert str(found.value) == str(expected.value)
