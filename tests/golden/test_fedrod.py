"""FedRoD: balanced softmax for body and generic head, plain risk for the personal head, in one
step."""

from functools import partial

import numpy as np
import pytest
import torch

from fedtailor.algorithms.fedrod import FedRoD, balanced
from fedtailor.core.task import Training
from fedtailor.training.losses import cross_entropy
from golden import harness
from golden.network import average, confusion, features, log_softmax, logits

SIZES = [len(labels) for labels in harness.LABELS]
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)
HIDDEN = 7
NEW = [0, 2, 2, 1, 0, 2]


def counts_of(labels):
    return np.bincount(labels, minlength=harness.CLASSES)


def error(scores, y):
    return (np.exp(log_softmax(scores)) - np.eye(scores.shape[1])[y]) / len(y)


def generic_gradient(w, x, y, counts):
    """Gradient of the balanced softmax in body and generic head."""
    with np.errstate(divide="ignore"):
        shift = np.log(counts)
    hidden = x @ w["hidden.weight"].T + w["hidden.bias"]
    z, wrong = np.maximum(hidden, 0), error(logits(w, x) + shift, y)
    back = (wrong @ w["head.weight"]) * (hidden > 0)
    return {
        "hidden.weight": back.T @ x,
        "hidden.bias": back.sum(0),
        "head.weight": wrong.T @ z,
        "head.bias": wrong.sum(0),
    }


def head_gradient(w, head, x, y):
    """Gradient in the personal head of the cross-entropy of both heads' sum."""
    z = features(w, x)
    wrong = error(both(w, head, x), y)
    return {"head.weight": wrong.T @ z, "head.bias": wrong.sum(0)}


def both(w, head, x):
    return logits(w, x) + features(w, x) @ head["head.weight"].T + head["head.bias"]


def network_head(network, labels):
    """Head, hidden units and their inputs of the hyper-network, for the frequencies of a client's
    classes."""
    frequencies = counts_of(labels) / len(labels)
    before = network["inner.weight"] @ frequencies + network["inner.bias"]
    numbers = network["outer.weight"] @ np.maximum(before, 0) + network["outer.bias"]
    size = harness.CLASSES * harness.HIDDEN
    head = {
        "head.weight": numbers[:size].reshape(harness.CLASSES, harness.HIDDEN),
        "head.bias": numbers[size:],
    }
    return head, before, frequencies


def network_gradient(network, labels, slope):
    """Gradient in the hyper-network, from that in the head it makes."""
    _, before, frequencies = network_head(network, labels)
    numbers = np.concatenate([slope["head.weight"].ravel(), slope["head.bias"]])
    back = (network["outer.weight"].T @ numbers) * (before > 0)
    return {
        "inner.weight": np.outer(back, frequencies),
        "inner.bias": back,
        "outer.weight": np.outer(numbers, np.maximum(before, 0)),
        "outer.bias": numbers,
    }


class Momentum:
    """SGD with coupled weight decay."""

    def __init__(self, w, training):
        self.velocity, self.training = (
            {name: np.zeros_like(value) for name, value in w.items()},
            training,
        )

    def step(self, w, slope):
        result = {}
        for name, value in w.items():
            decayed = slope[name] + self.training.weight_decay * value
            self.velocity[name] = self.training.momentum * self.velocity[name] + decayed
            result[name] = value - self.training.lr * self.velocity[name]
        return result


def local(w, own, labels, x, y, batches, training, *, hyper):
    """A client's round: both losses of a batch are taken at the parameters of before its step."""
    counts, first, second = counts_of(labels), Momentum(w, training), Momentum(own, training)
    for batch in batches:
        head = network_head(own, labels)[0] if hyper else own
        slope = head_gradient(w, head, x[batch], y[batch])
        slope = network_gradient(own, labels, slope) if hyper else slope
        w, own = (
            first.step(w, generic_gradient(w, x[batch], y[batch], counts)),
            second.step(own, slope),
        )
    return w, own


def assert_scores(scores, expected, y):
    correct, loss = confusion(expected, y)
    assert scores.class_correct.tolist() == correct.tolist()
    assert abs(float(scores.loss_sum) - loss) < 1e-11


@pytest.mark.parametrize("training", [TRAINING, DROPPING])
@pytest.mark.parametrize("variant", ["linear", "hyper"])
def test_two_rounds(recorder, variant, training):
    """The personal loss reaches neither body nor generic head, and predictions take the sum of both
    heads."""
    federation, hyper = harness.make_federation(), variant == "hyper"
    recorder.run(FedRoD(training=training, variant=variant, hyper_hidden=HIDDEN), federation)
    first = recorder.visit(1, "train", 0).shared
    w = harness.initial(federation)
    zero = {name: np.zeros_like(w[name]) for name in ("head.weight", "head.bias")}
    own = [harness.arrays(first.hyper)] * 2 if hyper else [zero] * 2
    for round in (1, 2):
        trained = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, w)
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            harness.assert_epochs(
                batches, len(y), training.batch_size, training.epochs, drop_last=training.drop_last
            )
            model, own[client] = local(w, own[client], y, x, y, batches, training, hyper=hyper)
            trained.append(model)
            upload = visit.output[1]
            harness.assert_close(upload["model"].value, model)
            assert float(upload["model"].weight) == SIZES[client]
            assert set(upload) == ({"model", "hyper"} if hyper else {"model"})
            harness.assert_close(upload["hyper"].value if hyper else visit.output[0], own[client])
            head = network_head(own[client], y)[0] if hyper else own[client]
            x, y = harness.examples(federation, client, "test")
            assert_scores(visit.output[3], both(model, head, x), y)
        w = average(trained, SIZES)
        own = [average(own, SIZES)] * 2 if hyper else own
        for client in (0, 1):
            personal, _, by_set = recorder.visit(round, "personalize", client).output
            head = network_head(own[client], harness.LABELS[client])[0] if hyper else own[client]
            harness.assert_close(personal.model, w)
            harness.assert_close(personal.head, head)
            x, y = harness.examples(federation, client, "test")
            assert_scores(by_set["clients"], both(w, head, x), y)
            assert_scores(recorder.visit(round, "score", client).output, logits(w, x), y)


@pytest.mark.parametrize("variant", ["linear", "hyper"])
def test_a_new_client(recorder, variant):
    """``linear`` trains its head alone, body and generic head bit-identical; ``hyper`` needs class
    counts only."""
    federation = harness.make_federation((*harness.LABELS, NEW), num_new=1)
    recorder.run(FedRoD(training=TRAINING, variant=variant, onboard_epochs=3), federation)
    visit, shared = recorder.visit(2, "personalize", 2), recorder.visit(2, "personalize", 0).shared
    personal = visit.output[0]
    for name, value in shared.model.items():
        assert torch.equal(personal.model[name], value)
    if variant == "hyper":
        assert visit.plans == []
        harness.assert_close(personal.head, network_head(harness.arrays(shared.hyper), NEW)[0])
        return
    (batches,), (x, y) = visit.plans, harness.examples(federation, 2)
    harness.assert_epochs(batches, len(y), TRAINING.batch_size, 3)
    w = harness.arrays(shared.model)
    head = {name: np.zeros_like(w[name]) for name in ("head.weight", "head.bias")}
    step = Momentum(head, TRAINING).step
    for batch in batches:
        head = step(head, head_gradient(w, head, x[batch], y[batch]))
    harness.assert_close(personal.head, head)
    assert recorder.reports[-1].evaluations[-1].adaptation == "3 epochs of the head"


@pytest.mark.parametrize("counts", [[3.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
def test_labels_without_a_count_and_clients_without_examples_are_finite(counts):
    """Counted in an epoch that dropped its last batch, a class of the client would have log 0 on
    its own label."""
    scores, y = torch.randn(4, 3), torch.tensor([1, 0, 2, 1])

    def loss(scores, weight):
        return cross_entropy(balanced(scores, y, torch.tensor(counts)), y, weight)

    for weight in (torch.ones(4), torch.zeros(4)):
        slope, value = torch.func.grad_and_value(partial(loss, weight=weight))(scores)
        assert torch.isfinite(slope).all() and torch.isfinite(value)
    absent = torch.tensor(counts) == 0
    shifted = balanced(scores, y, torch.tensor(counts))
    assert torch.equal(shifted.isinf(), absent & (torch.arange(3) != y[:, None]))
