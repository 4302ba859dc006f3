"""pFedVEM, pFedMe and pFedBayes against benchmarks/plain_loop_pfedvem.py, with the networks of
pFedVEM's tables."""

import importlib.util
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from federations import Planned
from fedtailor.algorithms.pfedbayes import PFedBayes
from fedtailor.algorithms.pfedme import PFedMe
from fedtailor.algorithms.pfedvem import PFedVEM
from fedtailor.core.federation import Federation, Split
from fedtailor.core.task import Task, Training
from fedtailor.models.lenet import lenet
from fedtailor.models.mlp import mlp
from fedtailor.statistics import gaussian_heads
from golden import harness

PATH = Path(__file__).parents[2] / "benchmarks/plain_loop_pfedvem.py"
SIZES = (23, 8, 40)
TEST_SIZE = 10
COHORTS = {1: [0, 2], 2: [1, 2], 3: [0, 1, 2]}
BATCHES = Training(lr=0.01, momentum=0.9, epochs=2, batch_size=10)
WHOLE = Training(lr=0.01, momentum=0.9, epochs=3, batch_size=0)
STEPS = Training(steps=5, batch_size=10)
PFEDVEM = {"head_lr": 0.001, "draws": 5, "initial_scale": 1.0, "head_steps": 10}
ADAM_TOLERANCE = 1e-8
"""Adam divides by the size of a gradient, so where that is nearly 0, rounding errors grow."""
PFEDBAYES = {"penalty": 10.0, "initial_scale": 0.1, "personal_lr": 0.001, "global_lr": 0.002}
PFEDME = {"penalty": 15.0, "inner_lr": 0.05, "outer_lr": 0.01, "inner_steps": 5}


@pytest.fixture
def plain_loop(monkeypatch):
    """The program, as a module."""
    spec = importlib.util.spec_from_file_location("plain_loop_pfedvem", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plain_loop_pfedvem", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def noises(recorder, monkeypatch):
    """Keep the noise that ours draws, with what the recorder keeps of the visit."""
    original = gaussian_heads.normal

    def normal(key, shape):
        drawn = original(key, shape)
        vars(recorder.current).setdefault("noises", []).append(drawn)
        return drawn

    monkeypatch.setattr(gaussian_heads, "normal", normal)


def make_federation(shape, model) -> Federation:
    """Return clients with images of ten classes, in float64."""
    draw = torch.Generator().manual_seed(3)
    count = sum(SIZES) + TEST_SIZE * len(SIZES)
    y = torch.randint(0, 10, (count,), generator=draw)
    centers = torch.randn(10, *shape, generator=draw, dtype=torch.float64)
    x = centers[y] + torch.randn(count, *shape, generator=draw, dtype=torch.float64)
    splits = []
    start = 0
    for size in SIZES:
        rows = torch.arange(start, start + size + TEST_SIZE)
        splits.append(Split(rows[:size], rows[:0], rows[size:]))
        start += size + TEST_SIZE
    return Federation(x, y, splits, Task(model(shape, 10), 10, shape))


def make_clients(plain_loop, federation):
    """Return the clients of the plain loop, with the data of ours."""
    return [
        plain_loop.Client(
            federation.x[split.train],
            federation.y[split.train],
            federation.x[split.test],
            federation.y[split.test],
        )
        for split in federation.splits
    ]


def use_batches(plain_loop, monkeypatch, plans) -> None:
    """Give the clients of the plain loop the batches that ours had."""

    def batches(client, training):
        plan = plans[client]
        size = min(training.batch_size or len(client.y), len(client.y))
        count = training.steps or training.epochs * -(-len(client.y) // size)
        assert len(plan) == count
        for rows in plan:
            yield client.x[rows], client.y[rows]

    monkeypatch.setattr(plain_loop.Client, "batches", batches)


def assert_same(module, expected) -> None:
    """Assert that a module has the parameters of a model, to rounding in float64."""
    for name, value in expected.items():
        torch.testing.assert_close(
            dict(module.named_parameters())[name].detach(), value, rtol=0, atol=1e-12
        )


def flat(head) -> torch.Tensor:
    """Return a head as a vector: weights, then biases."""
    return torch.cat([head["head.weight"].flatten(), head["head.bias"]])


@pytest.mark.parametrize("training", [BATCHES, WHOLE], ids=["batches", "whole"])
def test_pfedvem(training, plain_loop, recorder, noises, monkeypatch):
    federation = make_federation((1, 28, 28), mlp)
    recorder.run(
        PFedVEM(training=training, **PFEDVEM),
        federation,
        rounds=3,
        participation=Planned(cohorts=COHORTS),
    )
    model = plain_loop.Perceptron().double()
    first = recorder.visit(1, "train", 0).shared
    model.load_state_dict({**first.body, **first.head})
    method = plain_loop.PFedVEM(model, PFEDVEM, training)
    method.head = flat(first.head)
    clients = make_clients(plain_loop, federation)
    plans = {}
    use_batches(plain_loop, monkeypatch, plans)
    waiting = deque()
    monkeypatch.setattr(method, "noise", waiting.popleft)
    for number, cohort in COHORTS.items():
        visits = [recorder.visit(number, "train", index) for index in range(len(clients))]
        plans.update(
            {client: visit.plans[1] for client, visit in zip(clients, visits, strict=True)}
        )
        waiting.extend(noise for visit in visits for noise in visit.noises)
        method.round(clients, [index in cohort for index in range(len(clients))])
        assert not waiting
        for index, client in enumerate(clients):
            personal, _, scores = recorder.visit(number, "personalize", index).output
            body, mean, _ = client.kept
            assert_same(body, personal.body)
            torch.testing.assert_close(mean, flat(personal.head), rtol=0, atol=1e-12)
            correct = int(scores["clients"].class_correct.sum())
            assert method.score_personal(client) == pytest.approx(correct / TEST_SIZE)
        after = recorder.visit(number, "score", 0).shared
        assert_same(method.model, after.body)
        torch.testing.assert_close(method.head, flat(after.head), rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [BATCHES, STEPS], ids=["epochs", "steps"])
def test_pfedme(training, plain_loop, recorder, monkeypatch):
    federation = make_federation((3, 32, 32), lenet)
    recorder.run(
        PFedMe(training=training, solve_batches=0, **PFEDME),
        federation,
        rounds=3,
        participation=Planned(cohorts=COHORTS),
    )
    model = plain_loop.LeNet().double()
    model.load_state_dict(harness.initial_params(federation))
    method = plain_loop.PFedMe(model, PFEDME, training)
    clients = make_clients(plain_loop, federation)
    plans = {}
    use_batches(plain_loop, monkeypatch, plans)
    for number, cohort in COHORTS.items():
        visits = {index: recorder.visit(number, "train", index) for index in cohort}
        plans.update({clients[index]: visit.plans[0] for index, visit in visits.items()})
        method.round(clients, [index in cohort for index in range(len(clients))])
        for index, visit in visits.items():
            correct = int(visit.output.scores.class_correct.sum())
            assert method.score_personal(clients[index]) == pytest.approx(correct / TEST_SIZE)
        assert [method.score_personal(client) is None for client in clients] == [
            i not in cohort for i in range(3)
        ]
        assert_same(method.model, recorder.visit(number, "score", 0).shared.model)


def flat_model(model) -> torch.Tensor:
    """Return all weights of a model as a vector."""
    return torch.cat([value.flatten() for value in model.values()])


def test_pfedbayes(plain_loop, recorder, noises, monkeypatch):
    federation = make_federation((1, 28, 28), mlp)
    training = replace(WHOLE, lr=0.1)
    ours = PFedBayes(training=training, **PFEDBAYES)
    recorder.run(ours, federation, rounds=3, participation=Planned(cohorts=COHORTS), train="all")
    model = plain_loop.Perceptron().double()
    model.load_state_dict(harness.initial_params(federation))
    method = plain_loop.PFedBayes(model, PFEDBAYES, training)
    clients = make_clients(plain_loop, federation)
    plans = {}
    use_batches(plain_loop, monkeypatch, plans)
    waiting = deque()
    monkeypatch.setattr(method, "noise", waiting.popleft)
    for number, cohort in COHORTS.items():
        visits = [recorder.visit(number, "train", index) for index in range(len(clients))]
        plans.update(
            {client: visit.plans[0] for client, visit in zip(clients, visits, strict=True)}
        )
        waiting.extend(noise for visit in visits for noise in visit.noises)
        method.round(clients, [index in cohort for index in range(len(clients))])
        assert not waiting
        for client, visit in zip(clients, visits, strict=True):
            own = visit.output.state.own
            torch.testing.assert_close(
                client.kept.mean.detach(), flat_model(own.mean), rtol=0, atol=ADAM_TOLERANCE
            )
            torch.testing.assert_close(
                client.kept.raw.detach(), flat_model(own.raw), rtol=0, atol=ADAM_TOLERANCE
            )
            correct = int(visit.output.scores.class_correct.sum())
            assert method.score_personal(client) == pytest.approx(correct / TEST_SIZE)
        after = recorder.visit(number, "personalize", 0).shared
        torch.testing.assert_close(
            method.shared.mean.detach(), flat_model(after.mean), rtol=0, atol=ADAM_TOLERANCE
        )
        torch.testing.assert_close(
            method.shared.raw.detach(), flat_model(after.raw), rtol=0, atol=ADAM_TOLERANCE
        )


@pytest.mark.parametrize(
    ("training", "sizes"),
    [(BATCHES, [10, 10, 3] * 2), (WHOLE, [23] * 3), (STEPS, [10, 10, 3, 10, 10])],
    ids=["batches", "whole", "steps"],
)
def test_batches_of_a_round(training, sizes, plain_loop):
    rows = torch.arange(23)
    client = plain_loop.Client(rows[:, None], rows, rows[:, None], rows)
    batches = list(client.batches(training))
    assert [len(y) for _, y in batches] == sizes
    assert all(torch.equal(x.flatten(), y) for x, y in batches)
    taken = torch.cat([y for _, y in batches])
    assert sorted(taken[:23].tolist()) == list(range(23))
    second_epoch = taken[23:46].tolist()
    assert len(set(second_epoch)) == len(second_epoch)


@pytest.mark.parametrize("dataset", ["fashion_mnist", "cifar10"])
def test_our_initial_model(dataset, plain_loop):
    shape, model = {"fashion_mnist": ((1, 28, 28), mlp), "cifar10": ((3, 32, 32), lenet)}[dataset]
    expected = harness.initial_params(make_federation(shape, model))
    network = plain_loop.NETWORKS[dataset]().double()
    network.load_state_dict(plain_loop.our_initial_model(dataset, 5))
    assert_same(network, expected)
