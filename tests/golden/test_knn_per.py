"""kNN-Per against Marfoq et al. 2022: FedAvg, mixed with a kernel over the nearest training
examples."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import make_federation, perceptron
from fedtailor.algorithms.knn_per import KNNPer, Memory, neighbor_probabilities
from fedtailor.core.federation import Split
from fedtailor.core.task import Training
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.engines import Padded
from fedtailor.testing.runs import assert_same_bits, run
from golden import harness
from golden.network import average, features, log_softmax, logits, sgd

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)


def by_neighbors(z, known, labels, neighbors, scale):
    """Sum exp(-||z - z_j|| / sigma) over the k nearest by class, divided by the sum over all of
    them."""
    result = np.zeros((len(z), harness.CLASSES))
    for row, query in enumerate(z):
        distance = np.sqrt(((known - query) ** 2).sum(1))
        nearest = np.argsort(distance, kind="stable")[:neighbors]
        kernel = np.exp(-distance[nearest] / scale)
        for value, label in zip(kernel / kernel.sum(), labels[nearest], strict=True):
            result[row, label] += value
    return result


def probabilities(w, x, near, mixing):
    return mixing * near + (1 - mixing) * np.exp(log_softmax(logits(w, x)))


def with_validation(federation, counts):
    """Return the federation in which the last training examples of each client are for
    validation."""
    splits = []
    for split, count in zip(federation.splits, counts, strict=True):
        cut = len(split.train) - count
        splits.append(Split(split.train[:cut], split.train[cut:], split.test))
    return replace(federation, splits=splits)


def global_after(recorder, federation, rounds, clients=(0, 1)):
    """Return FedAvg's model from the recorded orders of batches."""
    w = harness.initial(federation)
    for round in range(1, rounds + 1):
        visits = [recorder.visit(round, "train", client) for client in clients]
        parts = [harness.examples(federation, client) for client in clients]
        trained = [
            sgd(w, *part, visit.plans[0], TRAINING)[0]
            for part, visit in zip(parts, visits, strict=True)
        ]
        w = average(trained, [len(y) for _, y in parts])
    return w


@pytest.mark.parametrize(
    ("neighbors", "scale", "mixing"),
    [(10, 1.0, 0.5), (3, 0.3, 0.7), (1, 2.0, 1.0), (50, 5.0, 0.25), (4, 1.0, 0.0)],
)
def test_two_rounds(recorder, neighbors, scale, mixing):
    """With k = 50, fewer examples than neighbors: all of them are."""
    federation = harness.make_federation()
    algorithm = KNNPer(training=TRAINING, neighbors=neighbors, kernel_scale=scale, mixing=mixing)
    recorder.run(algorithm, federation)
    w = global_after(recorder, federation, 2)
    for client in (0, 1):
        personal, numbers, by_set = recorder.visit(2, "personalize", client).output
        x, y = harness.examples(federation, client)
        harness.assert_close(personal.model, w)
        memory = personal.memory.value
        harness.assert_close(memory.features, features(w, x))
        assert memory.labels.tolist() == y.tolist() and memory.weight.tolist() == [1.0] * len(y)
        assert float(numbers["mixing"]) == float(personal.mixing) == mixing
        known = features(w, x), y
        x, y = harness.examples(federation, client, "test")
        expected = probabilities(
            w, x, by_neighbors(features(w, x), *known, neighbors, scale), mixing
        )
        given = algorithm.predict(federation.common_task, personal, torch.from_numpy(x)).exp()
        assert np.abs(given.numpy() - expected).max() < 1e-12
        scores = by_set["clients"]
        right = expected.argmax(1) == y
        assert (
            scores.class_correct.tolist()
            == np.bincount(y[right], minlength=harness.CLASSES).tolist()
        )
        if mixing < 1:
            assert (
                abs(float(scores.loss_sum) + np.log(expected[np.arange(len(y)), y]).sum()) < 1e-11
            )


def test_without_examples_a_client_predicts_with_the_global_model():
    """Alone, and beside others that have examples, where its memory consists of padding."""
    for engine in (Reference(), Padded(Reference()), Batched()):
        record = run(KNNPer(training=TRAINING, mixing=1.0), engine, make_federation(perceptron()))
        for client in (5, 8):
            personal, _, by_set = record.of("personalize")[2, client]
            assert len(personal.memory.value.labels) == 0 and float(personal.mixing) == 0
            assert torch.isfinite(by_set["clients"].loss_sum)
        known = record.of("personalize")[2, 5][2]["clients"], record.of("score")[2, 5]
        assert_same_bits(*(scores.class_correct for scores in known))
        assert float(known[0].loss_sum) == pytest.approx(float(known[1].loss_sum), abs=1e-12)


def test_padding_is_never_a_neighbor():
    """Rows of weight 0 sit right at the query, others are far away; without others, nothing is
    remembered."""
    z = torch.zeros(1, 2)
    table = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
    labels = torch.tensor([0, 1, 0, 2])
    near = neighbor_probabilities(
        Memory(table, labels, torch.tensor([0.0, 1.0, 0.0, 1.0])), z, 3, 3, 1.0
    )
    value = 1 / (1 + np.exp(-1))
    assert np.abs(near.numpy() - [[0, value, 1 - value]]).max() < 1e-12
    assert neighbor_probabilities(Memory(table, labels, torch.zeros(4)), z, 3, 3, 1.0).tolist() == [
        [0, 0, 0]
    ]


def test_of_equals_the_first_are_neighbors():
    """Features of dead units are 0 for many examples: which count must not depend on how clients
    are stacked."""
    memory = Memory(torch.ones(6, 2), torch.tensor([2, 1, 1, 0, 0, 0]), torch.ones(6))
    near = neighbor_probabilities(memory, torch.zeros(1, 2), 3, 3, 1.0)
    assert torch.allclose(near, torch.tensor([[0.0, 2.0, 1.0]]) / 3)


def blur(x, splits):
    """Make the classes hard to tell apart, so that the mixture matters."""
    x += np.random.default_rng(3).normal(size=x.shape) * 2


@pytest.mark.parametrize("mixing", [0.5, 0.0, 1.0])
def test_validation_examples_choose_the_mixture(recorder, mixing):
    """The most right predictions of a grid; of equals the nearest to the default."""
    federation = with_validation(
        harness.make_federation((harness.LABELS[0] * 3,) * 2, change=blur), (17, 0)
    )
    recorder.run(KNNPer(training=TRAINING, neighbors=3, mixing=mixing), federation, rounds=1)
    w = global_after(recorder, federation, 1)
    (x, y), (val_x, val_y) = harness.examples(federation, 0), harness.examples(federation, 0, "val")
    near = by_neighbors(features(w, val_x), features(w, x), y, 3, 1.0)
    right = [
        (probabilities(w, val_x, near, step / 10).argmax(1) == val_y).sum() for step in range(11)
    ]
    best = [step / 10 for step in range(11) if right[step] == max(right)]
    assert 1 < len(best) < 11
    expected = min(best, key=lambda value: abs(value - mixing))
    assert float(recorder.visit(1, "personalize", 0).output[0].mixing) == pytest.approx(
        expected, abs=1e-15
    )
    assert float(recorder.visit(1, "personalize", 1).output[0].mixing) == mixing
