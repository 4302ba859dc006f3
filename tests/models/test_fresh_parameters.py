"""A user's own network draws fresh parameters wherever a client's program asks for them, on every
engine."""

import pytest
import torch
from torch import nn

from federations import make_federation, module
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core import tree
from fedtailor.core.message import Mean
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.models.module import from_module
from fedtailor.simulation.engines.batched import Batched, run_stacked
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.runs import assert_close_runs, assert_same_bits, assert_same_runs, run
from fedtailor.training import replay
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss


class Fresh(FedAvg):
    """FedAvg whose clients mix parameters of their own draw into what they send."""

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        fresh = task.model.init(key.fold("fresh"))
        mixed = tree.map(
            lambda trained, drawn: 0.9 * trained + 0.1 * drawn, update.upload["model"].value, fresh
        )
        return update._replace(upload={"model": Mean(mixed, data.info.num_train)})


def drifting_loss(task, params, context, batch, key):
    """Return the loss plus the distance from parameters that every step draws anew."""
    output = classification_loss(task, params, context, batch, key)
    drawn = task.model.init(key.fold("drawn"))
    distance = sum((params[name] - drawn[name]).square().sum() for name in task.names("head"))
    return output._replace(loss=output.loss + 0.01 * distance)


class Drifting(FedAvg):
    """FedAvg whose loss draws parameters in every step."""

    def local_update(self, task, download, state, data, key):
        model = download.shared.model
        trained = train(task, drifting_loss, model, data=data.train, key=key)
        update = super().local_update(task, download, state, data, key)
        return update._replace(upload={"model": Mean(trained.params, data.info.num_train)})


def small_network():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def stacked_init(model, seed):
    """Return the parameters of three clients whose keys are stacked."""
    key = new_key(seed, purpose="fresh")
    return torch.func.vmap(lambda client: model.init(key._replace(client=client)))(torch.arange(3))


@pytest.mark.parametrize("start", ["reset", "given"])
def test_stacked_keys_give_each_client_the_bits_it_gets_alone(start):
    model = from_module(small_network(), input_shape=(4,), num_classes=3, init=start)
    state = torch.get_rng_state()
    stacked = stacked_init(model, seed=3)
    for client in range(3):
        alone = model.init(new_key(3, client=client, purpose="fresh"))
        assert_same_bits(alone, {name: value[client] for name, value in stacked.items()})
    assert torch.equal(torch.get_rng_state(), state), "the stream of random numbers outside moved"


def test_fresh_parameters_are_constants_of_a_gradient(float64):
    model = from_module(small_network(), input_shape=(4,), num_classes=3)

    def distance(params, client):
        drawn = model.init(new_key(0)._replace(client=client))
        return sum((params[name] - drawn[name]).square().sum() for name in params)

    params = model.init(new_key(7))
    stacked = torch.func.vmap(torch.func.grad(distance), in_dims=(None, 0))(params, torch.arange(2))
    for client in range(2):
        drawn = model.init(new_key(0, client=client))
        for name, value in params.items():
            torch.testing.assert_close(
                stacked[name][client], 2 * (value - drawn[name]), rtol=0, atol=1e-12
            )


@pytest.fixture
def strict(monkeypatch):
    """Make a program that does not run stacked fail, in place of running client by client."""
    monkeypatch.setattr(
        Batched, "run_block", lambda self, program, common, jobs: run_stacked(program, common, jobs)
    )


@pytest.mark.usefixtures("float64", "strict")
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Fresh, Drifting])
def test_engines_agree_on_fresh_parameters(algorithm, monkeypatch):
    monkeypatch.setattr(replay, "_OFTEN", 0)  # whatever can be recorded is recorded
    one = algorithm(training=Training(epochs=2, batch_size=5, lr=0.05))
    clients = make_federation(module(bias=False))
    expected = run(one, Reference(), clients)
    assert_same_runs(expected, run(one, Workers(2), clients))
    for block in (1, 3, 32):
        assert_close_runs(expected, run(one, Batched(block), clients))
