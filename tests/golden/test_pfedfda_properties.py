"""What must hold for pFedFDA whatever the numbers: limits, symmetries, and the search for beta by
brute force.

The body is the identity here (inputs are not negative), so features are whatever a test asks for.
"""

import numpy as np
import pytest
import torch

from fedtailor.algorithms import pfedfda
from fedtailor.algorithms.pfedfda import ClientState, PFedFDA, ServerState
from fedtailor.core.algorithm import Download
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import fda, harness


def personalize(algorithm, z, y, means, covariance, *, shift=0.0, previous=0.5, seed=0):
    """Personalize a client with features ``z + shift``."""
    task, data = harness.client_with(z, y, len(means))
    d = z.shape[1]
    body = {"hidden.weight": torch.eye(d), "hidden.bias": torch.full((d,), float(shift))}
    shared = ServerState(body, torch.from_numpy(means), torch.from_numpy(covariance))
    state = ClientState(torch.full((2,), previous))
    return algorithm.personalize(algorithm.bind(task), Download(shared), state, data, new_key(seed))


def blobs(seed, *, n=40, d=4, classes=3, distance=1.0):
    """Return features of Gaussian classes far from zero, their labels, and the true means."""
    draw = np.random.default_rng(seed)
    means = 10 + distance * draw.normal(size=(classes, d))
    y = draw.integers(0, classes, n)
    return means[y] + draw.normal(size=(n, d)), y, means


@pytest.mark.parametrize("seed", range(12))
def test_beta_by_brute_force(recorder, seed):
    """The library searches by halved steps; it must find the one minimum, or one of several, and
    never a bad one."""
    z, y, means = blobs(
        seed, n=6 + seed, d=2 + seed % 5, classes=2 + seed % 3, distance=(0.5, 1.0, 2.0)[seed % 3]
    )
    draw = np.random.default_rng(100 + seed)
    shared = fda.Gaussian(
        means + draw.normal(size=means.shape), (0.5, 1.0, 4.0)[seed % 3] * np.eye(z.shape[1])
    )
    ridge = (1.0, 0.1, 0.01)[seed % 3]
    personal = personalize(PFedFDA(cov_ridge=ridge), z, y, *shared, seed=seed)
    (halves,) = recorder.current.folds
    pi, constants = fda.prior(y, len(means)), fda.Constants(ridge=ridge)
    values = fda.objective(z, y, halves, shared, pi, constants, fda.GRID, fda.GRID)
    found = int(personal.beta[0] * 2**12)
    tie = 1e-11 * (1 + values.min())  # a tie of 1e-12 on each of ten levels of the search
    assert float(personal.beta[0]) * 2**12 == found and personal.beta[0] == personal.beta[1]
    assert values[found] <= min(values[max(found - 1, 0)], values[min(found + 1, 2**12)]) + tie
    assert values[found] <= values[:: 2**9].min() + tie
    slope = np.sign(np.diff(values))
    if (np.diff(slope) != 0).sum() <= 1:  # one minimum
        assert values[found] <= values.min() + tie


def test_the_head_is_frozen_bit_for_bit(recorder, monkeypatch):
    """Momentum and weight decay would move it even without a gradient."""
    heads = []
    loss = pfedfda.body_loss

    def recording(task, body, head, batch, key, **options):
        heads.append((head.weight.numpy().tobytes(), head.bias.numpy().tobytes()))
        return loss(task, body, head, batch, key, **options)

    monkeypatch.setattr(pfedfda, "body_loss", recording)
    algorithm = PFedFDA(
        training=Training(lr=0.1, momentum=0.9, weight_decay=0.1, epochs=3, batch_size=5)
    )
    recorder.run(algorithm, harness.make_federation(), rounds=1)
    steps = [len(recorder.visit(1, "train", client).plans[0]) for client in (0, 1)]
    assert len(heads) == sum(steps) == 9 + 6
    assert len(set(heads[:9])) == len(set(heads[9:])) == 1 and heads[0] != heads[9]
    for client, head in ((0, heads[0]), (1, heads[9])):
        shared = recorder.visit(1, "train", client).shared
        pi = fda.prior(np.array(harness.LABELS[client]), 3)
        expected = fda.discriminant(shared.means.numpy(), shared.covariance.numpy(), pi, 1e-4)
        given = [np.frombuffer(part).reshape(value.shape) for part, value in zip(head, expected)]
        harness.assert_close(given[0], expected[0])
        harness.assert_close(given[1], expected[1])
