"""FedNCM: class means of the features of a frozen body, in one exchange."""

import numpy as np
import torch

from fedtailor.algorithms.fedncm import FedNCM
from golden import harness
from golden.closed_form import body_features, head_of, in_other_parts, labeled_federation, pool
from golden.harness import assert_close
from golden.network import log_softmax


def normalized_means(z, y, classes):
    means = np.stack([z[y == label].mean(0) for label in range(classes)])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_head_and_scores_are_those_of_pooled_class_means(recorder):
    """The features of the common initial body, of clients without some of the classes."""
    federation = harness.make_federation()
    x, y = pool(federation)
    weight = normalized_means(body_features(federation, x), y, harness.CLASSES)
    recorder.run(FedNCM(), federation, rounds=1)
    head = recorder.reports[-1].state.server.head
    assert_close(head.weight, weight)
    assert_close(head.bias, np.zeros(harness.CLASSES))

    for client in federation.roster.known:
        inputs, labels = harness.examples(federation, client, "test")
        logits = body_features(federation, inputs) @ weight.T
        loss = -log_softmax(logits)[np.arange(len(labels)), labels].sum()
        scores = recorder.visit(1, "personalize", client).output.scores["clients"]
        assert np.isclose(float(scores.loss_sum), loss, rtol=0, atol=1e-11)


def test_who_has_which_examples_does_not_matter():
    federation = labeled_federation()
    expected = head_of(FedNCM(), federation).weight
    for parts in range(1, 11):
        other = head_of(FedNCM(), in_other_parts(federation, parts, seed=parts))
        assert_close(other.weight, expected.numpy(), tolerance=1e-13)


def test_a_class_that_nobody_has_is_never_predicted():
    federation = labeled_federation(counts=([3, 2, 0], [1, 0, 0]))
    bias = head_of(FedNCM(), federation).bias
    assert bias.tolist() == [0.0, 0.0, -torch.inf]
