"""One bad client ends no run, and changes no other client's result, whatever it does, on every
engine."""

import random
import signal
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from faults.bad_clients import FAULTS, FAULTY, ROUND, BadClient
from federations import Planned, make_federation, perceptron
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core import tree
from fedtailor.core.task import Training
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.processes import Processes
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.runs import assert_close, assert_same_bits, run

pytestmark = [
    # programs that misbehave for one client branch on data, so they cannot be stacked
    pytest.mark.filterwarnings("ignore:engine .batched. runs clients one by one:RuntimeWarning"),
    pytest.mark.filterwarnings(
        "ignore:engine .workers. runs the clients of this round again:RuntimeWarning"
    ),
]

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
SIZES = (4, 7, 6, 11)
ROUNDS = 2


@pytest.fixture(scope="module")
def engines():
    with closing(Processes(1)) as processes:
        yield {
            "reference": Reference(),
            "workers": Workers(2),
            "batched": Batched(3),
            "processes": processes,
        }


@pytest.fixture(scope="module")
def federation():
    return make_federation(perceptron(), SIZES, (5,))


def numbers(trace):
    """Return every output, but for what the faulty client trained in the faulty round."""
    return {
        f"{round} {program} {client}": output
        for round, program, client, output in trace.outputs
        if (round, program, client) != (ROUND, "train", FAULTY)
    }


@pytest.fixture(scope="module")
def expected(federation):
    """The run of sound clients, and the run without the faulty client in the faulty round."""
    sound = FedRep(training=TRAINING, head_epochs=1)
    others = [client for client in range(len(SIZES)) if client != FAULTY]
    return {
        "sound": run(sound, Reference(), federation, rounds=ROUNDS),
        "absent": run(
            sound,
            Reference(),
            federation,
            rounds=ROUNDS,
            participation=Planned(cohorts={ROUND: others}),
        ),
    }


SAMPLE = [
    "raises exit",
    "uploads a sparse tensor",
    "writes to the broadcast",
    "makes float64 the default",
]
"""Kinds that run on every engine in ``make test``."""


def cases():
    """Return every kind with every engine that contains it."""
    found = []
    for kind, fault in FAULTS.items():
        for engine in ("reference", "workers", "batched", "processes"):
            if engine in fault.not_in:
                continue
            slow = engine != "reference" and kind not in SAMPLE
            found.append(
                pytest.param(
                    kind, engine, id=f"{kind}-{engine}", marks=[pytest.mark.slow] if slow else []
                )
            )
    return found


@pytest.mark.parametrize(("kind", "engine"), cases())
def test_one_bad_client_changes_nothing_for_the_others(kind, engine, engines, federation, expected):
    outcome = FAULTS[kind].outcome
    before = surroundings()
    found = run(BadClient(training=TRAINING, kind=kind), engines[engine], federation, rounds=ROUNDS)
    assert surroundings() == before
    wanted = expected["sound" if outcome == "harmless" else "absent"]
    same = assert_similar if engine == "batched" else assert_same_bits
    same(numbers(found), numbers(wanted))
    events = [event for report in found.reports for event in report.events]
    if outcome == "harmless":
        assert events == []
    else:
        (event,) = events
        assert (event["kind"], event["round"], event["client"]) == (outcome, ROUND, FAULTY)
        assert 0 < len(event["reason"]) <= 500 and event["reason"].isprintable()
    one, two = found.reports[0], wanted.reports[0]
    assert (one.trained, one.bytes_up, one.steps) == (two.trained, two.bytes_up, two.steps)
    assert {name: list(values) for name, values in one.metrics.items()} == {
        name: list(values) for name, values in two.metrics.items()
    }
    assert list(found.reports[-1].personal) == list(wanted.reports[-1].personal)
    for client, personal in wanted.reports[-1].personal.items():
        same(found.reports[-1].personal[client], personal)


def assert_similar(first, second):
    """Check that trees of float32 agree but for rounding: stacked clients are added up in another
    order."""
    assert_close(tree.paths(first), tree.paths(second), tolerance=1e-5)


def surroundings():
    """Return what programs could change for others in this process."""
    return {
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "inference": torch.is_inference_mode_enabled(),
        "torch": torch.get_rng_state().tolist(),
        "numpy": repr(np.random.get_state()),
        "python": random.getstate(),
    }


@pytest.mark.parametrize("engine", ["reference", "batched"])
def test_an_interruption_by_a_client_ends_the_run_where_it_cannot_be_told_from_that_of_the_user(
    engine, engines, federation
):
    bad = BadClient(training=TRAINING, kind="raises an interruption")
    with interrupts(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        run(bad, engines[engine], federation, rounds=ROUNDS)


@contextmanager
def interrupts(handler):
    """Handle Ctrl-C in this way, however the tests were started."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# Other moments than training


@dataclass(frozen=True, kw_only=True)
class BadElsewhere(FedRep):
    """FedRep with a client that fails outside of its training."""

    method: str
    client: int = FAULTY
    head_epochs: int = 1

    def fail(self, method, client):
        if method == self.method and bool(client == self.client):
            raise SystemExit(0)

    def init_client(self, task, info, key):
        self.fail("init_client", key.client)
        return super().init_client(task, info, key)

    def init_per_client(self, task, info, key):
        self.fail("init_per_client", key.client)
        return super().init_per_client(task, info, key)

    def personalize(self, task, download, state, data, key):
        self.fail("personalize", key.client)
        personal = super().personalize(task, download, state, data, key)
        changes = {
            "nothing": lambda: None,
            "a list": lambda: [1],
            "sparse": lambda: tree.map(torch.Tensor.to_sparse, personal),
        }
        if self.method in changes and bool(key.client == self.client):
            return changes[self.method]()
        return personal

    def onboard(self, task, download, info, data, key):
        self.fail("onboard", key.client)
        return super().onboard(task, download, info, data, key)

    def diagnostics(self, task, personal):
        numbers = super().diagnostics(task, personal)
        return {**numbers, "strange": torch.zeros(3)} if self.method == "diagnostics" else numbers


@pytest.mark.parametrize("engine", ["reference", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["init_client", "init_per_client"])
def test_a_client_that_cannot_begin_never_takes_part(method, engine, engines, federation):
    found = run(
        BadElsewhere(training=TRAINING, method=method), engines[engine], federation, rounds=ROUNDS
    )
    others = [client for client in range(len(SIZES)) if client != FAULTY]
    plan = Planned(cohorts=dict.fromkeys((1, 2), others))
    wanted = run(
        FedRep(training=TRAINING, head_epochs=1),
        Reference(),
        federation,
        rounds=ROUNDS,
        participation=plan,
    )
    for report in found.reports:
        assert [(event["kind"], event["client"]) for event in report.events] == [
            ("failed", FAULTY)
        ] * 2
        assert report.trained == others
    for client in others:
        assert_same_bits(found.reports[-1].personal[client], wanted.reports[-1].personal[client])


@pytest.mark.parametrize("method", ["personalize", "nothing", "a list", "sparse"])
def test_a_client_without_a_model_is_left_out_of_the_evaluation(
    method, engines, federation, expected
):
    found = run(
        BadElsewhere(training=TRAINING, method=method), Reference(), federation, rounds=ROUNDS
    )
    report = found.reports[-1]
    assert sorted(report.personal) == [
        client for client in range(len(SIZES) + 1) if client != FAULTY
    ]
    assert [(event["kind"], event["client"]) for event in report.events] == [("failed", FAULTY)]
    for client, personal in report.personal.items():
        assert_same_bits(personal, expected["sound"].reports[-1].personal[client])


def test_the_only_new_client_ends_no_run(federation, expected):
    new = len(SIZES)
    found = run(
        BadElsewhere(training=TRAINING, method="onboard", client=new),
        Reference(),
        federation,
        rounds=ROUNDS,
    )
    report = found.reports[-1]
    assert [(event["kind"], event["client"]) for event in report.events] == [("failed", new)]
    (evaluation,) = [each for each in report.evaluations if each.group == "new"]
    assert evaluation.scores == {} and sorted(report.personal) == list(range(len(SIZES)))


def test_a_diagnostic_that_is_no_number_is_not_recorded(federation):
    report = run(
        BadElsewhere(training=TRAINING, method="diagnostics"), Reference(), federation, rounds=1
    ).reports[0]
    assert len(report.personal) == len(SIZES) + 1
    assert {event["reason"] for event in report.events} == {
        "personalize: diagnostic 'strange' is not a single number"
    }
    assert all("strange" not in evaluation.diagnostics for evaluation in report.evaluations)
