"""The losses that are recorded: the mean over the steps of what a step goes down, before it is
taken."""

import numpy as np
import pytest

from fedtailor.algorithms.apfl import APFL
from fedtailor.algorithms.ditto import Ditto
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.algorithms.pfedme import PFedMe
from fedtailor.core.task import Training
from golden import harness
from golden.network import ALL, HEAD, cross_entropy, gradient, logits

TRAINING = Training(lr=0.1, epochs=2, batch_size=5)


def descend(w, x, y, batches, *, lr=0.1, names=ALL, penalty=0.0):
    """Return the mean loss of plain steps down CE + (penalty / 2) |w - start|^2, and the model that
    they lead to."""
    start, w, losses = w, dict(w), []
    for batch in batches:
        pull = {name: penalty * (w[name] - start[name]) for name in names}
        square = sum((value**2).sum() for value in pull.values()) / (2 * penalty or 1)
        losses.append(cross_entropy(logits(w, x[batch]), y[batch]) + square)
        slope = gradient(w, x[batch], y[batch])
        w |= {name: w[name] - lr * (slope[name] + pull[name]) for name in names}
    return np.mean(losses), w


def ditto(w, x, y, visit):
    shared, _ = descend(w, x, y, visit.plans[0])
    own, _ = descend(w, x, y, visit.plans[1], penalty=0.7)
    return {"loss": shared, "personal_loss": own}


def head_first(w, x, y, visit):
    """FedRep; FedPAC, too, in the first round, where nothing is aligned."""
    head, w = descend(w, x, y, visit.plans[0], lr=0.1, names=HEAD)
    body, _ = descend(w, x, y, visit.plans[1], names=[name for name in ALL if name not in HEAD])
    return {"loss": body, "head_loss": head}


def apfl(w, x, y, visit):
    """The loss of the mixture, after the step of the shared model and before that of the own
    one."""
    own, losses = dict(w), []
    for batch in visit.plans[0]:
        slope = gradient(w, x[batch], y[batch])
        w = {name: w[name] - 0.1 * slope[name] for name in w}
        mixed = {name: 0.4 * own[name] + 0.6 * w[name] for name in w}
        losses.append(cross_entropy(logits(mixed, x[batch]), y[batch]))
        slope = gradient(mixed, x[batch], y[batch])
        own = {name: own[name] - 0.1 * 0.4 * slope[name] for name in own}
    return {"loss": np.mean(losses)}


def pfedme(w, x, y, visit):
    """The cross-entropy of theta, before the last inner step."""
    theta, losses = dict(w), []
    for batch in visit.plans[0]:
        for _ in range(3):
            loss, slope = (
                cross_entropy(logits(theta, x[batch]), y[batch]),
                gradient(theta, x[batch], y[batch]),
            )
            theta = {
                name: theta[name] - 0.1 * (slope[name] + 2.0 * (theta[name] - w[name]))
                for name in w
            }
        losses.append(loss)
        w = {name: w[name] - 0.2 * 2.0 * (w[name] - theta[name]) for name in w}
    return {"loss": np.mean(losses)}


CASES = {
    "apfl": (APFL(training=TRAINING, alpha=0.4), apfl),
    "ditto": (Ditto(training=TRAINING, penalty=0.7), ditto),
    "fedpac": (FedPAC(training=TRAINING), head_first),
    "fedrep": (FedRep(training=TRAINING, head_epochs=3), head_first),
    "pfedme": (
        PFedMe(training=TRAINING, penalty=2.0, inner_steps=3, inner_lr=0.1, outer_lr=0.2),
        pfedme,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_recorded_losses(recorder, name):
    algorithm, expected_of = CASES[name]
    federation = harness.make_federation()
    recorder.run(algorithm, federation, rounds=1)
    for client in (0, 1):
        visit = recorder.visit(1, "train", client)
        expected = expected_of(
            harness.initial(federation), *harness.examples(federation, client), visit
        )
        assert {metric for metric in visit.output[2] if "loss" in metric} == set(expected)
        for metric, value in expected.items():
            assert float(visit.output[2][metric]) == pytest.approx(value, abs=1e-12), metric
