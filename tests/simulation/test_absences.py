"""A client that gave no answer gives none when its round is run again, since nothing can compute
why."""

from dataclasses import replace

import pytest

from federations import make_federation, perceptron
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core.engine import Failure, NoAnswer
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import federate
from fedtailor.testing.runs import assert_same_bits, program_name

pytestmark = pytest.mark.usefixtures("float64")

SCHEDULE = Schedule(rounds=3, evaluate_every=1, personalized_every=1)
ALGORITHM = FedRep(training=Training(lr=0.1, epochs=1, batch_size=5), head_epochs=1)


class Unreachable(Reference):
    """Gives no answer of some clients; a sound engine if there are none."""

    def __init__(self, absences=()):
        self.absences = set(absences)
        self.ran = []

    def map(self, program, common, jobs):
        outputs = super().map(program, common, jobs)
        for position, job in enumerate(jobs):
            case = (int(common.round), program_name(program), job.client)
            self.ran.append(case)
            if case in self.absences:
                outputs[position] = Failure(
                    NoAnswer("no answer within 9 s (federation.client_timeout)")
                )
        return outputs


ABSENCES = [
    (2, "train", 0),
    (2, "train", 4),
    (2, "personalize", 3),
    (3, "train", 6),
    (3, "personalize", 7),
]


def rounds(engine, **options):
    federation = make_federation(perceptron())
    clients = LocalClients(ALGORITHM, federation, engine, seed=3)
    return clients, federate(ALGORITHM, federation.roster, clients, SCHEDULE, seed=3, **options)


def test_rounds_that_are_run_again_repeat_the_absences():
    _, whole = rounds(Unreachable(ABSENCES))
    whole = list(whole)
    events = [event for report in whole for event in report.events]
    found = [
        (event["round"], event["stage"], event["client"])
        for event in events
        if event["kind"] == "absent"
    ]
    assert found == [
        (2, "local_update", 0),
        (2, "local_update", 4),
        (2, "personalize", 3),
        (3, "local_update", 6),
        (3, "personalize", 7),
    ]
    assert events[1]["reason"] == "local_update: no answer within 9 s (federation.client_timeout)"

    engine = Unreachable()
    clients, first = rounds(engine)
    state = next(first).state
    federation = make_federation(perceptron())
    rest = list(
        federate(
            ALGORITHM, federation.roster, clients, SCHEDULE, seed=3, resume=state, events=events
        )
    )
    for found, expected in zip(rest, whole[1:], strict=True):
        assert (found.events, found.trained, found.metrics) == (
            expected.events,
            expected.trained,
            expected.metrics,
        )
        assert_same_bits(found.state.server, expected.state.server)
        assert_same_bits(dict_of(found.personal), dict_of(expected.personal))
    assert not set(engine.ran) & set(ABSENCES), "who gave no answer does not run again"


def dict_of(personal):
    return {str(client): model for client, model in personal.items()}


def test_without_their_events_the_rounds_are_others():
    _, whole = rounds(Unreachable(ABSENCES))
    _, sound = rounds(Unreachable())
    assert [report.trained for report in whole] != [report.trained for report in sound]


def test_the_work_of_an_absent_client_is_missing_and_nothing_else():
    _, found = rounds(Unreachable([(1, "train", 4)]))
    report = next(found)
    assert 4 in report.cohort and report.trained == [
        client for client in report.cohort if client != 4
    ]
    assert replace(report.state, server=()).participated == frozenset(report.trained)


class UnreachableInTheEnd(Reference):
    """Gives no answer of a client when the final models are made."""

    def __init__(self, client):
        self.client = client

    def map(self, program, common, jobs):
        outputs = super().map(program, common, jobs)
        makes_models = program_name(program) == "personalize"
        for position, job in enumerate(jobs):
            is_asked = makes_models and job.client == self.client
            if is_asked and program.keywords["request"].keep:
                outputs[position] = Failure(NoAnswer("no answer within 9 s"))
        return outputs


@pytest.mark.parametrize("choice", [{"select": "best"}, {"patience": 3}])
def test_an_absence_when_the_final_models_are_made_is_none_of_their_round(choice):
    schedule = replace(SCHEDULE, **choice)

    def run_with(engine, events=()):
        federation = make_federation(perceptron(), validation=True, seed=2)
        clients = LocalClients(ALGORITHM, federation, engine, seed=3)
        reports = federate(ALGORITHM, federation.roster, clients, schedule, seed=3, events=events)
        return list(reports)

    first = run_with(UnreachableInTheEnd(1))
    events = [event for report in first for event in report.events if event["kind"] == "absent"]
    assert [event["made_in"] for event in events] == [len(first)]

    again = run_with(Reference(), events)
    for report, before in zip(again, first, strict=True):
        scored = [list(evaluation.scores) for evaluation in report.evaluations]
        assert scored == [list(evaluation.scores) for evaluation in before.evaluations]
    assert again[-1].final.round == first[-1].final.round
    assert 1 not in again[-1].personal
    assert again[-1].personal.keys() == first[-1].personal.keys()
