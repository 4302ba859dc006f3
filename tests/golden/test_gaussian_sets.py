"""pFedFDA with several sets of Gaussians, the idea that ``benchmarks/options.py`` measures."""

import numpy as np
import torch

import fedtailor
from benchmarks.gaussian_sets import GaussianSets
from fedtailor.algorithms._gaussian_classifier import ServerState
from fedtailor.core.algorithm import Download
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness


def final_metrics(**algorithm):
    config = fedtailor.make_config(
        {
            "algorithm": algorithm,
            "data": {"clients": 6, "fraction": 0.5},
            "federation": {"rounds": 3},
            "evaluation": {"every": 0, "baselines": "none"},
        }
    )
    return fedtailor.run(config)["metrics"]["personalized"]


def test_one_set_is_pfedfda():
    one = final_metrics(name="benchmarks.gaussian_sets:GaussianSets", sets=1)
    assert one == final_metrics(name="pfedfda")


def test_a_client_uses_and_sends_the_set_of_least_loss():
    # Two classes around 4 on an axis each; one set has them where they are, the other exchanged.
    means = 4 * np.eye(2)
    draw = np.random.default_rng(0)
    y = np.repeat([0, 1], 8)
    task, data = harness.client_with(means[y] + draw.uniform(size=(16, 2)), y, 2)
    sets = torch.from_numpy(np.stack([means[::-1].copy(), means]))
    body = {"hidden.weight": torch.eye(2), "hidden.bias": torch.zeros(2)}
    download = Download(ServerState(body, sets, torch.eye(2).repeat(2, 1, 1)))
    algorithm = GaussianSets(training=Training(lr=0.1, epochs=1))
    bound = algorithm.bind(task)
    key = new_key(0)
    state = algorithm.init_client(task, data.info, key)

    update = algorithm.local_update(bound, download, state, data, key)
    personal = algorithm.personalize(bound, download, state, data, key)

    upload = update.upload
    assert upload["means"].weight.tolist() == [0, 16]
    assert upload["covariance"].weight.tolist() == [0, 16]
    assert not upload["means"].value[0].any()
    assert (upload["means"].value[1].argmax(1) == torch.arange(2)).all()
    assert (personal.means.argmax(1) == torch.arange(2)).all()
