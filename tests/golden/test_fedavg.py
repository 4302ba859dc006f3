"""FedAvg against McMahan et al. 2017, Algorithm 1: w <- sum_i (n_i / n) w_i, after SGD on every
client."""

from functools import partial

import pytest
import torch

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness
from golden.network import average, confusion, cross_entropy, gradient, logits, sgd

SIZES = [len(labels) for labels in harness.LABELS]
PLAIN = Training(lr=0.2, epochs=2, batch_size=5)
HEAVY = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=3, batch_size=4, drop_last=True)
WHOLE = Training(lr=0.1, momentum=0.5, epochs=2, batch_size=0)
LARGE = Training(lr=0.1, momentum=0.5, epochs=2, batch_size=10)  # more than the second client has


def test_the_gradient_by_hand_is_a_gradient():
    federation = harness.make_federation()
    x, y = harness.examples(federation, 0)
    w = harness.arrays(federation.common_task.model.init(new_key(0)))
    slope = gradient(w, x, y)
    for name, value in w.items():
        for place in range(0, value.size, 3):
            shifted = {name: array.copy() for name, array in w.items()}
            losses = []
            for step in (1e-6, -1e-6):
                shifted[name].flat[place] = value.flat[place] + step
                losses.append(cross_entropy(logits(shifted, x), y))
            assert abs((losses[0] - losses[1]) / 2e-6 - slope[name].flat[place]) < 1e-8


@pytest.mark.parametrize("training", [PLAIN, HEAVY, DROPPING, WHOLE, LARGE])
def test_two_rounds(recorder, training):
    federation = harness.make_federation()
    recorder.run(FedAvg(training=training), federation)
    assert_batches = partial(
        harness.assert_epochs, epochs=training.epochs, drop_last=training.drop_last
    )
    w = harness.initial(federation)
    for round in (1, 2):
        trained = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, w)
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            assert_batches(batches, len(y), training.batch_size or len(y))
            trained.append(sgd(w, x, y, batches, training)[0])
            harness.assert_close(visit.output[1]["model"].value, trained[-1])
        w = average(trained, SIZES)
        for client in (0, 1):
            visit = recorder.visit(round, "score", client)
            x, y = harness.examples(federation, client, "test")
            correct, loss = confusion(logits(w, x), y)
            assert visit.output.class_correct.tolist() == correct.tolist()
            assert abs(float(visit.output.loss_sum) - loss) < 1e-11
            harness.assert_close(recorder.visit(round, "personalize", client).output[0], w)


def test_orders_differ_by_round_and_client(recorder):
    recorder.run(FedAvg(training=WHOLE), harness.make_federation(labels=([0, 1, 2] * 4,) * 2))
    orders = {
        tuple(batch) for visit in recorder.visits.values() for plan in visit.plans for batch in plan
    }
    assert len(orders) == 2 * 2 * WHOLE.epochs


def test_steps_in_place_of_epochs(recorder):
    training = Training(lr=0.1, momentum=0.5, steps=7, batch_size=5)
    federation = harness.make_federation()
    recorder.run(FedAvg(training=training), federation, rounds=1)
    w = harness.initial(federation)
    for client in (0, 1):
        visit = recorder.visit(1, "train", client)
        assert len(visit.plans[0]) == 7
        expected, *_ = sgd(w, *harness.examples(federation, client), visit.plans[0], training)
        harness.assert_close(visit.output[1]["model"].value, expected)
        assert torch.equal(visit.output[2]["steps"], torch.tensor(7))
