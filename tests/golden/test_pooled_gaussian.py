"""pFedFDA and FedLDA whose server makes the Gaussian from sums over all features, in NumPy."""

import numpy as np
import pytest
import torch

from fedtailor.algorithms.fedlda import FedLDA
from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import NO_PRIVACY, simulate
from golden.closed_form import CLASSES, D, labeled_federation, pool
from golden.harness import assert_close
from marks import quick

TRAINING = Training(lr=0.1, epochs=1)


def state_after(algorithm, federation, engine=None, rounds=1, privacy=NO_PRIVACY):
    schedule = Schedule(rounds=rounds, evaluate_every=1, personalized_every=1)
    engine = engine or Reference()
    *_, report = simulate(algorithm, federation, engine, schedule, seed=5, privacy=privacy)
    return report.state.server


def moments_of(x, y, centers=None):
    means = np.stack([x[y == label].mean(0) for label in range(CLASSES)])
    gaps = x - (means if centers is None else centers)[y]
    return means, gaps.T @ gaps


def test_pfedfda_takes_the_gaussian_of_all_examples():
    federation = labeled_federation()
    x, y = pool(federation)
    means, scatter = moments_of(x, y)
    algorithm = PFedFDA(statistics="pooled", training=TRAINING)
    state = state_after(algorithm, federation)
    assert_close(state.means, means)
    assert_close(state.covariance, scatter / (len(y) - 1) + 1e-4 + np.eye(D), 1e-11)


def test_fedlda_refreshes_the_gaussian_with_that_of_all_examples():
    federation = labeled_federation()
    x, y = pool(federation)
    algorithm = FedLDA(statistics="pooled", momentum=0.3, training=TRAINING)
    task = algorithm.bind(federation.common_task)
    first = algorithm.init_server(task, new_key(5, purpose="init_server"))

    hat, _ = moments_of(x, y)
    means = 0.3 * first.means.numpy() + 0.7 * hat
    _, scatter = moments_of(x, y, centers=means)
    covariance = 0.3 * np.eye(D) + 0.7 * (scatter / (len(y) - 1) + 0.01 * np.eye(D))
    state = state_after(algorithm, federation)
    assert_close(state.means, means)
    assert_close(state.covariance, covariance, 1e-11)


def test_a_class_that_nobody_has_keeps_its_mean():
    federation = labeled_federation([[4, 3, 0], [2, 5, 0]])
    for algorithm in (PFedFDA(statistics="pooled"), FedLDA(statistics="pooled")):
        task = algorithm.bind(federation.common_task)
        first = algorithm.init_server(task, new_key(5, purpose="init_server"))
        state = state_after(algorithm, federation)
        assert torch.equal(state.means[2], first.means[2])
        assert not torch.equal(state.means[0], first.means[0])


@pytest.mark.parametrize("cls", quick([PFedFDA, FedLDA], FedLDA))
def test_stacked_clients_and_secure_sums_agree(cls):
    federation = labeled_federation()
    algorithm = cls.from_preset("private", feature_clip=3.0, training=TRAINING)
    expected = state_after(algorithm, federation, rounds=2)
    stacked = state_after(algorithm, federation, Batched(2), rounds=2)
    assert_close(stacked.means, expected.means.numpy(), 1e-10)
    assert_close(stacked.covariance, expected.covariance.numpy(), 1e-10)

    secure = PrivacyOptions(secure_sums=True)
    summed = state_after(algorithm, federation, rounds=2, privacy=secure)
    assert_close(summed.means, expected.means.numpy(), 1e-6)
    assert_close(summed.covariance, expected.covariance.numpy(), 1e-6)


@pytest.mark.parametrize("cls", [PFedFDA, FedLDA])
def test_features_are_bounded_everywhere(cls):
    federation = labeled_federation()
    algorithm = cls.from_preset("private", feature_clip=0.5, training=TRAINING)
    state = state_after(algorithm, federation)
    task = algorithm.bind(federation.common_task)
    model = algorithm.global_model(task, state)
    z = algorithm.features(task, model, federation.x)
    assert float(z.norm(dim=1).max()) <= 0.5
    assert float(state.means.norm(dim=1).max()) <= 0.5
