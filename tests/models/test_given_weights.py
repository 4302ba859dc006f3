"""Modules with weights that matter: kept on request, for every seed, and never changed by a run."""

import copy
import pickle

import torch
from torch import nn

from fedtailor.core.rng import new_key
from fedtailor.models.module import from_module


def trained():
    """Return a module whose weights and statistics are not those of a fresh one."""
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5))
    nn.init.constant_(module[0].weight, 0.5)
    module(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    return module


def wrapped(module, **options):
    return from_module(module, input_shape=(4,), num_classes=5, **options)


def test_given_weights_are_kept_for_every_seed(float64):
    module = trained()
    model = wrapped(module, init="given")
    before = copy.deepcopy(module.state_dict())
    for seed in (0, 1):
        params = model.init(new_key(seed))
        assert set(params) == set(before) and params["1.running_mean"].abs().min() > 0
        assert all(
            torch.equal(value, before[name].to(value.dtype)) for name, value in params.items()
        )
        params[
            "0.weight"
        ].zero_()  # a run may change its initial parameters: the model and the module do not change
    assert torch.equal(module[0].weight, before["0.weight"])


def test_given_weights_survive_transforms_and_processes():
    model = wrapped(trained(), init="given")
    sent = pickle.loads(pickle.dumps(model))
    total = torch.func.vmap(lambda x: x + sent.init(new_key(0))["0.weight"].sum())(torch.zeros(2))
    assert total.tolist() == [12, 12]
