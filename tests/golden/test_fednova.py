"""FedNova against Wang et al. 2020, section 4: w <- w - (sum_i p_i |a_i|) sum_i p_i d_i."""

import numpy as np
import pytest

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fednova import FedNova
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run
from golden import harness
from golden.network import ALL, sgd

SIZES = np.array([len(labels) for labels in harness.LABELS])
PLAIN = Training(lr=0.2, epochs=2, batch_size=5)
HEAVY = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)


def times_counted(steps, momentum):
    """Return how often all gradients count: the k-th is in the momentum of all later steps."""
    return sum(momentum**later for step in range(steps) for later in range(steps - step))


@pytest.mark.parametrize("training", [PLAIN, HEAVY], ids=["plain", "heavy"])
def test_two_rounds(recorder, training):
    federation = harness.make_federation()
    recorder.run(FedNova(training=training), federation, rounds=2)
    w = harness.initial(federation)
    share = SIZES / SIZES.sum()
    for report in recorder.reports:
        directions, lengths = [], []
        for client in range(2):
            visit = recorder.visit(report.round, "train", client)
            harness.assert_close(visit.shared.model, w)
            (batches,) = visit.plans
            moved = sgd(w, *harness.examples(federation, client), batches, training)[0]
            lengths.append(times_counted(len(batches), training.momentum))
            directions.append({name: (moved[name] - w[name]) / lengths[-1] for name in ALL})
            harness.assert_close(visit.output[1]["direction"].value, directions[-1])

        effective = share @ lengths
        w = {
            name: w[name] + effective * sum(p * d[name] for p, d in zip(share, directions))
            for name in ALL
        }
        harness.assert_close(recorder.visit(report.round, "score", 0).shared, w)


def test_with_equal_steps_it_is_fedavg(float64):
    federation = harness.make_federation()
    training = Training(lr=0.2, steps=4, batch_size=5)
    models = [
        run(method(training=training), Reference(), federation).reports[-1].state.server.model
        for method in (FedAvg, FedNova)
    ]
    harness.assert_close(models[1], harness.arrays(models[0]))
