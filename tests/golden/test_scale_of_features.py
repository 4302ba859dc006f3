"""What a frozen encoder gives has any scale: predictions of scale-free covariances ignore it."""

import pytest
import torch
from sklearn.datasets import load_digits

from fedtailor.algorithms.fedlda import FedLDA
from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core.federation import Federation, Split
from fedtailor.core.task import Task
from fedtailor.models.networks import linear
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run
from marks import slow

CLASSES, CLIENTS, EXAMPLES = 10, 4, 60


def predictions(algorithm, scale):
    """Return the classes that personal models predict for digits of unit norm, times ``scale``.

    And the true ones.
    """
    inputs, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    inputs = scale * inputs / inputs.norm(dim=1, keepdim=True)
    rows = torch.arange(CLIENTS * EXAMPLES).reshape(CLIENTS, 2, EXAMPLES // 2)
    splits = [Split(train, train[:0], test) for train, test in rows]
    shape = tuple(inputs.shape[1:])
    task = Task(linear(shape, CLASSES), CLASSES, shape)
    record = run(algorithm, Reference(), Federation(inputs, labels, splits, task))

    task = algorithm.bind(task)
    classes = []
    for client, personal in sorted(record.reports[-1].personal.items()):
        logits = algorithm.predict(task, personal, inputs[splits[client].test])
        classes.append(logits.argmax(1))
    return torch.cat(classes), labels[rows[:, 1].flatten()]


SCALE_FREE = [
    slow(PFedFDA(shrinkage="oas")),
    slow(PFedFDA(shrinkage=0.3)),
    PFedFDA.from_preset("frozen"),
    FedLDA(shrinkage="oas"),
    slow(FedLDA.from_preset("frozen")),
]


@pytest.mark.parametrize("algorithm", SCALE_FREE)
def test_scale_free_covariances_ignore_the_scale(float64, algorithm):
    small, labels = predictions(algorithm, 1.0)
    large, _ = predictions(algorithm, 100.0)
    assert torch.equal(small, large)
    assert (small == labels).double().mean() > 0.75


@pytest.mark.parametrize("algorithm", [slow(PFedFDA()), FedLDA()])
def test_the_released_ridges_drown_the_covariance_of_small_features(float64, algorithm):
    small, labels = predictions(algorithm, 1.0)
    large, _ = predictions(algorithm, 100.0)
    right_of_small = (small == labels).double().mean()
    right_of_large = (large == labels).double().mean()
    assert right_of_small < 0.5 < 0.8 < right_of_large


def test_a_run_without_a_body_is_told_of_the_preset():
    task = Task(linear((4,), CLASSES), CLASSES, (4,))
    for method in (PFedFDA, FedLDA):
        (sentence,) = method().warnings(task)
        assert "frozen" in sentence
        assert method.from_preset("frozen").warnings(task) == []
