"""The server adds uploads up while they arrive, and keeps only those that it needs one by one."""

import random
import weakref
from dataclasses import replace

import pytest

from federations import make_federation, perceptron
from fedtailor.algorithms import load_algorithm
from fedtailor.core import tree
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import federate
from fedtailor.testing.runs import assert_same_bits
from marks import quick

CLIENTS = 6  # have training examples


class Watched:
    """Clients whose uploads are watched: how many of them are in memory when all have arrived, by
    field."""

    def __init__(self, clients, order):
        self.clients = clients
        self.order = order
        self.in_memory = []

    def __getattr__(self, name):
        return getattr(self.clients, name)

    def train(self, request, shared, clients, round, reduction=None):
        held = replace(request, hold=True)  # new states wait, as answers come in any order
        answers = list(self.clients.train(held, shared, clients, round))
        random.Random(self.order).shuffle(answers)
        seen = {}
        while answers:
            client, reply = answers.pop()
            upload = {name: copy_of(entry) for name, entry in reply.upload.items()}
            for name, entry in upload.items():
                seen.setdefault(name, []).append(weakref.ref(tree.leaves(entry.value)[0]))
            reply = reply._replace(upload=upload)
            yield client, reply
            del reply, upload, entry
        self.in_memory.append(
            {name: sum(each() is not None for each in refs) for name, refs in seen.items()}
        )


def copy_of(entry):
    return entry._replace(value=tree.map(lambda leaf: leaf.clone(), entry.value))


def last_report(algorithm, clients, federation, robust):
    schedule = Schedule(rounds=2, robust=robust)
    *_, report = federate(algorithm, federation.roster, clients, schedule, seed=3)
    return report


@pytest.mark.parametrize(
    "name, robust, kept",
    quick(
        [
            ("fedavg", "none", set()),
            ("fedavg", "norm_clip", {"model"}),
            ("fedavg", "median", {"model"}),
            ("fedavg", "krum", {"model"}),
            ("scaffold", "none", set()),
            ("pfedfda", "none", set()),
            ("fedpac", "none", {"head", "statistics"}),
        ],
        ("fedavg", "krum", {"model"}),
        ("scaffold", "none", set()),
        ("fedpac", "none", {"head", "statistics"}),
    ),
)
def test_only_what_is_needed_one_by_one_stays_in_memory(name, robust, kept, float64):
    federation = make_federation(perceptron())
    algorithm = load_algorithm(name)(training=Training(lr=0.1, epochs=1, batch_size=5))
    watched = Watched(LocalClients(algorithm, federation, Reference(), seed=3), order=1)
    report = last_report(algorithm, watched, federation, robust)
    assert len(watched.in_memory) == 2
    for in_memory in watched.in_memory:
        # the last answer is still at hand
        assert in_memory == {field: CLIENTS if field in kept else 1 for field in in_memory}
    expected = last_report(
        algorithm, LocalClients(algorithm, federation, Reference(), seed=3), federation, robust
    )
    assert_same_bits(report.state.server, expected.state.server)
    assert report.bytes_up == expected.bytes_up > 0
