"""The model ``linear``: no body, so features are the inputs; every method runs on it."""

from dataclasses import replace

import pytest
import torch

from contract.cases import FEW
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.models import build_model
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from golden.closed_form import labeled_federation
from marks import quick


def test_features_are_the_inputs_and_nothing_but_the_head_is_trained():
    model = build_model("linear", (1, 4, 4), 3)
    task = Task(model, 3, (1, 4, 4))
    assert task.shapes("body", "extra", "buffer") == {}
    params = model.init(new_key(0))
    assert {name: tuple(leaf.shape) for name, leaf in params.items()} == {
        "head.weight": (3, 16),
        "head.bias": (3,),
    }

    x = torch.randn(2, 1, 4, 4)
    ones = torch.ones(2)
    features, buffers = model.features(params, x, weight=ones, key=new_key(0), training=True)
    assert torch.equal(features, x.flatten(1)) and buffers == {}


@pytest.mark.parametrize("name", quick(ALGORITHMS, *FEW))
def test_every_method_runs_without_a_body(name, float64):
    federation = labeled_federation()
    federation = replace(federation, x=0.2 * federation.x)  # so that no method diverges
    schedule = Schedule(rounds=2, evaluate_every=1, personalized_every=1)
    reports = list(simulate(load_algorithm(name)(), federation, Reference(), schedule, seed=1))
    for report in reports:
        assert not report.events
        assert report.evaluations
