"""``forward`` and ``cached_features``: a pass over the examples of one client and of a stack of
clients."""

import pytest
import torch
from torch import nn

import fedtailor.training.stacked
from both_ways import both_ways, key_of, one_by_one, stacked
from federations import CLASSES, convolutional, make_federation, module, perceptron
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.rng import new_key, uniform
from fedtailor.core.task import Task, Training, predict_features, predict_logits
from fedtailor.models.module import from_module
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run
from fedtailor.training.blocks import cached_features, forward
from fedtailor.training.losses import cross_entropy, weighted_mean

pytestmark = pytest.mark.usefixtures("float64")

CLIENTS = [2, 0, 6, 5, 4]
TASKS = {"mlp": perceptron, "cnn": convolutional, "module": module}


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


@pytest.mark.parametrize("kind", TASKS)
def test_cached_features_are_those_of_evaluation(kind):
    task = TASKS[kind]()
    federation = make_federation(task)
    starts = [task.model.init(new_key(client)) for client in CLIENTS]

    def program(data, key, params):
        return cached_features(task, params, data, key=key)

    loop, stack = (how(program, federation, CLIENTS, starts) for how in (one_by_one, stacked))
    for client, params, one, other in zip(CLIENTS, starts, loop, stack, strict=True):
        data = federation.data(client).train
        size = len(data.positions)
        assert one.size() == other.size() == size and one.x.shape == (size, task.model.feature_dim)
        assert torch.equal(one.labels(), data.labels()) and torch.equal(
            other.labels()[:size], data.labels()
        )
        assert torch.allclose(
            one.x, predict_features(task, params, data.x[data.positions]), rtol=0, atol=1e-12
        )
        assert (
            torch.allclose(one.x, other.x[:size], rtol=0, atol=1e-12)
            and torch.isfinite(other.x).all()
        )


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_chunks_do_not_matter(federation, chunk, monkeypatch):
    task, clients = federation.common_task, [2, 0, 6, 4]
    params = task.model.init(new_key(0))

    def program(data, key, own):
        return forward(task, first_features, params, data, key=key, context=own)

    own = [torch.tensor(float(client)) for client in clients]
    expected = one_by_one(program, federation, clients, own)
    monkeypatch.setattr(fedtailor.training.one_client, "chunk_size", lambda shape: chunk)
    monkeypatch.setattr(fedtailor.training.stacked, "chunk_size", lambda shape: chunk)
    found, together = (how(program, federation, clients, own) for how in (one_by_one, stacked))
    for one, other, row in zip(expected, found, together, strict=True):
        assert one.shape == other.shape and row.shape == (23, 5)
        assert torch.allclose(one, other, rtol=0, atol=1e-13)
        assert torch.allclose(one, row[: len(one)], rtol=0, atol=1e-13)


def first_features(task, params, context, batch, key):
    return (
        task.model.features(params, batch.x, weight=batch.weight, key=key, training=False)[0]
        + context
    )


def test_no_gradient_and_no_change(federation):
    task, data = federation.common_task, federation.data(4).train
    params = {name: value.requires_grad_() for name, value in task.model.init(new_key(0)).items()}
    before = {name: value.detach().clone() for name, value in params.items()}
    found = forward(task, first_features, params, data, key=key_of(4), context=torch.tensor(0.0))
    assert not found.requires_grad
    assert all(torch.equal(params[name], value) for name, value in before.items())


def test_context_and_key_reach_the_function(federation):
    task, clients = federation.common_task, [2, 0, 6, 4]

    def program(data, key, scale):
        return forward(task, noise_rows, (), data, key=key, context=(scale, {"shift": scale + 1}))[
            :1
        ]

    scales = [torch.tensor(float(client)) for client in clients]
    found = both_ways(program, federation, clients, scales)
    for client, scale, one in zip(clients, scales, found, strict=True):
        assert torch.allclose(
            one[0], uniform(key_of(client), ()) + 2 * scale + 1, rtol=0, atol=1e-12
        )


def noise_rows(task, params, context, batch, key):
    scale, more = context
    return (uniform(key, ()) + scale + more["shift"]).expand(batch.weight.shape[0])


def test_dropout_is_off_and_statistics_stay(federation):
    task = module()
    federation = make_federation(task)
    params, data = task.model.init(new_key(0)), federation.data(4).train
    first, second = (cached_features(task, params, data, key=key_of(client)).x for client in (4, 9))
    assert torch.equal(first, second)
    logits = predict_logits(task, params, data.x[data.positions])
    assert torch.equal(
        logits, task.model.head(params, predict_features(task, params, data.x[data.positions]))
    )


def test_weighted_mean_and_cross_entropy():
    values, weight = torch.tensor([1.0, 5.0, 100.0]), torch.tensor([1.0, 3.0, 0.0])
    assert weighted_mean(values, weight) == 4.0
    assert weighted_mean(values, torch.zeros(3)) == 0.0
    logits, labels = (
        torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 2, 1, 0]),
    )
    found = cross_entropy(logits, labels, torch.tensor([1.0, 1.0, 0.0, 1.0]))
    expected = torch.nn.functional.cross_entropy(logits[[0, 1, 3]], labels[[0, 1, 3]])
    assert torch.allclose(found, expected, rtol=0, atol=1e-15)


class NeedsRows(nn.Module):
    """A network that refuses a batch without rows, as ``view`` with -1 does."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.fc(self.norm(x.view(x.size(0), -1)))


def test_clients_without_examples_have_no_rows():
    model = from_module(NeedsRows(), input_shape=(4,), num_classes=CLASSES)
    task = Task(model, CLASSES, (4,))
    federation = make_federation(task, sizes=(0, 3, 0))
    params = model.init(new_key(0))

    def program(data, key, own):
        return cached_features(task, params, data, key=key).x

    empty = both_ways(program, federation, [0, 2])
    assert [rows.shape for rows in empty] == [(0, 4), (0, 4)]
    assert [len(rows) for rows in one_by_one(program, federation, [0, 1], [None, None])] == [0, 3]


@pytest.mark.parametrize("engine", [Reference(), Batched(3)], ids=lambda engine: engine.name)
def test_a_run_without_test_examples_trains_everybody(engine):
    model = from_module(NeedsRows(), input_shape=(4,), num_classes=CLASSES)
    federation = make_federation(Task(model, CLASSES, (4,)), sizes=(5, 7), test_size=0)
    algorithm = FedAvg(training=Training(lr=0.1, epochs=1, batch_size=5))
    for report in run(algorithm, engine, federation).reports:
        assert list(report.trained) == [0, 1]
        assert [event for event in report.events if event["kind"] == "failed"] == []
