"""FedPAC against Xu et al. 2023: statistics, head, aligned body, class means; heads combined by a
quadratic program."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from federations import Planned
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.core.task import Training
from golden import harness
from golden.network import BODY, HEAD, average, confusion, features, gradient, logits, sgd

CLASSES = harness.CLASSES
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)


def means_of(w, x, y):
    """Mean feature of every class, 0 without examples."""
    z = features(w, x)
    return np.stack(
        [z[y == c].mean(0) if (y == c).any() else np.zeros(z.shape[1]) for c in range(CLASSES)]
    )


def statistics(w, x, y):
    """V_i and H_i, literally."""
    z, variance, parts = features(w, x), 0.0, np.zeros((CLASSES, w["head.weight"].shape[1]))
    for c in set(y.tolist()):
        share, own = (y == c).mean(), z[y == c]
        variance += share * (own**2).sum(1).mean() - share**2 * (own.mean(0) ** 2).sum()
        parts[c] = share * own.mean(0)
    return variance / len(y), parts


def train_body(w, x, y, batches, training, targets, penalty):
    """Steps on the body down CE + penalty mean (z - target)^2, the head frozen."""
    w, velocity = dict(w), {name: np.zeros_like(w[name]) for name in BODY}
    for batch in batches:
        slope = gradient(w, x[batch], y[batch])
        hidden = x[batch] @ w["hidden.weight"].T + w["hidden.bias"]
        gaps = np.maximum(hidden, 0) - targets[y[batch]]
        back = penalty * 2 * gaps / gaps.size * (hidden > 0)
        slope["hidden.weight"] = slope["hidden.weight"] + back.T @ x[batch]
        slope["hidden.bias"] = slope["hidden.bias"] + back.sum(0)
        for name in BODY:
            velocity[name] = (
                training.momentum * velocity[name] + slope[name] + training.weight_decay * w[name]
            )
            w[name] = w[name] - training.lr * velocity[name]
    return w


def best_mixture(variances, parts, i):
    """argmin a^T P_i a over the simplex by trying all supports; weights below 0.001 dropped."""
    m = len(parts)
    p, found = np.diag(variances), []
    for j in range(m):
        for k in range(m):
            p[j, k] += ((parts[i] - parts[j]) * (parts[i] - parts[k])).sum()
    for support in (list(s) for size in range(1, m + 1) for s in combinations(range(m), size)):
        a = np.zeros(m)
        a[support] = np.linalg.solve(p[np.ix_(support, support)], np.ones(len(support)))
        a /= a.sum()
        if a.min() >= 0:
            found.append((a @ p @ a, a.tolist()))
    a = np.array(min(found)[1])
    a = np.where(a < 1e-3, 0, a)
    return a / a.sum()


def assert_training(visit, federation, client, head, means, known, algorithm):
    """Compare a client's round; return its model, its statistics, class means and counts."""
    training, rate = algorithm.training, replace(algorithm.training, lr=algorithm.head_lr)
    x, y = harness.examples(federation, client)
    for batches, epochs in zip(visit.plans, (algorithm.head_epochs, training.epochs), strict=True):
        harness.assert_epochs(
            batches, len(y), training.batch_size, epochs, drop_last=training.drop_last
        )
    w = {**harness.arrays(visit.shared.body), **head}
    targets, found = np.where(known[:, None] > 0, means, means_of(w, x, y)), statistics(w, x, y)
    w, *_ = sgd(w, x, y, visit.plans[0], rate, HEAD)
    w = train_body(
        w, x, y, visit.plans[1], training, targets, algorithm.penalty if known.any() else 0.0
    )
    assert_upload(visit.output, w, found, means_of(w, x, y), y, algorithm)
    assert int(visit.output[2]["steps"]) == sum(map(len, visit.plans))
    return w, *found, means_of(w, x, y), np.bincount(y, minlength=CLASSES)


def assert_run(recorder, federation, algorithm, *, rounds=2, cohorts=None):
    """Compare every upload and personal model; return the weights of all heads by round."""
    body, heads = (
        harness.part(harness.initial(federation), BODY),
        dict.fromkeys(federation.roster.known, harness.part(harness.initial(federation), HEAD)),
    )
    means, known, weights = np.zeros((CLASSES, harness.HIDDEN)), np.zeros(CLASSES), {}
    for round in range(1, rounds + 1):
        cohort, trained = (cohorts or {}).get(round, list(federation.roster.known)), []
        for client in cohort:
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.body, body)
            harness.assert_close(visit.shared.class_means, means)
            trained.append(
                assert_training(visit, federation, client, heads[client], means, known, algorithm)
            )
        ws, variances, parts, own, counts = zip(*trained)
        body = average([harness.part(w, BODY) for w in ws], [count.sum() for count in counts])
        total, summed = sum(counts), sum(count[:, None] * mean for count, mean in zip(counts, own))
        means, known = (
            np.where(total[:, None] > 0, summed / np.maximum(total, 1)[:, None], means),
            known + total,
        )
        weights[round] = np.eye(len(cohort))
        if algorithm.combine_heads:
            weights[round] = np.stack(
                [best_mixture(variances, parts, i) for i in range(len(cohort))]
            )
        for client, row in zip(cohort, weights[round]):
            heads[client] = {name: sum(a * w[name] for a, w in zip(row, ws)) for name in HEAD}
        for client in federation.roster.known:
            assert_personal(
                recorder.visit(round, "personalize", client),
                federation,
                client,
                {**body, **heads[client]},
            )
    return weights


def assert_personal(visit, federation, client, w):
    """Compare a client's personal model and its scores."""
    personal, _, by_set = visit.output
    harness.assert_close(personal.model, w, 1e-11)
    x, y = harness.examples(federation, client, "test")
    correct, loss = confusion(logits(w, x), y)
    assert by_set["clients"].class_correct.tolist() == correct.tolist()
    assert abs(float(by_set["clients"].loss_sum) - loss) < 1e-10


def assert_upload(output, w, found, means, y, algorithm):
    """Compare the upload of a client with what it should have computed."""
    _, upload, *_ = output
    harness.assert_close(upload["body"].value, harness.part(w, BODY))
    harness.assert_close(upload["class_means"].value, means)
    assert upload["class_means"].weight.tolist() == np.bincount(y, minlength=CLASSES).tolist()
    assert float(upload["body"].weight) == len(y)
    assert set(upload) == {
        "body",
        "class_means",
        *(("head", "statistics") if algorithm.combine_heads else ()),
    }
    if algorithm.combine_heads:
        harness.assert_close(upload["head"].value, harness.part(w, HEAD))
        harness.assert_close(upload["statistics"].value.variance, np.asarray(found[0]))
        harness.assert_close(upload["statistics"].value.prior_means, found[1])


@pytest.mark.parametrize("training", [TRAINING, DROPPING])
@pytest.mark.parametrize(
    "options", [{}, {"penalty": 5.0, "head_epochs": 2, "head_lr": 0.3}, {"combine_heads": False}]
)
def test_two_rounds(recorder, training, options):
    """Pitfalls: the head has epochs and a rate of its own, statistics are of before, means weigh
    counts."""
    federation, algorithm = harness.make_federation(), FedPAC(training=training, **options)
    recorder.run(algorithm, federation)
    weights = assert_run(recorder, federation, algorithm)
    if algorithm.combine_heads:
        assert any(
            (row > 0.05).all() for rows in weights.values() for row in rows
        )  # somebody listens to another


def test_class_means_are_not_forgotten(recorder):
    """Class 0 was sent in the first round, by somebody without class 2, and not again."""
    labels = ([0, 0, 1, 0, 1, 1, 0], [1, 2, 2, 1, 2], [0, 2, 0, 0, 1, 2])
    federation = harness.make_federation(labels)
    algorithm = FedPAC(training=TRAINING)
    cohorts = {1: [0], 2: [1], 3: [1, 2]}
    recorder.run(algorithm, federation, rounds=3, participation=Planned(cohorts=cohorts))
    assert recorder.visit(3, "train", 2).shared.known.tolist() == [1, 1, 1]
    assert_run(recorder, federation, algorithm, rounds=3, cohorts=cohorts)
