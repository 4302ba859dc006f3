"""FedBN: normalization layers, parameters and statistics, stay with their clients; the other layers
are averaged."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedtailor.algorithms.fedbn import FedBN
from fedtailor.core.task import Task, Training
from fedtailor.models.module import from_module
from golden import harness
from golden.network import average, confusion, log_softmax
from marks import quick

SIZES = [len(labels) for labels in harness.LABELS]
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)
STEPS = Training(lr=0.1, momentum=0.5, steps=3, batch_size=4)
NORM = ("1.weight", "1.bias")
STATISTICS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
OTHERS = ("0.weight", "0.bias", "3.weight", "3.bias")
NEW = [0, 2, 2, 1, 0, 2, 1]
EPSILON, MOMENTUM = 1e-5, 0.1


def make_federation(labels=harness.LABELS, **options):
    """Clients with a linear layer, batch normalization, ReLU and a linear head; no layer is called
    "bn"."""
    layers = [nn.Linear(harness.INPUTS, harness.HIDDEN), nn.BatchNorm1d(harness.HIDDEN), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Linear(harness.HIDDEN, harness.CLASSES))
    model = from_module(module, input_shape=(harness.INPUTS,), num_classes=harness.CLASSES)
    task = Task(model, harness.CLASSES, (harness.INPUTS,))
    return replace(harness.make_federation(labels, **options), common_task=task)


def pick(w, names):
    return {name: w[name] for name in names}


def head(w, normalized):
    return np.maximum(normalized * w["1.weight"] + w["1.bias"], 0) @ w["3.weight"].T + w["3.bias"]


def predict(w, x):
    """Logits with running statistics."""
    before = x @ w["0.weight"].T + w["0.bias"]
    return head(w, (before - w["1.running_mean"]) / np.sqrt(w["1.running_var"] + EPSILON))


def gradient(w, x, y):
    """Gradient of the mean cross-entropy with the statistics of the batch, and the new running
    statistics."""
    n, before = len(y), x @ w["0.weight"].T + w["0.bias"]
    mean, var = before.mean(0), before.var(0)
    deviation = np.sqrt(var + EPSILON)
    normalized = (before - mean) / deviation
    active = normalized * w["1.weight"] + w["1.bias"]
    z = np.maximum(active, 0)
    error = (np.exp(log_softmax(head(w, normalized))) - np.eye(harness.CLASSES)[y]) / n
    back = (error @ w["3.weight"]) * (active > 0)
    through = back * w["1.weight"]
    inner = (through - through.mean(0) - normalized * (through * normalized).mean(0)) / deviation
    slope = {
        "0.weight": inner.T @ x,
        "0.bias": inner.sum(0),
        "1.weight": (back * normalized).sum(0),
        "1.bias": back.sum(0),
        "3.weight": error.T @ z,
        "3.bias": error.sum(0),
    }
    values = {"1.running_mean": mean, "1.running_var": var * n / (n - 1)}
    statistics = {name: w[name] + MOMENTUM * (value - w[name]) for name, value in values.items()}
    return slope, {**statistics, "1.num_batches_tracked": w["1.num_batches_tracked"] + 1}


def sgd(w, x, y, batches, training, names):
    velocity = {name: np.zeros_like(w[name]) for name in names}
    for batch in batches:
        slope, statistics = gradient(w, x[batch], y[batch])
        moved = {}
        for name in names:
            velocity[name] = (
                training.momentum * velocity[name] + slope[name] + training.weight_decay * w[name]
            )
            moved[name] = w[name] - training.lr * velocity[name]
        w = {**w, **moved, **statistics}
    return w


@pytest.mark.parametrize("training", quick([TRAINING, DROPPING], DROPPING))
def test_two_rounds(recorder, training):
    federation = make_federation()
    recorder.run(FedBN(training=training), federation)
    models = [harness.initial(federation)] * 2
    for round in (1, 2):
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, pick(models[client], OTHERS))
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            harness.assert_epochs(
                batches, len(y), training.batch_size, training.epochs, drop_last=training.drop_last
            )
            models[client] = sgd(models[client], x, y, batches, training, NORM + OTHERS)
            state, upload, _, scores, *_ = visit.output
            harness.assert_close(state, pick(models[client], NORM + STATISTICS))
            harness.assert_close(upload["model"].value, pick(models[client], OTHERS))
            assert float(upload["model"].weight) == SIZES[client]
            assert_scores(scores, models[client], federation, client)
        shared = average([pick(model, OTHERS) for model in models], SIZES)
        models = [{**model, **shared} for model in models]
        for client in (0, 1):
            personal, _, by_set = recorder.visit(round, "personalize", client).output
            harness.assert_close(personal, models[client])
            assert_scores(by_set["clients"], models[client], federation, client)
        assert (round, "score", 0) not in recorder.visits  # there is no global model
    assert np.abs(models[0]["1.running_mean"] - models[1]["1.running_mean"]).max() > 0.1


def assert_scores(scores, w, federation, client):
    x, y = harness.examples(federation, client, "test")
    correct, loss = confusion(predict(w, x), y)
    assert scores.class_correct.tolist() == correct.tolist()
    assert abs(float(scores.loss_sum) - loss) < 1e-11


@pytest.mark.parametrize("training", quick([TRAINING, STEPS], TRAINING))
def test_a_new_client_trains_its_normalization_layers_as_long_as_the_others(recorder, training):
    """From the common initialization; momentum and decay leave the frozen layers bit-identical."""
    federation = make_federation((*harness.LABELS, NEW), num_new=1)
    recorder.run(FedBN(training=training), federation, rounds=3)
    visit = recorder.visit(3, "personalize", 2)
    (batches,), (x, y) = visit.plans, harness.examples(federation, 2)
    if training.steps:
        assert len(batches) == 3 * training.steps
    else:
        harness.assert_epochs(batches, len(y), training.batch_size, 3 * training.epochs)
    w = {**harness.initial(federation), **harness.arrays(visit.shared.model)}
    harness.assert_close(visit.output[0], sgd(w, x, y, batches, training, NORM))
    for name in OTHERS:
        assert torch.equal(visit.output[0][name], visit.shared.model[name])
