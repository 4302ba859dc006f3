"""The seams of the round loop: runs that stop and resume, and clients of other kinds than those of
this process."""

from dataclasses import replace

import pytest
import torch

from federations import make_federation, perceptron
from fedtailor.algorithms import load_algorithm
from fedtailor.core import tree
from fedtailor.core.federation import Roster
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import federate, simulate
from fedtailor.testing.runs import assert_same_bits
from finished_runs import assert_same_reports
from marks import quick

pytestmark = pytest.mark.usefixtures("float64")

SCHEDULE = Schedule(
    rounds=4,
    participation=Participation(plan="fixed", count=3, full_last_round=False),
    evaluate_every=1,
    personalized_every=2,
)
SEED = 3


def build(name):
    return load_algorithm(name)(training=Training(lr=0.1, epochs=1, batch_size=5))


def with_validation(federation):
    """Give every client with three training examples or more one of them for validation."""
    splits = [
        split._replace(train=split.train[:-1], val=split.train[-1:])
        if len(split.train) > 2
        else split
        for split in federation.splits
    ]
    return replace(federation, splits=splits)


@pytest.mark.parametrize(
    "name",
    quick(
        ["fedavg", "scaffold", "fedpac", "fedrep", "pfedfda", "knn_per", "local"],
        "scaffold",
    ),
)
def test_a_run_that_stops_after_two_rounds_resumes_with_the_same_bits(name):
    algorithm = build(name)
    federation = with_validation(make_federation(perceptron()))
    whole = list(simulate(algorithm, federation, Reference(), SCHEDULE, seed=SEED))

    clients = LocalClients(algorithm, federation, Reference(), seed=SEED)
    rounds = federate(algorithm, federation.roster, clients, SCHEDULE, seed=SEED)
    first = [next(rounds), next(rounds)]
    rounds.close()
    state = first[-1].state
    assert state.round == 2

    rest = list(
        federate(build(name), federation.roster, clients, SCHEDULE, seed=SEED, resume=state)
    )
    assert [report.round for report in rest] == [3, 4]
    assert_same_reports([*first, *rest], whole)


def test_a_state_does_not_change_when_the_run_continues():
    algorithm = build("fedavg")
    reports = simulate(algorithm, make_federation(perceptron()), Reference(), SCHEDULE, seed=SEED)
    state = next(reports).state
    server = tree.map(torch.clone, state.server)
    counters = replace(state, server=())
    list(reports)
    assert_same_bits(state.server, server)
    assert replace(state, server=()) == counters


def test_a_finished_run_has_nothing_to_resume():
    algorithm = build("fedavg")
    federation = make_federation(perceptron())
    clients = LocalClients(algorithm, federation, Reference(), seed=SEED)
    *_, last = federate(algorithm, federation.roster, clients, SCHEDULE, seed=SEED)
    assert (
        list(
            federate(algorithm, federation.roster, clients, SCHEDULE, seed=SEED, resume=last.state)
        )
        == []
    )


class Sites:
    """Clients each of which holds its own examples only, as real sites would."""

    def __init__(self, algorithm, federation):
        self.personal = {}
        self.sites = {}
        for client in range(len(federation.splits)):
            splits = [
                split
                if other == client
                else split._replace(train=split.train[:0], val=split.val[:0], test=split.test[:0])
                for other, split in enumerate(federation.splits)
            ]
            alone = replace(federation, splits=splits)
            self.sites[client] = LocalClients(algorithm, alone, Reference(), seed=SEED)

    def train(self, request, shared, clients, round, reduction=None):
        for client in clients:
            yield from self.sites[client].train(request, shared, [client], round)

    def accept(self, client):
        self.sites[client].accept(client)

    def update_per_client(self, values):
        for client, value in values.items():
            self.sites[client].update_per_client({client: value})

    def score(self, request, model, clients, round):
        for client in clients:
            yield from self.sites[client].score(request, model, [client], round)

    def score_complete(self, request, model, round):
        return None

    def personalize(self, request, shared, clients, round):
        for client in clients:
            yield from self.sites[client].personalize(request, shared, [client], round)
            self.personal.update(self.sites[client].personal)


@pytest.mark.parametrize("name", quick(["scaffold", "fedpac"], "scaffold"))
def test_clients_may_be_of_another_kind(name):
    algorithm = build(name)
    federation = with_validation(make_federation(perceptron()))
    expected = list(simulate(algorithm, federation, Reference(), SCHEDULE, seed=SEED))
    found = list(
        federate(algorithm, federation.roster, Sites(algorithm, federation), SCHEDULE, seed=SEED)
    )
    assert_same_reports(found, expected)


def test_a_roster_says_who_there_is_and_holds_no_data():
    federation = with_validation(make_federation(perceptron()))
    roster = federation.roster
    assert isinstance(roster, Roster)
    assert list(roster.num_train) == [len(split.train) for split in federation.splits]
    assert (roster.population, roster.known, roster.new) == (7, range(7), range(7, 9))
    assert roster.trainable_clients == [
        client for client in range(7) if len(federation.splits[client].train)
    ]
    assert roster.validates and not make_federation(perceptron()).roster.validates
    assert roster.task(3) is federation.common_task
    other = perceptron()
    mixed = replace(
        federation, client_tasks=[other] * 9, client_names=[f"site {n}" for n in range(9)]
    ).roster
    assert mixed.task(3) is other and mixed.names[2] == "site 2"
    assert not [value for value in vars(roster).values() if isinstance(value, torch.Tensor)]
