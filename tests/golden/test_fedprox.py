"""FedProx against Li et al. 2020, Algorithm 2: SGD on CE(w) + (mu / 2) |w - w^t|^2, then the mean
by examples."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import federations
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedprox import FedProx
from fedtailor.core.errors import ConfigError
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import assert_close_runs, run
from golden import harness
from golden.network import ALL, average, confusion, cross_entropy, gradient, logits

SIZES = [len(labels) for labels in harness.LABELS]
PLAIN = Training(lr=0.2, epochs=2, batch_size=5)
HEAVY = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=3, batch_size=5)


def proximal_sgd(start, x, y, batches, training, penalty):
    """SGD with momentum and coupled decay on the proximal objective; returns w and the objective's
    mean over steps."""
    w, velocity, losses = dict(start), dict.fromkeys(ALL, 0.0), []
    for batch in batches:
        distance = sum(((w[name] - start[name]) ** 2).sum() for name in ALL)
        losses.append(cross_entropy(logits(w, x[batch]), y[batch]) + penalty / 2 * distance)
        slope = gradient(w, x[batch], y[batch])
        for name in ALL:
            full = slope[name] + penalty * (w[name] - start[name]) + training.weight_decay * w[name]
            velocity[name] = training.momentum * velocity[name] + full
        w = {name: w[name] - training.lr * velocity[name] for name in ALL}
    return w, np.mean(losses)


@pytest.mark.parametrize("training", [PLAIN, HEAVY], ids=["plain", "heavy"])
@pytest.mark.parametrize("penalty", [0.1, 2.0])
def test_two_rounds(recorder, training, penalty):
    """The center is the received model in every round, and the recorded loss holds the square of
    the distance."""
    federation = harness.make_federation()
    recorder.run(FedProx(training=training, penalty=penalty), federation)
    w = harness.initial(federation)
    for round in (1, 2):
        trained = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, w)
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            harness.assert_epochs(batches, len(y), training.batch_size, training.epochs)
            expected, loss = proximal_sgd(w, x, y, batches, training, penalty)
            trained.append(expected)
            harness.assert_close(visit.output[1]["model"].value, expected)
            assert float(visit.output[2]["loss"]) == pytest.approx(loss, abs=1e-12)
            assert int(visit.output[2]["steps"]) == len(batches)
        w = average(trained, SIZES)
        for client in (0, 1):
            x, y = harness.examples(federation, client, "test")
            assert recorder.visit(round, "score", client).output.class_correct.tolist() == (
                confusion(logits(w, x), y)[0].tolist()
            )
            harness.assert_close(recorder.visit(round, "personalize", client).output[0], w)


def test_the_default_penalty_is_not_degenerate(recorder):
    """A library whose default is 0 compares with FedAvg under another name."""
    assert FedProx().penalty == 0.1 and FedProx().warnings(harness.task()) == []
    assert FedProx(penalty=0.0).warnings(harness.task()) == ["with penalty 0, this is FedAvg."]


def test_without_penalty_it_is_fedavg():
    federation = federations.make_federation(federations.module())
    runs = [
        run(one, Reference(), federation)
        for one in (FedProx(training=HEAVY, penalty=0.0), FedAvg(training=HEAVY))
    ]
    assert_close_runs(*runs, tolerance=0.0)


def test_one_step_is_that_of_fedavg():
    """The pull is 0 where local training starts, so one full batch leaves no difference; two do."""
    federation = harness.make_federation()
    for epochs, same in ((1, True), (2, False)):
        one, two = (
            run(
                make(training=replace(PLAIN, batch_size=0, epochs=epochs)),
                Reference(),
                federation,
                rounds=1,
            )
            for make in (partial(FedProx, penalty=5.0), FedAvg)
        )
        distance = max(
            float((leaf - two.reports[-1].personal[0][name]).abs().max())
            for name, leaf in one.reports[-1].personal[0].items()
        )
        assert (distance < 1e-13) == same


def test_long_training_ends_where_the_pull_balances_the_gradient(recorder):
    """At the minimum, grad CE(w) + mu (w - w^t) = 0: mu itself, neither half of it nor twice."""
    federation = harness.make_federation()
    recorder.run(
        FedProx(training=Training(lr=0.1, batch_size=0, epochs=200), penalty=5.0),
        federation,
        rounds=1,
    )
    for client in (0, 1):
        visit = recorder.visit(1, "train", client)
        start, end = (
            harness.arrays(visit.shared.model),
            harness.arrays(visit.output[1]["model"].value),
        )
        slope = gradient(end, *harness.examples(federation, client))
        for name in ALL:
            np.testing.assert_allclose(slope[name], 5.0 * (start[name] - end[name]), atol=1e-9)
            assert np.abs(slope[name]).max() > 1e-2


def test_buffers_are_averaged_and_not_penalized(recorder):
    """While parameters hardly move, running statistics do, and the recorded loss does not feel
    it."""
    federation = federations.make_federation(federations.module(), (9, 14), ())
    still = Training(lr=1e-13, epochs=3, batch_size=5)
    plain, near = (
        run(one(training=still), Reference(), federation, rounds=1) for one in (FedAvg, FedProx)
    )
    assert_close_runs(plain, near, tolerance=1e-9)
    strong = run(FedProx(training=still, penalty=1e3), Reference(), federation, rounds=1)
    uploads = [strong.of("train")[1, client][1]["model"].value for client in (0, 1)]
    server = strong.reports[-1].personal[0]
    buffers = federation.common_task.names("buffer")
    assert buffers
    for name in buffers:
        mean = (9 * uploads[0][name] + 14 * uploads[1][name]) / 23
        assert float((server[name] - mean).abs().max()) < 1e-12
        assert not np.allclose(uploads[0][name], uploads[1][name], atol=1e-3)
    for client in (0, 1):
        losses = [float(one.of("train")[1, client][2]["loss"]) for one in (plain, strong)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-9)


def test_a_new_client_predicts_with_the_global_model(recorder):
    federation = harness.make_federation((*harness.LABELS, [0, 2, 2, 1, 0, 2]), num_new=1)
    recorder.run(FedProx(training=HEAVY), federation)
    visit = recorder.visit(2, "personalize", 2)
    assert visit.plans == []
    harness.assert_close(visit.output[0], harness.arrays(recorder.visit(2, "score", 0).shared))
    assert (
        recorder.reports[-1].evaluations[-1].adaptation == "none"
        and FedProx.primary_evaluation == "global"
    )


def test_a_negative_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"FedProx.penalty must be >= 0, got -1"):
        FedProx(penalty=-1.0)
