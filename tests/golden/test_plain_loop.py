"""Eight methods against benchmarks/plain_loop.py: plain PyTorch, the CNN and options of pFedFDA's
Tables 1 and 3."""

import importlib.util
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from federations import Planned
from fedtailor.algorithms.apfl import APFL
from fedtailor.algorithms.fedavg_ft import FedAvgFT
from fedtailor.algorithms.fedbabu import FedBABU
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.algorithms.fedrod import FedRoD
from fedtailor.algorithms.lg_fedavg import LGFedAvg
from fedtailor.algorithms.local import Local
from fedtailor.core.federation import Federation, Split
from fedtailor.core.task import Task, Training
from fedtailor.models.cnn import cifar_cnn
from golden import harness

PATH = Path(__file__).parents[2] / "benchmarks/plain_loop.py"
TRAINING = Training(
    lr=0.01, momentum=0.5, weight_decay=5e-4, epochs=5, batch_size=50, drop_last=True
)
TEST_SIZE = 10
SIZES = (57, 30, 110)
"""Training examples of the clients: one has fewer than a batch, two a last batch that is
dropped."""
COHORTS = {1: [0, 2], 2: [1, 2], 3: [0, 1, 2]}
OURS = {
    "fedavg": FedAvgFT(training=TRAINING, finetune="all", finetune_epochs=5),
    "local": Local(training=TRAINING),
    "lg_fedavg": LGFedAvg(training=TRAINING),
    "fedbabu": FedBABU(training=TRAINING, finetune="head", finetune_epochs=5),
    "fedrep": FedRep(training=TRAINING, head_epochs=5),
    "apfl": APFL(training=TRAINING, alpha=0.25),
    "fedpac": FedPAC(training=TRAINING, penalty=1.0, head_epochs=1, head_lr=0.1),
    "fedrod": FedRoD(training=TRAINING, variant="linear"),
}


@pytest.fixture
def plain_loop(monkeypatch):
    """The program, as a module."""
    spec = importlib.util.spec_from_file_location("plain_loop", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plain_loop", module)
    spec.loader.exec_module(module)
    return module


def make_federation() -> Federation:
    """Return clients with images of ten classes, in float64."""
    draw = torch.Generator().manual_seed(3)
    count = sum(SIZES) + TEST_SIZE * len(SIZES)
    y = torch.randint(0, 10, (count,), generator=draw)
    centers = torch.randn(10, 3, 32, 32, generator=draw, dtype=torch.float64)
    x = centers[y] + torch.randn(count, 3, 32, 32, generator=draw, dtype=torch.float64)
    splits = []
    start = 0
    for size in SIZES:
        rows = torch.arange(start, start + size + TEST_SIZE)
        splits.append(Split(rows[:size], rows[:0], rows[size:]))
        start += size + TEST_SIZE
    return Federation(x, y, splits, Task(cifar_cnn((3, 32, 32), 10), 10, (3, 32, 32)))


class Replay:
    """Gives the clients of the plain loop the batches that ours had."""

    def __init__(self, plain_loop, monkeypatch) -> None:
        self.plans: list = []
        monkeypatch.setattr(
            plain_loop.Client, "batches", lambda client, epochs=5: self._batches(client, epochs)
        )

    def _batches(self, client, epochs: int) -> Iterator:
        plan = self.plans.pop(0)
        count = len(client.train_set)
        size = min(50, count)
        assert [len(batch) for batch in plan] == [size] * (epochs * (count // size))
        x, y = client.train_set.tensors
        for batch in plan:
            yield x[batch], y[batch]


def assert_same(module, expected) -> None:
    """Assert that a module has the parameters of a model, to rounding in float64."""
    expected = getattr(expected, "model", expected)
    for name, value in module.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OURS)
def test_same_models_in_every_round(name, plain_loop, recorder, monkeypatch):
    federation = make_federation()
    schedule = {"train": "cohort"} if name == "local" else {}
    recorder.run(
        OURS[name], federation, rounds=3, participation=Planned(cohorts=COHORTS), **schedule
    )
    model = plain_loop.Network().double()
    model.load_state_dict(harness.initial_params(federation))
    clients = [
        plain_loop.Client(
            model,
            plain_loop.TensorDataset(federation.x[split.train], federation.y[split.train]),
            plain_loop.TensorDataset(federation.x[split.test], federation.y[split.test]),
        )
        for split in federation.splits
    ]
    method = plain_loop.METHODS[name](model)
    replay = Replay(plain_loop, monkeypatch)
    for number, cohort in COHORTS.items():
        for index in cohort:
            replay.plans = list(recorder.visit(number, "train", index).plans)
            method.receive(clients[index])
            method.train(clients[index])
            assert not replay.plans
        method.combine([clients[index] for index in cohort])
        for index, client in enumerate(clients):
            visit = recorder.visit(number, "personalize", index)
            expected = visit.output[0]
            if method.tuned:
                tuned = deepcopy(client)
                replay.plans = list(visit.plans)
                method.receive(tuned)
                method.tune(tuned)
                assert_same(tuned.model, expected)
            elif (
                name == "fedpac"
            ):  # what we call personalized: the averaged body under the combined head
                assert_same(plain_loop.FedRep.personal(method, client), expected)
            elif name == "fedrod":  # both heads are linear, so their sum is one
                heads = {
                    part: expected.model[part] + value for part, value in expected.head.items()
                }
                assert_same(method.personal(client), {**expected.model, **heads})
            else:
                assert_same(method.personal(client), expected)
        if name == "fedpac":  # what is scored: the models right after local training
            for index in cohort:
                sent = recorder.visit(number, "train", index).output[1]
                assert_same(
                    method.personal(clients[index]), {**sent["body"].value, **sent["head"].value}
                )


def test_our_initial_model(plain_loop):
    model = plain_loop.Network().double()
    model.load_state_dict(plain_loop.our_initial_model(5))
    assert_same(model, harness.initial_params(make_federation()))
