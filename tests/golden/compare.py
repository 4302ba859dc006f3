"""Compares a run of pFedFDA, client by client, with the expected side in :mod:`golden.fda`."""

from functools import partial

import numpy as np
import torch

from fedtailor.algorithms.pfedfda import PFedFDA
from golden import fda, harness
from golden.network import confusion, features


def server_of(shared):
    """Return body and Gaussian of a download as arrays."""
    return harness.arrays(shared.body), fda.Gaussian(
        shared.means.numpy(), shared.covariance.numpy()
    )


def assert_run(
    recorder, federation, algorithm, constants=fda.RELEASED, *, rounds=2, tolerance=1e-11, slack=0.0
):
    """Compare every update, aggregate and evaluation of a run in which all clients that can take
    part do.

    ``slack``: how much worse than the best of all grid points the objective of the library's beta
    may be; without any, it must be the same grid point. Returns the betas of (training,
    evaluation), by (round, client).
    """
    body, shared = server_of(recorder.visit(1, "train", 0).shared)
    clients = [client for client in federation.roster.known if len(federation.splits[client].train)]
    sizes = [len(federation.splits[client].train) for client in clients]
    trained, evaluated = {}, {}
    for round in range(1, rounds + 1):
        updates = []
        for client in clients:
            visit = recorder.visit(round, "train", client)
            search = partial(
                accept, visit.output[0].beta.numpy(), fda.SEARCH[algorithm.beta], slack
            )
            updates.append(
                update_of(
                    visit, federation, client, body, shared, algorithm.training, constants, search
                )
            )
            assert_update(visit, federation, client, updates[-1], constants, tolerance)
            trained[round, client] = updates[-1][2].tolist()
        body, shared = fda.server_average(updates, sizes)
        for client in [*federation.roster.known, *federation.roster.new]:
            visit = recorder.visit(round, "personalize", client)
            search = partial(
                accept, visit.output[0].beta.numpy(), fda.SEARCH[algorithm.beta], slack
            )
            expected = evaluation_of(visit, federation, client, body, shared, constants, search)
            assert_evaluation(visit, federation, client, body, expected, constants, tolerance)
            evaluated[round, client] = expected[2].tolist()
    return trained, evaluated


def accept(given, search, slack, z, y, halves, shared, pi, constants):
    """Return the beta that ``search`` finds, or ``given`` if its objective is worse by ``slack`` at
    most."""
    best = search(z, y, halves, shared, pi, constants)
    if given.tolist() == best.tolist() or slack == 0:
        return best
    pair = np.stack([given, best], 1)
    worse = fda.objective(z, y, halves, shared, pi, constants, *pair)
    assert worse[0] - worse[1] <= slack * (1 + abs(worse[1])), (
        f"J is {worse[0]} at {given}, {worse[1]} at {best}"
    )
    return given


def update_of(visit, federation, client, body, shared, training, constants, search):
    """Compute a client's update from the order of batches and the folds that the library drew."""
    x, y = harness.examples(federation, client)
    (batches,) = visit.plans
    harness.assert_epochs(
        batches, len(y), training.batch_size, training.epochs, drop_last=training.drop_last
    )
    labels = np.concatenate([y[batch] for batch in batches])
    halves = halves_of(visit, labels, np.arange(len(labels)))
    return fda.local_round(body, shared, x, y, batches, halves, training, constants, search)


def halves_of(visit, labels, kept):
    """Return the rows of both halves; assert that they are stratified and leave out classes with a
    single row."""
    if not visit.folds:
        return None
    (halves,) = visit.folds
    counts = np.bincount(labels[kept], minlength=harness.CLASSES)
    expected = [row for row in kept if counts[labels[row]] >= 2]
    assert sorted(np.concatenate(halves)) == sorted(expected)
    shares = [np.bincount(labels[half], minlength=harness.CLASSES) for half in halves]
    assert np.abs(shares[0] - shares[1]).max() <= 1
    return halves


def assert_update(visit, federation, client, update, constants, tolerance):
    """Compare a client's state and upload, and its scores right after training."""
    state, upload, metrics, scores, *_ = visit.output
    body, gaussian, beta = update
    assert state.beta.tolist() == beta.tolist()
    assert [float(metrics[name]) for name in ("beta_means", "beta_covariance")] == beta.tolist()
    assert set(upload) == {"body", "means", "covariance"}
    assert {float(entry.weight) for entry in upload.values()} == {
        len(federation.splits[client].train)
    }
    harness.assert_close(upload["body"].value, body, tolerance)
    harness.assert_close(upload["means"].value, gaussian.means, tolerance)
    harness.assert_close(upload["covariance"].value, gaussian.covariance, tolerance)
    pi = fda.prior(harness.examples(federation, client)[1], harness.CLASSES, constants.smoothing)
    x, y = harness.examples(federation, client, "test")
    assert_scores(scores, fda.classify(features(body, x), gaussian, pi, constants), y, tolerance)


def evaluation_of(visit, federation, client, body, shared, constants, search):
    """Compute a client's Gaussian, prior and beta at evaluation."""
    x, y = harness.examples(federation, client)
    kept = np.arange(len(y)) if visit.kept is None else visit.kept
    return fda.evaluation(body, shared, x, y, kept, halves_of(visit, y, kept), constants, search)


def assert_evaluation(visit, federation, client, body, expected, constants, tolerance):
    """Compare a client's personal model, its logits and its predictions."""
    gaussian, pi, beta = expected
    personal, _, scores = visit.output
    assert personal.beta.tolist() == beta.tolist()
    harness.assert_close(personal.body, body, tolerance)
    harness.assert_close(personal.prior, pi, tolerance)
    harness.assert_close(personal.means, gaussian.means, tolerance)
    harness.assert_close(personal.covariance, gaussian.covariance, tolerance)
    x, y = harness.examples(federation, client, "test")
    logits = fda.classify(features(body, x), gaussian, pi, constants)
    given = PFedFDA().predict(federation.common_task, personal, torch.from_numpy(x))
    harness.assert_close(given, logits, tolerance)
    assert given.argmax(1).tolist() == logits.argmax(1).tolist()
    assert_scores(scores["clients"], logits, y, tolerance)


def assert_scores(scores, expected, y, tolerance):
    """Compare scores with those of the expected logits."""
    correct, loss = confusion(expected, y)
    assert scores.class_correct.tolist() == correct.tolist()
    assert abs(float(scores.loss_sum) - loss) <= len(y) * tolerance * max(
        1.0, np.abs(expected).max()
    )
