"""What must hold for FedLDA whatever the numbers: limits, symmetries, and how the covariance is
centered.

The body is the identity in most of these (inputs are not negative), so features are whatever a test
asks for.
"""

import numpy as np
import torch

from fedtailor.algorithms.fedlda import ClientState, FedLDA, ServerState, correlation
from fedtailor.core.algorithm import Download
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness
from golden.network import BODY


def server(means, covariance):
    """Return a server state whose body is the identity."""
    d = means.shape[1]
    body = {"hidden.weight": torch.eye(d), "hidden.bias": torch.zeros(d)}
    return ServerState(body, torch.from_numpy(means), torch.from_numpy(covariance))


def blobs(seed=0, *, n=30, d=4, classes=3):
    """Return features of Gaussian classes far from zero, labels, and a server's Gaussian."""
    draw = np.random.default_rng(seed)
    means = 10 + draw.normal(size=(classes, d))
    y = draw.integers(0, classes, n)
    return (
        means[y] + draw.normal(size=(n, d)),
        y,
        10 + draw.normal(size=(classes, d)),
        np.cov(draw.normal(size=(d, 9))),
    )


def test_rows_of_weight_0_change_no_penalty():
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 5)))
    groups, weight = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 0]), torch.tensor([1.0] * 6 + [0.0] * 3)
    harness.assert_close(
        correlation(z, groups, weight, 2),
        correlation(z[:6], groups[:6], torch.ones(6), 2).numpy(),
        1e-15,
    )


def test_a_client_keeps_its_body_and_has_the_servers_before_it_trained():
    z, y, means, covariance = blobs()
    task, data = harness.client_with(z, y, 3)
    algorithm = FedLDA(evaluated_body="local", training=Training(lr=0.1, epochs=1))
    download, key = Download(server(means, covariance)), new_key(0)
    fresh = algorithm.init_client(task, data.info, key)
    update = algorithm.local_update(algorithm.bind(task), download, fresh, data, key)
    before, after = (
        algorithm.personalize(algorithm.bind(task), download, state, data, key)
        for state in (fresh, update.state)
    )
    assert isinstance(update.state, ClientState)
    for name in BODY:
        assert torch.equal(before.body[name], download.shared.body[name])
        assert torch.equal(after.body[name], update.upload["body"].value[name])
        assert not torch.equal(after.body[name], before.body[name])


def test_a_covariance_without_an_inverse_has_no_classifier():
    """Without shrinkage, neither the least-squares solution nor the inverse of a rounding error
    stands in for one."""
    z, y, means, covariance = blobs(n=6)
    task, data = harness.client_with(z, y, 3)
    algorithm = FedLDA.from_preset("paper")
    singular = np.diag([1.0, 1.0, 1.0, 0.0])
    indefinite = np.diag([1.0, 1.0, 1.0, -1e-9])
    for matrix, has_classifier in ((covariance, True), (singular, False), (indefinite, False)):
        download = Download(server(means, matrix))
        personal = algorithm.personalize(algorithm.bind(task), download, (), data, new_key(0))
        assert bool(torch.isfinite(personal.head.weight).all()) == has_classifier
        assert bool(torch.isfinite(personal.head.bias).all()) == has_classifier
        shrunk = FedLDA().personalize(FedLDA().bind(task), download, (), data, new_key(0))
        assert torch.isfinite(shrunk.head.weight).all()
