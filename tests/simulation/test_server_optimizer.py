"""Server optimizers: their steps by other means, and with methods that average models."""

from types import SimpleNamespace

import pytest
import torch

from contract.cases import build
from federations import CLASSES, make_federation, perceptron
from fedtailor.algorithms import ALGORITHMS
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core import tree
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import Field, Reduced
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Schedule
from fedtailor.core.server_optimizer import ServerOptimizer, make_server_optimizer
from fedtailor.core.task import Task
from fedtailor.models.networks import linear
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import assert_close_runs, assert_same_bits, run
from marks import quick

pytestmark = pytest.mark.usefixtures("float64")

ETA, B1, B2, TAU = 0.3, 0.7, 0.8, 0.01
OPTIONS = {"server_lr": ETA, "server_momentum": B1, "server_beta2": B2, "server_epsilon": TAU}
MEANS = torch.tensor([[1.0, -2.0], [0.5, 0.1], [3.0, -2.5], [0.0, 0.0]], dtype=torch.float64)
"""Of a parameter with two numbers, in four rounds."""
AVERAGING = [
    "apfl",
    "ditto",
    "fedala",
    "fedavg",
    "fedavg_ft",
    "fedbabu",
    "fedbn",
    "fedcr",
    "fedem",
    "fedlda",
    "fedpac",
    "fedper",
    "fedprox",
    "fedrep",
    "fedrod",
    "fedsr",
    "ifca",
    "knn_per",
    "lg_fedavg",
    "moon",
    "mr_mtl",
    "perfedavg",
    "pfedfda",
    "pfedgp",
    "pfedvem",
]
"""Methods whose next model is the mean of models."""


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


def steps(name, weights=(1.0, 1.0, 1.0, 1.0), **options):
    """Return a parameter and a buffer after every round of an optimizer, from 0 on."""
    schedule = Schedule(server_optimizer=name, **{**OPTIONS, **options})
    messages = {"model": Field(kind="model", shapes={"w": (2,), "mean": (2,)})}
    task = SimpleNamespace(names=lambda *groups: ["mean"])
    optimizer = ServerOptimizer(schedule, messages, task)

    server = SimpleNamespace(model={"w": torch.zeros(2), "mean": torch.zeros(2)})
    moments = {}
    models = []
    for mean, weight in zip(MEANS, weights, strict=True):
        received = {"model": Reduced({"w": mean, "mean": mean}, torch.tensor(weight))}
        received, moments = optimizer.step(server, received, moments)
        server = SimpleNamespace(model=received["model"].value)
        models.append(server.model)

    return models


@pytest.mark.parametrize(
    ("name", "options", "make"),
    [
        ("sgd", {}, lambda w: torch.optim.SGD([w], lr=ETA, momentum=B1)),
        (
            "adagrad",
            {"server_momentum": 0.0},
            lambda w: torch.optim.Adagrad([w], lr=ETA, initial_accumulator_value=TAU**2, eps=TAU),
        ),
    ],
)
def test_steps_are_those_of_pytorch(name, options, make):
    w = torch.zeros(2, requires_grad=True)
    optimizer = make(w)
    for mean, model in zip(MEANS, steps(name, **options), strict=True):
        w.grad = w.detach() - mean
        optimizer.step()
        assert torch.allclose(model["w"], w.detach(), rtol=1e-12)


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_steps_are_those_of_the_paper(name):
    """Reddi et al. 2021, Algorithm 2."""
    w, m, v = [0.0, 0.0], [0.0, 0.0], [TAU**2, TAU**2]
    for mean, model in zip(MEANS.tolist(), steps(name), strict=True):
        for place in range(2):
            d = mean[place] - w[place]
            m[place] = B1 * m[place] + (1 - B1) * d
            if name == "adam":
                v[place] = B2 * v[place] + (1 - B2) * d**2
            else:
                sign = (v[place] > d**2) - (v[place] < d**2)
                v[place] -= (1 - B2) * d**2 * sign
            w[place] += ETA * m[place] / (v[place] ** 0.5 + TAU)

        assert model["w"].tolist() == pytest.approx(w, rel=1e-12)


def test_buffers_take_their_mean():
    assert all(torch.equal(a["mean"], b) for a, b in zip(steps("adam"), MEANS, strict=True))


def test_what_nobody_sent_stays_with_its_moments():
    """Such as a cluster of IFCA that no client chose."""
    first, second, third, _ = steps("sgd", weights=(1.0, 0.0, 1.0, 1.0))
    assert torch.equal(first["w"], second["w"])

    momentum = B1 * MEANS[0] + (MEANS[2] - second["w"])
    assert torch.allclose(third["w"], second["w"] + ETA * momentum)


@pytest.mark.parametrize("algorithm", quick(AVERAGING, "fedavg", "pfedfda"))
def test_without_momentum_and_with_rate_one_sgd_is_the_mean(algorithm, federation):
    plain = run(build(algorithm), Reference(), federation)
    step = {"server_optimizer": "sgd", "server_momentum": 0.0}
    assert_close_runs(plain, run(build(algorithm), Reference(), federation, **step))


def test_a_gaussian_of_pooled_sums_stays_beside_the_step(federation):
    pooled = build("pfedfda", statistics="pooled")
    plain = run(pooled, Reference(), federation)
    step = {"server_optimizer": "sgd", "server_momentum": 0.0}
    assert_close_runs(plain, run(pooled, Reference(), federation, **step))


@pytest.mark.parametrize("algorithm", quick(AVERAGING, "fedavg", "fedrep", "fedpac"))
def test_engines_agree_for_every_method_that_averages(algorithm, federation):
    options = {"server_optimizer": "yogi", **OPTIONS}
    runs = [
        run(build(algorithm), engine, federation, **options) for engine in (Reference(), Batched())
    ]
    assert_close_runs(*runs)

    plain = run(build(algorithm), Reference(), federation)
    with pytest.raises(AssertionError):
        assert_same_bits(runs[0].numbers(), plain.numbers())


@pytest.mark.parametrize("name", ["fedcr", "fedlda", "fedpac", "pfedfda"])
def test_only_the_body_of_methods_with_statistics_takes_the_step(name, federation):
    algorithm = build(name)
    task = algorithm.bind(federation.roster.common_task)
    server = algorithm.init_server(task, new_key(0))
    optimizer = make_server_optimizer(algorithm, task, Schedule(server_optimizer="adam"))

    fields = algorithm.messages(task)
    received = {
        field: Reduced(tree.map(lambda leaf: leaf + 1.0, getattr(server, field)), torch.ones(()))
        for field in fields
        if hasattr(server, field)
    }
    stepped, _ = optimizer.step(server, received, {})
    moved = [field for field, mean in received.items() if stepped[field] is not mean]
    assert moved == ["body"] and set(received) > {"body"}


class OtherServer(FedPAC):
    """A method whose server has another rule."""

    def aggregate(self, server, received, cohort):
        """Return the server as it was."""
        return server, ()


@pytest.mark.parametrize(
    "algorithm",
    [build("fedcr", aggregate_body=False), OtherServer()],
    ids=["personal bodies", "another rule"],
)
def test_a_method_whose_next_model_is_no_mean_refuses(algorithm, federation):
    with pytest.raises(ConfigError, match="server_optimizer"):
        run(algorithm, Reference(), federation, server_optimizer="adam")


def test_a_body_without_parameters_cannot_be_moved():
    bodiless = make_federation(Task(linear((4,), CLASSES), CLASSES, (4,)))
    frozen = PFedFDA.from_preset("frozen")
    with pytest.raises(ConfigError, match="averages no model"):
        run(frozen, Reference(), bodiless, server_optimizer="adam")


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(AVERAGING)))
def test_a_method_without_a_mean_of_models_refuses(algorithm, federation):
    with pytest.raises(ConfigError) as error:
        run(build(algorithm), Reference(), federation, server_optimizer="adam")
    assert error.value.key == "federation.server_optimizer"
