"""Random histories of a federation: answers that are lost, late or damaged, crashes, and damaged
checkpoints.

Clients drop out and come back; their answers come in any order, twice, late or damaged; the server
crashes, goes on from its last checkpoint, and finds it damaged. The result must be that of an
undisturbed run in which those clients took no part in those rounds: a committed round never
changes, and no answer counts twice or in another round.
"""

import os
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from federations import make_federation, perceptron
from fedtailor.algorithms import load_algorithm
from fedtailor.core import tree
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.checkpoint import Checkpoints, readable_modules
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.store import Store
from fedtailor.simulation.rounds import federate
from fedtailor.testing.runs import assert_same_bits

SEED = 3
SCHEDULE = Schedule(
    rounds=6,
    participation=Participation(plan="fixed", count=4, full_last_round=False),
    evaluate_every=1,
    personalized_every=2,
)
ALGORITHMS = ("scaffold", "fedrep", "pfedfda", "fedpac")


class CrashError(Exception):
    """The server's process ends."""


class Weather(NamedTuple):
    """What happens to the answers of a round."""

    lost: frozenset[int] = frozenset()
    """Clients whose answers are lost."""
    damaged: frozenset[int] = frozenset()
    """Clients whose answers are damaged."""
    twice: frozenset[int] = frozenset()
    """Clients whose answers come twice."""
    late: bool = False
    """Whether the answers of an earlier round come too."""
    order: int = 0
    """Seed of the order of arrival."""
    crash: int = 100
    """After how many answers the server crashes; if there are fewer, it does not."""


CLIENTS = 7
some = st.frozensets(st.integers(0, CLIENTS - 1), max_size=2)
weathers = st.builds(
    Weather,
    some,
    some,
    some,
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from([100, 100, 0, 2, 4]),
)


class Line:
    """Clients behind a line with the weather of a round."""

    def __init__(self, clients):
        self.clients = clients
        self.weather = Weather()
        self.earlier = []

    def __getattr__(self, name):
        return getattr(self.clients, name)

    def train(self, request, shared, clients, round, reduction=None):
        arriving = list(self.earlier) if self.weather.late else []
        held = replace(
            request, hold=True
        )  # they keep their new states until the server has accepted them
        answers = list(self.clients.train(held, shared, clients, round))
        self.earlier = answers
        for client, reply in answers:
            if client in self.weather.lost:
                continue
            if client in self.weather.damaged:
                reply = damaged(reply)
            copies = 2 if client in self.weather.twice else 1
            arriving += [(client, reply)] * copies
        random.Random(self.weather.order).shuffle(arriving)
        for number, answer in enumerate(arriving):
            if number == self.weather.crash:
                raise CrashError
            yield answer


def damaged(reply):
    """Return a reply with one value that is not a number."""
    name, entry = next(iter(reply.upload.items()))
    path = next(iter(tree.paths(entry.value)))
    value = tree.map(lambda leaf: leaf.clone(), entry.value)
    tree.paths(value)[path].view(-1)[0] = float("nan")
    return reply._replace(upload={**reply.upload, name: entry._replace(value=value)})


class Server:
    """The server's process, from its start to a crash."""

    def __init__(self, name, folder=None, events=()):
        self.algorithm = load_algorithm(name)(training=Training(lr=0.1, epochs=1, batch_size=5))
        federation = make_federation(perceptron())
        stores = {}
        state = None
        self.problems = []
        if folder is not None:
            modules = readable_modules(self.algorithm)
            stores = {
                what: Store(folder, what, modules=modules, in_memory=0)
                for what in ("states", "per_client")
            }
            self.checkpoints = Checkpoints(folder, stores, modules=modules)
            restored, self.problems = self.checkpoints.restore(lambda notes: "")
            state = None if restored is None else restored.state
        self.done = 0 if state is None else state.round
        again = [event for event in events if event["round"] > self.done]
        storage = {
            "trained": {},
            "personal": {},
            "states": {},
            "per_client": {},
            **stores,
        }.__getitem__
        clients = LocalClients(self.algorithm, federation, Reference(), seed=SEED, storage=storage)
        self.line = Line(clients)
        self.rounds = federate(
            self.algorithm,
            federation.roster,
            self.line,
            SCHEDULE,
            seed=SEED,
            resume=state,
            events=again,
        )


class Federation(RuleBasedStateMachine):
    """One history."""

    @initialize(name=st.sampled_from(ALGORITHMS))
    def begin(self, name):
        self.name = name
        self.folder = Path(tempfile.mkdtemp())
        self.weathers = {}
        self.committed = {}
        self.events = []
        self.server = Server(name, self.folder)

    def restart(self, allowed_loss):
        """Start a new process; it may have lost so many rounds."""
        self.server.rounds.close()
        done = self.server.done
        self.server = Server(self.name, self.folder, self.events)
        assert done - self.server.done <= allowed_loss
        return self.server.problems

    def is_between_rounds(self):
        return self.server.done < SCHEDULE.rounds

    @precondition(is_between_rounds)
    @rule(weather=weathers)
    def go_on(self, weather):
        """Run a round. The same answers are lost and damaged in one that is run again."""
        number = self.server.done + 1
        if number in self.committed:
            before = self.weathers[number]
            weather = weather._replace(lost=before.lost, damaged=before.damaged)
        self.server.line.weather = weather
        try:
            report = next(self.server.rounds)
        except CrashError:
            assert self.restart(0) == []
            return
        self.server.done = report.round
        self.server.checkpoints.save(report.state, {})
        if number in self.committed:
            assert_same_bits(report.state.server, self.committed[number].state.server)
            return
        self.weathers[number] = weather
        self.committed[number] = report
        self.events += [event for event in report.events if event["kind"] == "absent"]

    @rule()
    def crash(self):
        assert self.restart(0) == []

    @precondition(lambda self: len(list(self.folder.glob("*.json"))) == 2)
    @rule(
        place=st.floats(0, 1, exclude_max=True),
        suffix=st.sampled_from([".json", ".safetensors"]),
        cut=st.booleans(),
    )
    def crash_and_damage_the_last_checkpoint(self, place, suffix, cut):
        path = max(self.folder.glob(f"*{suffix}"))
        raw = bytearray(path.read_bytes())
        where = int(place * len(raw))
        if cut:
            del raw[where:]
        else:
            raw[where] ^= 16
        path.write_bytes(raw)
        (problem,) = self.restart(1)
        assert path.name in problem

    def teardown(self):
        if not hasattr(self, "folder"):
            return
        self.server.rounds.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        undisturbed = Server(self.name)
        for number, report in self.committed.items():
            weather = self.weathers[number]
            undisturbed.line.weather = Weather(lost=weather.lost | weather.damaged)
            expected = next(undisturbed.rounds)
            assert expected.round == number
            assert_same_bits(report.state.server, expected.state.server)
            found = [replace(evaluation, scores={}) for evaluation in report.evaluations]
            assert found == [replace(evaluation, scores={}) for evaluation in expected.evaluations]
            for client, personal in report.personal.items():
                assert_same_bits(personal, expected.personal[client])


def run_histories(count):
    run_state_machine_as_test(
        Federation, settings=settings(max_examples=count, stateful_step_count=15, deadline=None)
    )


def test_a_few_histories():
    run_histories(4)


@pytest.mark.slow
def test_many_histories():
    run_histories(1000 if os.environ.get("FEDTAILOR_FAULTS") == "full" else 100)
