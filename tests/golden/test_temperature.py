"""The temperature between likelihood and class prior of pFedFDA and FedLDA, against NumPy."""

import numpy as np
import pytest
import torch

from fedtailor.algorithms._gaussian_classifier import TEMPERATURES, losses_of_temperatures
from fedtailor.algorithms.fedlda import FedLDA
from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core import tree
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run
from golden import fda, harness
from golden.compare import server_of
from golden.network import features, log_softmax
from marks import quick

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
METHODS = [PFedFDA, FedLDA]


def mean_losses(log_likelihood, y, pi):
    """Mean of -log softmax(t LL + log pi) over the examples, for each t."""
    losses = []
    for t in TEMPERATURES:
        logits = t * log_likelihood + np.log(pi)
        losses.append(-log_softmax(logits)[np.arange(len(y)), y].mean())
    return np.array(losses)


def nearest_to_one(losses):
    """The temperature nearest to 1 whose loss is within 0.01 of the least."""
    candidates = [t for t, loss in zip(TEMPERATURES, losses) if loss <= min(losses) + 0.01]
    return min(candidates, key=lambda t: abs(np.log(t)))


def losses_of_halves(visit, body, shared, x, y):
    """pFedFDA: each half is judged by the blend that the other one gives."""
    z = features(body, x)
    pi = fda.prior(y, harness.CLASSES)
    halves = visit.folds[1]
    beta = fda.search_single(z, y, halves, shared, pi, fda.RELEASED)

    likelihoods, labels = [], []
    for half, other in (halves, halves[::-1]):
        local = fda.estimate(z[half], y[half], shared.means, fda.RELEASED)
        blended = fda.blend(local, shared, beta)
        likelihoods.append(fda.classify(z[other], blended, pi, fda.RELEASED) - np.log(pi))
        labels.append(y[other])
    return mean_losses(np.concatenate(likelihoods), np.concatenate(labels), pi)


def losses_of_received(visit, body, shared, x, y):
    """FedLDA: all examples are judged by the received model."""
    pi = fda.prior(y, harness.CLASSES)
    log_likelihood = fda.classify(features(body, x), shared, pi, fda.RELEASED) - np.log(pi)
    return mean_losses(log_likelihood, y, pi)


@pytest.mark.parametrize(
    ("method", "expected_losses"), [(PFedFDA, losses_of_halves), (FedLDA, losses_of_received)]
)
def test_two_rounds(recorder, method, expected_losses):
    federation = harness.make_federation()
    recorder.run(method(training=TRAINING, temperature="cross_validated"), federation)

    chosen = []
    for round in (1, 2):
        uploads, sizes = [], []
        for client in federation.roster.known:
            visit = recorder.visit(round, "train", client)
            x, y = harness.examples(federation, client)
            expected = expected_losses(visit, *server_of(visit.shared), x, y)
            upload = visit.output[1]["temperature_losses"]
            harness.assert_close(upload.value, expected, 1e-11)
            assert float(upload.weight) == len(y)
            uploads.append(expected)
            sizes.append(len(y))

        # The mean over clients, and the temperature of all of their models.
        losses = np.average(uploads, axis=0, weights=sizes)
        for client in federation.roster.known:
            visit = recorder.visit(round, "personalize", client)
            harness.assert_close(visit.shared.temperature_losses, losses, 1e-11)
            personal = visit.output[0]
            assert float(personal.temperature) == nearest_to_one(losses)
        chosen.append(nearest_to_one(losses))

    assert set(chosen) != {1.0}, "the federation no longer shows a choice"


@pytest.mark.parametrize(
    ("method", "expected_losses"), [(PFedFDA, losses_of_halves), (FedLDA, losses_of_received)]
)
def test_pooled_statistics_choose_a_temperature_too(recorder, method, expected_losses):
    federation = harness.make_federation()
    options = {"statistics": "pooled", "temperature": "cross_validated"}
    recorder.run(method(training=TRAINING, **options), federation, rounds=1)
    assert not any(report.events for report in recorder.reports)

    uploads = []
    sizes = []
    for client in federation.roster.known:
        visit = recorder.visit(1, "train", client)
        x, y = harness.examples(federation, client)
        visit.folds = [None, *visit.folds]  # there is one cross-validation only
        expected = expected_losses(visit, *server_of(visit.shared), x, y)
        harness.assert_close(visit.output[1]["temperature_losses"].value, expected, 1e-11)
        uploads.append(expected)
        sizes.append(len(y))

    losses = np.average(uploads, axis=0, weights=sizes)
    personal = recorder.visit(1, "personalize", 0).output[0]
    assert float(personal.temperature) == nearest_to_one(losses)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", quick([0.3, "cross_validated"], "cross_validated"))
def test_only_predictions_change(method, temperature):
    clients = harness.make_federation()
    usual = run(method(training=TRAINING), Reference(), clients)
    other = run(method(training=TRAINING, temperature=temperature), Reference(), clients)

    # What is trained and averaged keeps its bits.
    for one, two in zip(usual.reports, other.reports, strict=True):
        for name in ("body", "means", "covariance"):
            first = tree.leaves(getattr(one.state.server, name))
            second = tree.leaves(getattr(two.state.server, name))
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    for client, personal in usual.reports[-1].personal.items():
        tempered = other.reports[-1].personal[client]
        t = temperature if temperature != "cross_validated" else float(tempered.temperature)
        assert t != 1.0

        # By equation: t (logits - log pi) + log pi.
        log_prior = personal.prior.log()
        expected = t * (personal.head.bias - log_prior) + log_prior
        torch.testing.assert_close(tempered.head.weight, t * personal.head.weight)
        torch.testing.assert_close(tempered.head.bias, expected)


@pytest.mark.parametrize("labels", quick([[2], [], [0, 1, 2], [1, 1, 1, 1]], [2], []))
@pytest.mark.parametrize("method", METHODS)
def test_a_client_with_few_examples_speaks_for_no_temperature_that_breaks(method, labels):
    clients = harness.make_federation((harness.LABELS[0], labels))
    algorithm = method(training=TRAINING, temperature="cross_validated", prior_smoothing=0.01)
    record = run(algorithm, Reference(), clients)
    kinds = {event["kind"] for report in record.reports for event in report.events}
    assert kinds <= {"skipped"}
    for personal in record.reports[-1].personal.values():
        assert torch.isfinite(personal.head.weight).all()


def test_losses_without_examples_or_of_broken_ones_are_all_equal():
    likelihood = torch.tensor([[0.0, 1.0], [torch.nan, 0.0]])
    labels = torch.tensor([1, 0])
    prior = torch.tensor([0.5, 0.5])
    none = losses_of_temperatures(likelihood, labels, torch.tensor([0.0, 0.0]), prior)
    broken = losses_of_temperatures(likelihood, labels, torch.tensor([1.0, 1.0]), prior)
    assert none.tolist() == broken.tolist() == [0.0] * len(TEMPERATURES)

    # Padding may have any label.
    labels = torch.tensor([1, -7])
    padded = losses_of_temperatures(likelihood, labels, torch.tensor([1.0, 0.0]), prior)
    expected = [np.log1p(np.exp(-t)) for t in TEMPERATURES]
    np.testing.assert_allclose(padded, expected, rtol=0, atol=1e-12)


def test_the_nearest_to_one_comes_first():
    distances = [round(abs(np.log(t)), 9) for t in TEMPERATURES]
    assert distances == sorted(distances) and TEMPERATURES[0] == 1
