"""pFedVEM against its specification (Zhu, Ma and Blaschko 2023, and the released code), two rounds.

What stands in ``tests/golden/vem.py`` was written from the equations, without the library's
arithmetic; it is given the order of batches and the noise that the library drew.
"""

import numpy as np
import pytest
import torch

from federations import Planned
from fedtailor.algorithms.pfedvem import PFedVEM
from fedtailor.core.task import Training
from fedtailor.statistics import gaussian_heads
from golden import harness, vem
from golden.compare import assert_scores
from golden.network import HEAD, features
from marks import quick

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
TOLERANCE = 1e-11
THREE = (*harness.LABELS, [0, 2, 2, 1])


@pytest.fixture(autouse=True)
def noises(recorder, monkeypatch):
    """Keep the noise that each program draws for its losses with what the recorder keeps of it."""
    original = gaussian_heads.normal

    def normal(key, shape):
        drawn = original(key, shape)
        vars(recorder.current).setdefault("noises", []).append(drawn.numpy())
        return drawn

    monkeypatch.setattr(gaussian_heads, "normal", normal)


def head_of(params):
    return tuple(params[name].numpy() for name in HEAD)


def posterior_of(state):
    return vem.Posterior(head_of(state.posterior.mean), head_of(state.posterior.raw))


def first_posterior(w, scale):
    raw = tuple(np.full_like(part, np.log(np.expm1(scale))) for part in w)
    return vem.Posterior(w, raw)


def assert_run(recorder, federation, algorithm, cohorts, *, rounds=2, everybody=True):
    """Compare every update, aggregate and evaluation; return the confidences by (round, client)."""
    shared = recorder.visit(1, "train", 0).shared
    body, w = harness.arrays(shared.body), head_of(shared.head)
    clients = [client for client in federation.roster.known if len(federation.splits[client].train)]
    posteriors, bodies, taus = {}, {}, {}
    for round in range(1, rounds + 1):
        trained = clients if everybody else cohorts[round]
        for client in trained:
            visit = recorder.visit(round, "train", client)
            before = posteriors.get(client)
            rho2 = variance_of(algorithm, before, w)
            before = before or first_posterior(w, algorithm.initial_scale)
            x, y = harness.examples(federation, client)
            posteriors[client], bodies[client] = assert_update(
                visit,
                algorithm,
                before,
                body,
                w,
                rho2,
                x,
                y,
                harness.examples(federation, client, "test"),
            )
            taus[round, client] = 1 / rho2
        assert not [
            key for key in recorder.visits if key[:2] == (round, "train") and key[2] not in trained
        ]
        sent = [client for client in cohorts[round] if client in clients]
        sizes = [len(federation.splits[client].train) for client in sent]
        confidences = [taus[round, client] for client in sent]
        heads = [posteriors[client].mean for client in sent]
        body, w = vem.server_average([bodies[client] for client in sent], sizes, heads, confidences)
        for client in federation.roster.known:
            assert_personal(
                recorder, federation, round, client, algorithm, body, w, posteriors, bodies
            )
    return taus


def variance_of(algorithm, before, w):
    """rho^2 of the M-step; that of the initial scale in a client's first round."""
    if before is None:
        return algorithm.initial_scale**2
    both, uncertainty, deviation = vem.variance(before, w)
    return {"both": both, "uncertainty": uncertainty, "deviation": deviation}[algorithm.confidence]


def assert_update(visit, algorithm, before, body, w, rho2, x, y, test):
    """Compare a client's state, upload, metrics and scores; return its posterior and body."""
    state, upload, metrics, scores, *_ = visit.output
    full, batches = visit.plans
    assert [sorted(batch) for batch in full] == [list(range(len(y)))] * algorithm.head_steps
    harness.assert_epochs(batches, len(y), algorithm.training.batch_size, algorithm.training.epochs)
    assert {noise.shape for noise in visit.noises} == {
        (algorithm.draws, harness.CLASSES * (harness.HIDDEN + 1))
    }
    assert (
        len({noise.tobytes() for noise in visit.noises})
        == len(visit.noises)
        == len(full) + len(batches)
    )
    first, rest = visit.noises[: len(full)], visit.noises[len(full) :]
    posterior, objective = vem.tune_head(
        features(body, x), y, before, w, rho2, first, algorithm.head_lr
    )
    trained = vem.train_body(body, posterior, x, y, batches, rest, algorithm.training)
    for given, expected in zip(posterior_of(state), posterior):
        for one, two in zip(given, expected):
            harness.assert_close(one, two, TOLERANCE)
    assert set(upload) == {"body", "head"} and float(upload["body"].weight) == len(y)
    harness.assert_close(upload["body"].value, trained, TOLERANCE)
    harness.assert_close(upload["head"].value, dict(zip(HEAD, posterior.mean)), TOLERANCE)
    harness.assert_close(upload["head"].weight, np.asarray(1 / rho2), 1e-10)
    _, uncertainty, deviation = vem.variance(before, w)
    numbers = {
        "confidence": 1 / rho2,
        "rho": rho2**0.5,
        "uncertainty": uncertainty,
        "model_deviation": deviation,
    }
    numbers |= {
        "head_loss": objective,
        "steps": len(full) + len(batches),
        "head_restored": 0,
        "body_restored": 0,
    }
    for name, value in numbers.items():
        assert float(metrics[name]) == pytest.approx(value, rel=1e-10, abs=1e-12), name
    assert_scores(scores, vem.predictions(trained, posterior.mean, test[0]), test[1], TOLERANCE)
    return posterior, trained


def assert_personal(recorder, federation, round, client, algorithm, body, w, posteriors, bodies):
    """Compare the personal model of a client after a round, and the global one on its test
    examples."""
    personal, diagnostics, scores = recorder.visit(round, "personalize", client).output
    own = posteriors.get(client) or first_posterior(w, algorithm.initial_scale)
    expected = bodies.get(client, body) if algorithm.evaluated_body == "local" else body
    harness.assert_close(personal.body, expected, TOLERANCE)
    harness.assert_close(personal.head, dict(zip(HEAD, own.mean)), TOLERANCE)
    harness.assert_close(personal.deviation, dict(zip(HEAD, vem.deviations(own.raw))), TOLERANCE)
    assert float(diagnostics["uncertainty"]) == pytest.approx(vem.variance(own, w)[1], rel=1e-10)
    x, y = harness.examples(federation, client, "test")
    assert_scores(scores["clients"], vem.predictions(expected, own.mean, x), y, TOLERANCE)
    assert_scores(
        recorder.visit(round, "score", client).output, vem.predictions(body, w, x), y, TOLERANCE
    )


EVERYBODY = {1: [0, 1], 2: [0, 1]}
OPTIONS = [
    {},
    {"evaluated_body": "global"},
    {"draws": 1, "head_steps": 3, "initial_scale": 0.3},
    {"confidence": "uncertainty"},
    {"confidence": "deviation", "head_steps": 2, "initial_scale": 0.1, "head_lr": 0.01},
]
CASES = quick(OPTIONS, {}, OPTIONS[-1])


@pytest.mark.parametrize("options", CASES, ids=lambda options: "-".join(options) or "defaults")
def test_two_rounds(recorder, options):
    federation = harness.make_federation()
    algorithm = PFedVEM(training=TRAINING, **options)
    recorder.run(algorithm, federation)
    taus = assert_run(recorder, federation, algorithm, EVERYBODY)
    assert taus[2, 0] != taus[2, 1], "the federation no longer shows different confidences"


@pytest.mark.parametrize("train", quick(["auto", "cohort"], "auto"))
def test_all_clients_train_and_the_cohort_uploads(recorder, train):
    federation = harness.make_federation(THREE)
    cohorts = {1: [0, 1], 2: [1, 2], 3: [0, 2]}
    algorithm = PFedVEM(training=TRAINING)
    recorder.run(
        algorithm, federation, rounds=3, participation=Planned(cohorts=cohorts), train=train
    )
    assert_run(recorder, federation, algorithm, cohorts, rounds=3, everybody=train == "auto")


@pytest.mark.parametrize("labels", quick([[2], [1, 1, 1, 1, 1, 1], [0, 2], [1, 2, 0]], [2]))
def test_small_clients(recorder, labels):
    federation = harness.make_federation((harness.LABELS[0], labels))
    algorithm = PFedVEM(training=TRAINING)
    recorder.run(algorithm, federation)
    assert_run(recorder, federation, algorithm, EVERYBODY)


def test_a_client_without_training_data_gets_the_global_model(recorder):
    federation = harness.make_federation((*harness.LABELS, []))
    algorithm = PFedVEM(training=TRAINING)
    recorder.run(algorithm, federation)
    assert_run(recorder, federation, algorithm, {1: [0, 1], 2: [0, 1]})
    personal, score = (recorder.visit(2, name, 2).output for name in ("personalize", "score"))
    assert torch.equal(personal[2]["clients"].loss_sum, score.loss_sum)
