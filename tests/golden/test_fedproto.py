"""FedProto: models of the clients' own, trained towards global class means, which are all that is
sent."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from federations import Planned
from fedtailor.algorithms.fedproto import FedProto, Personal, Prototypes
from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task, Training
from fedtailor.models.module import from_module
from fedtailor.models.networks import mlp
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from golden import harness
from golden.network import confusion, features, gradient

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)
STEPS = Training(lr=0.1, momentum=0.5, steps=3, batch_size=4)
MISSING = ([0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1])
"""Training labels without the last class."""
NEW = [0, 2, 2, 1, 0, 2, 1]


def loss_gradient(w, x, y, means, known, penalty):
    """Gradient of cross-entropy plus penalty times the mean square over examples and features."""
    slope = gradient(w, x, y)
    hidden = x @ w["hidden.weight"].T + w["hidden.bias"]
    gaps = (np.maximum(hidden, 0) - means[y]) * known[y][:, None]
    back = 2 * penalty * gaps / gaps.size * (hidden > 0)
    slope["hidden.weight"] = slope["hidden.weight"] + back.T @ x
    slope["hidden.bias"] = slope["hidden.bias"] + back.sum(0)
    return slope


def sgd(w, x, y, batches, training, means, known, penalty):
    velocity = {name: np.zeros_like(value) for name, value in w.items()}
    for batch in batches:
        slope = loss_gradient(w, x[batch], y[batch], means, known, penalty)
        velocity = {
            n: training.momentum * velocity[n] + slope[n] + training.weight_decay * w[n] for n in w
        }
        w = {n: w[n] - training.lr * velocity[n] for n in w}
    return w


def class_means(w, x, y):
    """Means of the features by class, 0 for classes without examples, and counts."""
    counts = np.bincount(y, minlength=harness.CLASSES)
    sums = np.stack([features(w, x)[y == label].sum(0) for label in range(harness.CLASSES)])
    return sums / np.maximum(counts, 1)[:, None], counts


def scores_of(w, x, means, known):
    distances = ((features(w, x)[:, None] - means) ** 2).sum(2)
    return np.where(known > 0, -distances, -np.inf)


def assert_scores(scores, expected, y):
    correct, loss = confusion(expected, y)
    assert scores.class_correct.tolist() == correct.tolist()
    assert np.isclose(
        float(scores.loss_sum), loss, rtol=0, atol=1e-11
    )  # infinite for classes without a prototype


@pytest.mark.parametrize("labels", [harness.LABELS, MISSING], ids=["all", "missing"])
@pytest.mark.parametrize(("training", "penalty"), [(TRAINING, 1.0), (DROPPING, 0.3)])
def test_two_rounds(recorder, labels, training, penalty):
    """Means are weighted by class counts (not equally); those of a dropped last batch count, and no
    model is sent."""
    federation = harness.make_federation(labels)
    recorder.run(FedProto(training=training, penalty=penalty), federation)
    models = [harness.initial(federation)] * 2
    means, known = np.zeros((harness.CLASSES, harness.HIDDEN)), np.zeros(harness.CLASSES)
    for round in (1, 2):
        sent = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.prototypes.means, means)
            assert visit.shared.prototypes.known.tolist() == known.tolist()
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            harness.assert_epochs(
                batches, len(y), training.batch_size, training.epochs, drop_last=training.drop_last
            )
            models[client] = sgd(models[client], x, y, batches, training, means, known, penalty)
            sent.append(class_means(models[client], x, y))
            state, upload, _, scores, *_ = visit.output
            harness.assert_close(state, models[client])
            assert set(upload) == {"prototypes"}
            harness.assert_close(upload["prototypes"].value, sent[-1][0])
            assert upload["prototypes"].weight.tolist() == sent[-1][1].tolist()
            own, counts = sent[-1]
            merged = np.where(known[:, None] > 0, means, own)
            x, y = harness.examples(federation, client, "test")
            assert_scores(
                scores, scores_of(models[client], x, merged, np.maximum(known, counts > 0)), y
            )
        total = sum(counts for _, counts in sent)
        means = sum(counts[:, None] * own for own, counts in sent) / np.maximum(total, 1)[:, None]
        known = (total > 0).astype(float)
        for client in (0, 1):
            personal, _, by_set = recorder.visit(round, "personalize", client).output
            harness.assert_close(personal.model, models[client])
            harness.assert_close(personal.prototypes.means, means)
            x, y = harness.examples(federation, client, "test")
            assert_scores(by_set["clients"], scores_of(models[client], x, means, known), y)
        assert (round, "score", 0) not in recorder.visits  # there is no global model


def test_a_class_without_a_prototype_never_wins():
    """Its zero mean is the nearest by far, and is no prototype."""
    task = harness.task()
    means = torch.full((harness.CLASSES, harness.HIDDEN), 50.0)
    means[1] = 0.0
    model, x = task.model.init(new_key(1)), torch.randn(20, harness.INPUTS)
    for known, winners in (([1.0, 0.0, 1.0], {0, 2}), ([1.0, 1.0, 1.0], {1})):
        found = FedProto().predict(task, Personal(model, Prototypes(means, torch.tensor(known))), x)
        assert set(found.argmax(1).tolist()) <= winners


@pytest.mark.parametrize("training", [TRAINING, STEPS])
def test_a_new_client_trains_towards_the_prototypes_as_long_as_the_others(recorder, training):
    federation = harness.make_federation((*harness.LABELS, NEW), num_new=1)
    recorder.run(FedProto(training=training), federation, rounds=3)
    visit = recorder.visit(3, "personalize", 2)
    (batches,), (x, y) = visit.plans, harness.examples(federation, 2)
    if training.steps:
        assert len(batches) == 3 * training.steps
    else:
        harness.assert_epochs(batches, len(y), training.batch_size, 3 * training.epochs)
    means, known = (part.numpy() for part in visit.shared.prototypes)
    w = sgd(harness.initial(federation), x, y, batches, training, means, known, 1.0)
    harness.assert_close(visit.output[0].model, w)
    x, y = harness.examples(federation, 2, "test")
    assert_scores(visit.output[2]["clients"], scores_of(w, x, means, known), y)


def deep_task(features=harness.HIDDEN):
    """A deeper network, with dropout and batch normalization, whose features have the given
    length."""
    layers = [
        nn.Linear(harness.INPUTS, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(6, features),
    ]
    module = nn.Sequential(*layers, nn.ReLU(), nn.Linear(features, harness.CLASSES))
    model = from_module(module, input_shape=(harness.INPUTS,), num_classes=harness.CLASSES)
    return Task(model, harness.CLASSES, (harness.INPUTS,))


def test_two_architectures_share_prototypes():
    """Stacked by architecture or one by one, clients of both get the same global means."""
    federation = harness.make_federation(
        (*harness.LABELS, [0, 1, 2, 2], [2, 0, 1, 1, 0]), num_new=1
    )
    tasks = [federation.common_task, deep_task()]
    federation = replace(federation, client_tasks=[tasks[client % 2] for client in range(4)])
    finals = []
    for engine in (Reference(), Batched(32)):
        reports = list(
            simulate(FedProto(training=TRAINING), federation, engine, Schedule(rounds=2), seed=5)
        )
        finals.append(reports[-1].personal)
        assert not reports[-1].events and set(finals[-1]) == {0, 1, 2, 3}
    for client, personal in finals[0].items():
        assert personal.model.keys() == federation.roster.task(client).model.groups.keys()
        harness.assert_close(personal.model, harness.arrays(finals[1][client].model))
        harness.assert_close(personal.prototypes.means, finals[0][0].prototypes.means.numpy())


def test_features_of_another_length_are_refused():
    federation = harness.make_federation()
    federation = replace(
        federation, client_tasks=[federation.common_task, Task(mlp((3,), 3, hidden=9), 3, (3,))]
    )
    with pytest.raises(ConfigError, match="client 1"):
        list(simulate(FedProto(), federation, Reference(), Schedule(rounds=1), seed=0))


def test_prototypes_and_rounds_of_partial_cohorts(recorder):
    """What was sent by others before stays, and a new client trains as long as a client did on
    average: one round."""
    labels = ([0, 0, 0, 0, 0, 0], [1, 2, 1, 2, 2, 1, 2], NEW)
    federation, plan = harness.make_federation(labels, num_new=1), Planned(cohorts={1: [0], 2: [1]})
    recorder.run(FedProto(training=TRAINING), federation, participation=plan)
    sent = [
        recorder.visit(round, "train", client).output[1]["prototypes"].value
        for round, client in ((1, 0), (2, 1))
    ]
    assert recorder.visit(2, "train", 1).shared.prototypes.known.tolist() == [1, 0, 0]
    visit, (x, y) = recorder.visit(2, "personalize", 2), harness.examples(federation, 2)
    means, known = (part.numpy() for part in visit.shared.prototypes)
    assert known.tolist() == [1, 1, 1]
    harness.assert_close(means, np.stack([sent[0][0], sent[1][1], sent[1][2]]))
    (batches,) = visit.plans
    harness.assert_epochs(batches, len(y), TRAINING.batch_size, TRAINING.epochs)
    expected = sgd(harness.initial(federation), x, y, batches, TRAINING, means, known, 1.0)
    harness.assert_close(visit.output[0].model, expected)
