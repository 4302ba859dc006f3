"""The class priors of pFedFDA against NumPy: alone, and in two rounds of two clients."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from fedtailor.algorithms import _beta_search
from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core.task import Training
from golden import compare, fda, harness
from marks import quick

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)


def counted(y, classes, smoothing):
    """(n_c + s) / (n + C s)."""
    return (np.bincount(y, minlength=classes) + smoothing) / (len(y) + classes * smoothing)


def leave_one_out(y, classes, weights):
    """Mean loss of the labels for weights (k,): each from the frequencies of the others and equally
    likely classes."""
    total = np.zeros(np.shape(weights))
    for left, label in enumerate(y):
        others = np.delete(y, left)
        frequency = (others == label).mean() if len(others) else 0.0
        total -= np.log(weights * frequency + (1 - weights) / classes)
    return total / len(y)


def blended(y, classes, smoothing):
    """The blend of the best multiple of 2^-12, then a floor."""
    with np.errstate(divide="ignore"):
        losses = leave_one_out(y, classes, fda.GRID)
    weight = fda.smallest(fda.GRID, losses)
    frequencies = np.bincount(y, minlength=classes) / len(y)
    return (weight * frequencies + (1 - weight) / classes + smoothing) / (1 + classes * smoothing)


OPTIONS = [
    ({"prior_smoothing": 0.1}, fda.prior),
    ({"prior": "pseudo_count", "prior_smoothing": 0.5}, counted),
    ({"prior": "blend"}, blended),
    ({"prior": "blend", "prior_smoothing": 0.1}, blended),
]


@pytest.mark.parametrize(
    ("options", "prior"),
    quick(OPTIONS, *OPTIONS[2:]),
    ids=["floor", "pseudo-count", "blend", "blend-floor"],
)
def test_two_rounds(recorder, monkeypatch, options, prior):
    monkeypatch.setattr(fda, "prior", prior)
    clients = harness.make_federation()
    algorithm = PFedFDA(training=TRAINING, **options)
    recorder.run(algorithm, clients)
    compare.assert_run(
        recorder, clients, algorithm, fda.Constants(smoothing=algorithm.prior_smoothing)
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_weight_is_that_of_a_minimizer(seed):
    draw = np.random.default_rng(seed)
    y = draw.choice(5, size=2 + 3 * seed, p=draw.dirichlet(np.full(5, 0.5)))
    given = _beta_search.blend_frequencies(torch.from_numpy(np.bincount(y, minlength=5)))
    best = minimize_scalar(
        lambda weight: leave_one_out(y, 5, weight), bounds=(0, 1), method="bounded"
    )
    frequencies = np.bincount(y, minlength=5) / len(y)
    np.testing.assert_allclose(given, best.x * frequencies + (1 - best.x) / 5, rtol=0, atol=2**-11)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]),  # nothing is known
        ([0, 1, 0, 0], [0.25, 0.25, 0.25, 0.25]),  # one example says nothing about the next one
        ([1, 1, 1, 1], [0.25, 0.25, 0.25, 0.25]),  # no class has come twice
        ([0, 9, 0, 0], [0.0, 1.0, 0.0, 0.0]),  # all the same: the only class to expect
    ],
)
def test_limits_of_the_blend(counts, expected):
    assert _beta_search.blend_frequencies(torch.tensor(counts)).tolist() == expected


@pytest.mark.parametrize("prior", ["floor", "pseudo_count", "blend"])
def test_every_class_stays_possible_and_no_example_means_no_preference(prior):
    algorithm = PFedFDA(prior=prior)
    for counts in ([0, 5, 0], [0, 0, 0], [1, 0, 0], [40, 2, 0]):
        found = algorithm._class_prior(torch.tensor(counts))
        assert found.dtype == torch.float64 and float(found.min()) > 0
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-14)
        if sum(counts) == 0:
            assert found.tolist() == pytest.approx([1 / 3] * 3, abs=1e-15)
