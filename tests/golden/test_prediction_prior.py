"""Personal models that predict without their class prior: training keeps its bits."""

import numpy as np
import pytest
import torch

from fedtailor.algorithms.fedlda import FedLDA
from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core import tree
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run
from golden import harness

TRAINING = Training(lr=0.1, epochs=2, batch_size=5)


@pytest.mark.parametrize("method", [PFedFDA, FedLDA])
def test_only_the_bias_of_predictions_changes(method):
    clients = harness.make_federation()
    usual = run(method(training=TRAINING), Reference(), clients)
    options = {"training": TRAINING, "prediction_prior": "uniform"}
    uniform = run(method(**options), Reference(), clients)
    for one, other in zip(usual.reports, uniform.reports, strict=True):
        pairs = zip(tree.leaves(one.state.server), tree.leaves(other.state.server), strict=True)
        assert all(torch.equal(first, second) for first, second in pairs)

    for client, personal in usual.reports[-1].personal.items():
        without = uniform.reports[-1].personal[client]
        assert torch.equal(personal.head.weight, without.head.weight)
        np.testing.assert_allclose(without.prior, 1 / harness.CLASSES)

        # By equation: the logarithm of the prior leaves every class.
        change = (without.head.bias - personal.head.bias).numpy()
        logarithms = -np.log(personal.prior.numpy())
        np.testing.assert_allclose(change - change[0], logarithms - logarithms[0], atol=1e-9)
        assert np.ptp(change) > 0.1
