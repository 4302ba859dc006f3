"""The class priors of pFedFDA against NumPy: alone, and in two rounds of two clients."""

import numpy as np
import pytest
import torch

from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core.task import Training
from golden import compare, fda, harness

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)


def counted(y, classes, smoothing):
    """(n_c + s) / (n + C s)."""
    return (np.bincount(y, minlength=classes) + smoothing) / (len(y) + classes * smoothing)


OPTIONS = [
    ({"prior_smoothing": 0.1}, fda.prior),
    ({"prior": "pseudo_count", "prior_smoothing": 0.5}, counted),
]


@pytest.mark.parametrize(("options", "prior"), OPTIONS, ids=["floor", "pseudo-count"])
def test_two_rounds(recorder, monkeypatch, options, prior):
    monkeypatch.setattr(fda, "prior", prior)
    clients = harness.make_federation()
    algorithm = PFedFDA(training=TRAINING, **options)
    recorder.run(algorithm, clients)
    compare.assert_run(
        recorder, clients, algorithm, fda.Constants(smoothing=algorithm.prior_smoothing)
    )


@pytest.mark.parametrize("prior", ["floor", "pseudo_count"])
def test_every_class_stays_possible_and_no_example_means_no_preference(prior):
    algorithm = PFedFDA(prior=prior)
    for counts in ([0, 5, 0], [0, 0, 0], [1, 0, 0], [40, 2, 0]):
        found = algorithm._class_prior(torch.tensor(counts))
        assert found.dtype == torch.float64 and float(found.min()) > 0
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-14)
        if sum(counts) == 0:
            assert found.tolist() == pytest.approx([1 / 3] * 3, abs=1e-15)
