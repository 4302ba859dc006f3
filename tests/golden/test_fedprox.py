"""FedProx against Li et al. 2020, Algorithm 2: SGD on CE(w) + (mu / 2) |w - w^t|^2, then the mean
by examples."""

import numpy as np
import pytest

from fedtailor.algorithms.fedprox import FedProx
from fedtailor.core.task import Training
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
