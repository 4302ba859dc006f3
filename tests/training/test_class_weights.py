"""Class weights: the numbers against their definitions, and the loss against PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from contract.cases import build
from fedtailor import toolkit as ft
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.errors import ConfigError
from fedtailor.core.task import Training
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.federations import make_federation, perceptron
from fedtailor.testing.runs import assert_close_runs, run
from fedtailor.training.losses import class_weights, cross_entropy_of
from golden import harness
from golden.network import average, log_softmax
from marks import quick


@pytest.fixture
def recorder(monkeypatch):
    """Return an engine that records what clients were given and gave."""
    return harness.Recorder(monkeypatch)


LABELS = np.repeat([0, 1, 3], [40, 7, 1])
COUNTS = torch.from_numpy(np.bincount(LABELS, minlength=4)).double()


def test_the_weights_are_those_of_their_definitions():
    present = COUNTS > 0
    balanced = class_weights(COUNTS, "balanced")
    expected = compute_class_weight("balanced", classes=np.unique(LABELS), y=LABELS)
    np.testing.assert_allclose(balanced[present], expected, rtol=1e-12)

    effective = class_weights(COUNTS, "effective")
    numbers = (1 - 0.999 ** COUNTS[present]) / (1 - 0.999)  # eq. 2
    np.testing.assert_allclose(effective[present] * numbers, (effective[0] * numbers[0]).expand(3))

    # The learning rate keeps its meaning, and absent classes do no harm.
    for weights in (balanced, effective):
        assert weights[LABELS].mean() == pytest.approx(1.0) and weights[2] == 0
    assert class_weights(torch.zeros(4), "balanced").tolist() == [0.0] * 4
    assert class_weights(torch.zeros(4), "effective").tolist() == [0.0] * 4


def test_the_loss_and_its_gradient_are_those_of_pytorch(float64):
    weights = class_weights(COUNTS, "balanced")
    labels = torch.from_numpy(LABELS)
    logits = torch.randn(len(labels) + 2, 4, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    # Two rows are padding.
    padded = torch.cat([labels, labels[:2]])
    weight = torch.cat([torch.ones(len(labels)), torch.zeros(2)])
    ours = cross_entropy_of(ft.Batch(torch.zeros(50, 1), padded, weight, weights), logits)
    theirs = F.cross_entropy(logits[:-2], labels, weight=weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    (slope,) = torch.autograd.grad(ours, logits)
    (expected,) = torch.autograd.grad(theirs, logits)
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-15)

    # A part of the examples: the parts of an epoch add up to the loss of all.
    part = cross_entropy_of(ft.Batch(logits, labels[:9], torch.ones(9), weights), logits[:9])
    total = F.cross_entropy(logits[:9], labels[:9], weight=weights, reduction="sum")
    torch.testing.assert_close(part, total / 9)


def test_fedavg_by_hand(recorder, float64):
    """Two rounds of gradient descent in NumPy, each example's gradient times its class weight."""
    training = Training(lr=0.2, epochs=3, batch_size=0, class_weights="balanced")
    federation = harness.make_federation()
    recorder.run(load_algorithm("fedavg")(training=training), federation)
    w = harness.initial(federation)
    for round in (1, 2):
        trained = []
        for client in (0, 1):
            x, y = harness.examples(federation, client)
            present, counts = np.unique(y, return_counts=True)
            of_class = dict(zip(present, len(y) / (len(present) * counts), strict=True))
            factors = np.array([of_class[label] for label in y])
            trained.append(_descend(w, x, y, factors, training))
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.output[1]["model"].value, trained[-1])
        w = average(trained, [len(labels) for labels in harness.LABELS])


def _descend(w, x, y, factors, training):
    """Full-batch descent of a network with one hidden layer."""
    first, bias, last, shift = (value.copy() for value in w.values())
    for _ in range(training.epochs):
        before = x @ first.T + bias
        hidden = np.maximum(before, 0)
        error = np.exp(log_softmax(hidden @ last.T + shift))
        error[np.arange(len(y)), y] -= 1
        error *= factors[:, None] / len(y)
        back = (error @ last) * (before > 0)
        steps = (back.T @ x, back.sum(0), error.T @ hidden, error.sum(0))
        for value, step in zip((first, bias, last, shift), steps, strict=True):
            value -= training.lr * step
    return dict(zip(w, (first, bias, last, shift), strict=True))


WEIGHING = [
    name for name in ALGORITHMS if "class_weights" not in load_algorithm(name).unused_training
]
"""The methods that train by a cross-entropy."""


@pytest.mark.parametrize("name", quick(WEIGHING, "fedavg", "pfedfda", "moon"))
def test_every_method_uses_them(name, float64):
    plain = build(name)
    weighted = replace(plain, training=replace(plain.training, class_weights="balanced"))
    federation = make_federation(perceptron(), (9, 14), ())
    runs = [run(algorithm, Reference(), federation, rounds=1) for algorithm in (plain, weighted)]
    with pytest.raises(AssertionError):
        assert_close_runs(*runs)


@pytest.mark.parametrize("name", quick(WEIGHING, "fedavg", "pfedfda", "moon"))
def test_stacked_clients_use_them_too(name, float64):
    algorithm = build(name)
    training = replace(algorithm.training, class_weights="balanced")
    algorithm = replace(algorithm, training=training)
    federation = make_federation(perceptron())
    engines = (Reference(), Batched(3))
    assert_close_runs(*(run(algorithm, engine, federation, rounds=1) for engine in engines))


def test_a_method_without_a_cross_entropy_refuses():
    class Distances(load_algorithm("fedavg")):
        unused_training = ("class_weights",)

    Distances()
    with pytest.raises(ConfigError, match="class_weights"):
        Distances(training=Training(class_weights="balanced"))
