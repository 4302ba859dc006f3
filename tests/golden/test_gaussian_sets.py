"""pFedFDA with several sets of Gaussians, the idea that ``benchmarks/options.py`` measures."""

import numpy as np
import pytest
import torch

import fedtailor
from benchmarks.gaussian_sets import GaussianSets
from fedtailor.algorithms._gaussian_classifier import ServerState
from fedtailor.core.algorithm import Download
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness


def final_accuracy(**algorithm):
    config = fedtailor.make_config(
        {
            "algorithm": algorithm,
            "data": {"clients": 6, "fraction": 0.5},
            "federation": {"rounds": 3},
            "evaluation": {"every": 0, "baselines": "none"},
        }
    )
    return fedtailor.run(config)["metrics"]["personalized"]["accuracy"]


def test_one_set_is_pfedfda():
    one = final_accuracy(name="benchmarks.gaussian_sets:GaussianSets", sets=1)
    assert one == final_accuracy(name="pfedfda")


@pytest.mark.parametrize("place", [0, 1])
def test_a_client_uses_and_sends_the_set_of_least_loss(place):
    # Two classes around 4 on an axis each; one set has them where they are, the other exchanged.
    means = 4 * np.eye(2)
    draw = np.random.default_rng(0)
    y = np.repeat([0, 1], [14, 2])
    task, data = harness.client_with(means[y] + draw.uniform(size=(16, 2)), y, 2)
    sets = torch.from_numpy(np.stack([means, means]))
    sets[1 - place] = sets[1 - place].flip(0)
    download = Download(server(sets))
    algorithm = GaussianSets(training=Training(lr=0.1, epochs=1))
    bound = algorithm.bind(task)
    key = new_key(0)
    state = algorithm.init_client(task, data.info, key)

    update = algorithm.local_update(bound, download, state, data, key)
    personal = algorithm.personalize(bound, download, state, data, key)

    weights = [0, 0]
    weights[place] = 16
    for name in ("means", "covariance"):
        value, weight = update.upload[name]
        assert weight.tolist() == weights
        assert not value[1 - place].any()
        assert value[place].any()

    # A class of two examples takes its mean from the set.
    harness.assert_close(personal.means[1], means[1], 1e-12)


def test_of_equal_sets_the_first_one_is_chosen():
    y = np.array([0, 1])
    task, data = harness.client_with(np.eye(2), y, 2)
    algorithm = GaussianSets(training=Training(lr=0.1, epochs=1))
    state = algorithm.init_client(task, data.info, new_key(0))
    download = Download(server(torch.eye(2).repeat(2, 1, 1)))

    update = algorithm.local_update(algorithm.bind(task), download, state, data, new_key(0))
    assert update.upload["means"].weight.tolist() == [2, 0]


def server(sets):
    """Return a server with two sets of means and with a body that is the identity."""
    body = {"hidden.weight": torch.eye(2), "hidden.bias": torch.zeros(2)}
    return ServerState(body, sets, torch.eye(2).repeat(2, 1, 1))
