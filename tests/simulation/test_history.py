"""Clients that come and go: who is asked, what the server keeps, and the same bits on every way."""

from dataclasses import replace

import pytest
import torch

from federations import SIZES, make_federation, perceptron
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.algorithms.feddyn import FedDyn
from fedtailor.algorithms.fedfomo import FedFomo
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.algorithms.pfedhn import PFedHN
from fedtailor.algorithms.scaffold import Scaffold
from fedtailor.core.errors import ConfigError
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import federate
from fedtailor.testing.runs import assert_same_bits
from marks import quick

pytestmark = pytest.mark.usefixtures("float64")

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
POPULATION = len(SIZES)
LAST = POPULATION - 1
HISTORY = ("2 pause 0", f"3 join {LAST}", "4 resume 0", "4 leave 2")


def schedule(history=HISTORY, **options):
    options = {"rounds": 5, "evaluate_every": 1, "personalized_every": 2, **options}
    return Schedule(history=history, **options)


def clients_of(algorithm):
    """Return clients that have not done anything yet."""
    return LocalClients(algorithm, make_federation(perceptron()), Reference(), seed=3)


def run(algorithm, history=HISTORY, **options):
    """Return the clients of a run, and the reports of its rounds."""
    clients = clients_of(algorithm)
    federation = clients.federation
    reports = federate(algorithm, federation.roster, clients, schedule(history, **options), seed=3)
    return clients, list(reports)


def test_who_is_asked_in_which_round():
    clients, reports = run(FedRep(training=TRAINING))
    everybody = set(clients.federation.roster.trainable_clients)
    assert [everybody - set(report.cohort) for report in reports] == [
        {LAST},
        {0, LAST},
        {0},
        {2},
        {2},
    ]
    for report in reports:
        for evaluation in report.evaluations:
            if evaluation.group == "known":
                assert set(evaluation.scores) & everybody == set(report.cohort)

    events = [event for report in reports for event in report.events if event["kind"] != "skipped"]
    assert [(event["kind"], event["round"], event["client"]) for event in events] == [
        ("paused", 2, 0),
        ("joined", 3, LAST),
        ("resumed", 4, 0),
        ("left", 4, 2),
    ]
    assert set(reports[-1].personal) >= everybody - {2} and 2 not in reports[-1].personal


def test_states_of_those_who_are_away_stay_as_they_were():
    away = ("3 pause 1",)
    clients, _ = run(FedRep(training=TRAINING), away)
    short, _ = run(FedRep(training=TRAINING), ())
    stopped = clients_of(FedRep(training=TRAINING))
    until = replace(schedule(()), rounds=2)
    list(federate(FedRep(training=TRAINING), stopped.federation.roster, stopped, until, seed=3))
    assert_same_bits(clients.states[1], stopped.states[1])
    with pytest.raises(AssertionError):
        assert_same_bits(clients.states[1], short.states[1])


@pytest.mark.parametrize(
    "algorithm",
    [Scaffold(training=TRAINING), FedFomo(training=TRAINING), PFedHN(training=TRAINING)],
)
@pytest.mark.parametrize("stop", quick([1, 2, 3], 2))
def test_a_run_that_is_resumed_has_the_same_bits(algorithm, stop):
    whole_clients, whole = run(algorithm)
    clients = clients_of(algorithm)
    rounds = federate(algorithm, clients.federation.roster, clients, schedule(), seed=3)
    state = [next(rounds) for _ in range(stop)][-1].state
    rest = federate(algorithm, clients.federation.roster, clients, schedule(), seed=3, resume=state)
    last = list(rest)[-1]
    assert_same_bits(last.state.server, whole[-1].state.server)
    assert_same_bits(dict(clients.states), dict(whole_clients.states))
    assert last.events == whole[-1].events


@pytest.mark.parametrize(
    "name",
    quick(sorted(ALGORITHMS), "fedpac"),
)
def test_every_method_takes_in_clients(name):
    algorithm = load_algorithm(name)(training=TRAINING)
    _, reports = run(algorithm)
    events = [event["kind"] for report in reports for event in report.events]
    assert sorted(set(events) - {"skipped"}) == ["joined", "left", "paused", "resumed"]
    assert LAST in reports[2].trained and LAST not in reports[1].trained


def mean_over(clients, part, count):
    """Return the mean of a part of all states, where those without a state have zeros."""
    total = {}
    for state in clients.states.values():
        for name, value in getattr(state, part).items():
            total[name] = total.get(name, 0.0) + value / count
    return total


@pytest.mark.parametrize(
    ("algorithm", "server", "client"),
    [
        (Scaffold(training=TRAINING), "control", "control"),
        (FedDyn(training=TRAINING), "gradient", "gradient"),
    ],
)
def test_what_the_server_keeps_stays_a_mean_over_all_clients(algorithm, server, client):
    joins = (f"2 join {LAST - 1}", f"4 join {LAST}", "5 pause 1")
    clients, reports = run(algorithm, joins)
    kept = getattr(reports[-1].state.server, server)
    expected = mean_over(clients, client, POPULATION)
    assert expected, "clients keep something"
    for name, value in kept.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)


def test_rows_of_those_who_join():
    _, reports = run(PFedHN(training=TRAINING))
    sizes = [len(report.state.server.learned.embeddings) for report in reports]
    assert sizes == [LAST, LAST, POPULATION, POPULATION, POPULATION]
    _, reports = run(FedFomo(training=TRAINING))
    assert reports[1].state.server.affinity.shape == (LAST, LAST)
    assert reports[2].state.server.affinity.shape == (POPULATION, POPULATION)


@pytest.mark.parametrize(
    ("algorithm", "options", "text"),
    [
        (Scaffold(), {"history": ("2 pause nobody",)}, "unknown client 'nobody'"),
        (Scaffold(), {"history": ("2 join 0",)}, "in the order of their numbers"),
        (Scaffold(), {"rounds": 3}, "of rounds up to 3"),
        (Scaffold(), {"select": "best"}, "an earlier round has no state"),
    ],
)
def test_histories_that_cannot_be_are_refused(algorithm, options, text):
    with pytest.raises(ConfigError, match=text):
        run(algorithm, **{"history": HISTORY, **options})


def test_too_few_clients_are_refused():
    everybody = tuple(f"3 leave {client}" for client in range(POPULATION))
    with pytest.raises(ConfigError, match="such that 1 or more clients train in every round"):
        run(Scaffold(), everybody)


def test_too_few_clients_before_the_first_change_are_refused():
    late = tuple(f"3 join {client}" for client in range(POPULATION))
    with pytest.raises(ConfigError, match="train in every round, got '0 in round 1'"):
        run(Scaffold(), late)


def test_a_method_with_rows_needs_room_for_those_who_join():
    class Rows(FedRep):
        def init_federation(self, task, population, key):
            return self.init_server(task, key)

    assert Scaffold().admits and FedRep().admits and PFedHN().admits
    with pytest.raises(ConfigError, match="keeps something of every client"):
        run(Rows(training=TRAINING))


def test_noise_refuses_clients_that_join():
    clients = clients_of(Scaffold())
    with pytest.raises(ConfigError, match="fixed before its first round"):
        federate(
            Scaffold(),
            clients.federation.roster,
            clients,
            schedule(),
            seed=3,
            privacy=PrivacyOptions(secure_sums=True),
        ).__next__()
