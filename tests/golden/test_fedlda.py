"""FedLDA against its specification (McLaughlin and Su 2023), two clients, two rounds.

What stands in ``tests/golden/lda.py`` was written from the equations, without the library's
arithmetic.
"""

import numpy as np
import pytest
import torch

from fedtailor.algorithms.fedlda import FedLDA
from fedtailor.core.task import Training
from golden import fda, harness, lda
from golden.compare import assert_scores, server_of
from golden.network import features
from marks import quick

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
USUAL = harness.LABELS[0]
TOLERANCE = 1e-11


def assert_run(recorder, federation, algorithm, *, rounds=2):
    """Compare every update, aggregate and evaluation with the expected side."""
    body, shared = server_of(recorder.visit(1, "train", 0).shared)
    clients = [client for client in federation.roster.known if len(federation.splits[client].train)]
    sizes = [len(federation.splits[client].train) for client in clients]
    for round in range(1, rounds + 1):
        updates = {}
        for client in clients:
            visit = recorder.visit(round, "train", client)
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            harness.assert_epochs(
                batches, len(y), algorithm.training.batch_size, algorithm.training.epochs
            )
            updates[client] = lda.local_round(body, shared, x, y, batches, algorithm)
            assert_update(visit, federation, client, *updates[client], shared, algorithm)
        body, shared = lda.server_average(list(updates.values()), sizes)
        for client in [*federation.roster.known, *federation.roster.new]:
            own = (
                updates[client][0]
                if algorithm.evaluated_body == "local" and client in updates
                else body
            )
            personal, _, scores = recorder.visit(round, "personalize", client).output
            assert_personal(personal, federation, client, own, shared, algorithm)
            x, y = harness.examples(federation, client, "test")
            assert_scores(
                scores["clients"],
                logits_of(federation, client, own, shared, algorithm),
                y,
                TOLERANCE,
            )


def logits_of(federation, client, body, shared, algorithm):
    weight, bias = lda.head(shared, harness.examples(federation, client)[1], algorithm)
    return features(body, harness.examples(federation, client, "test")[0]) @ weight.T + bias


def assert_update(visit, federation, client, body, gaussian, shared, algorithm):
    """Compare a client's upload, and its scores right after training: its own body, the server's
    Gaussian."""
    _, upload, metrics, scores, *_ = visit.output
    assert set(upload) == {"body", "means", "covariance"}
    assert {float(entry.weight) for entry in upload.values()} == {
        len(federation.splits[client].train)
    }
    harness.assert_close(upload["body"].value, body, TOLERANCE)
    harness.assert_close(upload["means"].value, gaussian.means, TOLERANCE)
    harness.assert_close(upload["covariance"].value, gaussian.covariance, TOLERANCE)
    weight, _ = lda.head(shared, harness.examples(federation, client)[1], algorithm)
    condition = np.linalg.cond(fda.shrink(shared.covariance, lda.solver_shrinkage(algorithm)))
    harness.assert_close(metrics["max_head_weight"], np.abs(weight).max(), TOLERANCE)
    harness.assert_close(metrics["covariance_condition"], condition, 1e-9)
    harness.assert_close(
        metrics["feature_scale"], np.sqrt(np.diag(shared.covariance)).mean(), TOLERANCE
    )
    _, y = harness.examples(federation, client, "test")
    assert_scores(scores, logits_of(federation, client, body, shared, algorithm), y, TOLERANCE)


def assert_personal(personal, federation, client, body, shared, algorithm):
    """Compare a personal model and its logits."""
    harness.assert_close(personal.body, body, TOLERANCE)
    harness.assert_close(personal.means, shared.means, TOLERANCE)
    harness.assert_close(personal.covariance, shared.covariance, TOLERANCE)
    labels = harness.examples(federation, client)[1]
    harness.assert_close(
        personal.prior, fda.prior(labels, harness.CLASSES, algorithm.prior_smoothing)
    )
    x, _ = harness.examples(federation, client, "test")
    given = FedLDA().predict(federation.common_task, personal, torch.from_numpy(x))
    harness.assert_close(given, logits_of(federation, client, body, shared, algorithm), TOLERANCE)


OPTIONS = [
    {},
    {"penalty_centering": "batch"},
    {"evaluated_body": "local"},
    {"penalty": 2.0, "momentum": 0.2},
    {"penalty": 0.0},
    {"cov_ridge": 0.1},
    {"shrinkage": 0.3},
    {"shrinkage": "oas"},
    {"prior_smoothing": 0.1},
    {"momentum": 0.0},
    {"momentum": 1.0},
]
CASES = quick(OPTIONS, {}, {"evaluated_body": "local"}, {"shrinkage": "oas"}, {"momentum": 0.0})


@pytest.mark.parametrize("options", CASES, ids=lambda options: "-".join(options) or "defaults")
def test_two_rounds(recorder, options):
    federation = harness.make_federation()
    algorithm = FedLDA(training=TRAINING, **options)
    recorder.run(algorithm, federation)
    assert_run(recorder, federation, algorithm)


def test_the_paper_preset_is_lda_as_written(recorder):
    """Empirical frequencies, the covariance as it is estimated, and its inverse: nothing is added
    anywhere."""
    assert dict(FedLDA.presets["paper"]) == {
        "prior_smoothing": 1e-300,
        "cov_ridge": 0.0,
        "shrinkage": 0.0,
    }
    federation = harness.make_federation()
    algorithm = FedLDA.from_preset("paper", training=TRAINING)
    recorder.run(algorithm, federation)
    assert_run(recorder, federation, algorithm)
    _, y = harness.examples(federation, 0)
    assert len(set(y)) == harness.CLASSES
    visit = recorder.visit(2, "personalize", 0)
    means, covariance = visit.shared.means.numpy(), visit.shared.covariance.numpy()
    weight = np.linalg.inv(covariance) @ means.T  # (d, classes)
    bias = -0.5 * (means.T * weight).sum(0) + np.log(np.bincount(y) / len(y))
    personal, *_ = visit.output
    harness.assert_close(personal.head.weight, weight.T, TOLERANCE)
    harness.assert_close(personal.head.bias, bias, TOLERANCE)


SMALL = {
    "one example": [2],
    "one class": [1, 1, 1, 1, 1, 1],
    "fewer examples than features": [0, 2],
    "one of each class": [1, 2, 0],
}


@pytest.mark.parametrize("centering", ["class", "batch"])
@pytest.mark.parametrize("labels", SMALL.values(), ids=SMALL)
def test_small_clients(recorder, labels, centering):
    federation = harness.make_federation((USUAL, labels))
    algorithm = FedLDA(training=TRAINING, penalty_centering=centering)
    recorder.run(algorithm, federation)
    assert_run(recorder, federation, algorithm)


@pytest.mark.parametrize("evaluated", ["global", "local"])
def test_new_clients_and_those_without_data_need_their_class_frequencies_only(recorder, evaluated):
    federation = harness.make_federation((*harness.LABELS, [], [0, 2, 2, 1]), num_new=1)
    algorithm = FedLDA(training=TRAINING, evaluated_body=evaluated)
    recorder.run(algorithm, federation)
    assert_run(recorder, federation, algorithm)
    for client in (2, 3):
        assert (
            recorder.visit(2, "personalize", client).plans == []
            and (1, "train", client) not in recorder.visits
        )


def test_the_global_model_has_equally_likely_classes(recorder):
    federation = harness.make_federation()
    recorder.run(FedLDA(training=TRAINING), federation, rounds=1)
    for client in federation.roster.known:
        body, shared = server_of(recorder.visit(1, "personalize", client).shared)
        x, y = harness.examples(federation, client, "test")
        expected = fda.classify(
            features(body, x), shared, np.full(harness.CLASSES, 1 / 3), fda.RELEASED
        )
        assert_scores(recorder.visit(1, "score", client).output, expected, y, TOLERANCE)
