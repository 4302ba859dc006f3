"""Every method of an algorithm receives a task with the algorithm's training options."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from federations import make_federation, perceptron
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate


@dataclass(frozen=True, kw_only=True)
class Watched(FedAvg):
    rates: ClassVar[dict[str, set[float]]] = {}

    def note(self, method, task):
        self.rates.setdefault(method, set()).add(task.training.lr)

    def init_server(self, task, key):
        self.note("init_server", task)
        return super().init_server(task, key)

    def init_client(self, task, info, key):
        self.note("init_client", task)
        return ()

    def init_per_client(self, task, info, key):
        self.note("init_per_client", task)
        return ()

    def local_update(self, task, download, state, data, key):
        self.note("local_update", task)
        return super().local_update(task, download, state, data, key)

    def global_model(self, task, server):
        self.note("global_model", task)
        return super().global_model(task, server)

    def onboard(self, task, download, info, data, key):
        self.note("onboard", task)
        return super().onboard(task, download, info, data, key)

    def personalize(self, task, download, state, data, key):
        self.note("personalize", task)
        return super().personalize(task, download, state, data, key)

    def predict(self, task, personal, x):
        self.note("predict", task)
        return super().predict(task, personal, x)


def test_all_methods_see_the_same_options():
    Watched.rates.clear()
    clients = make_federation(perceptron())
    schedule = Schedule(rounds=1, participation=Participation(plan="all"))
    list(simulate(Watched(training=Training(lr=0.5)), clients, Reference(), schedule, seed=0))
    assert set(Watched.rates) >= {
        "init_server",
        "init_client",
        "local_update",
        "global_model",
        "onboard",
        "predict",
    }
    assert all(rates == {0.5} for rates in Watched.rates.values()), Watched.rates


def test_a_server_state_that_is_no_named_tuple_is_an_error_in_words():
    class Empty(FedAvg):
        def messages(self, task):
            return {}

    with pytest.raises(
        TypeError, match="must define aggregate, or keep a server state that is a NamedTuple"
    ):
        Algorithm.aggregate(Empty(), (), {"model": None}, None)
