"""A data set with a known answer: Gaussian classes that every domain shifts in its own way.

In every domain class k is Gaussian with covariance I around ``class_means()[domain, k]``. The means are ``DISTANCE``
times ten orthonormal directions, plus a shift that all classes of a domain share: ``SHIFT`` times a sum of these
directions with random signs. Within a domain the shift takes nothing away, so that the best accuracy is that of
:func:`best_accuracy`; a classifier that does not know the domain can only do worse.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import special
from scipy.linalg import hadamard

from fedtailor.data.dataset import Dataset, Normalization

CLASSES, DOMAINS, FEATURES = 10, 20, 16
DISTANCE = 3.0
"""Of a class's mean from the center of its domain, in standard deviations."""
SHIFT = 1.5
"""Of a domain along each class's direction, in standard deviations."""

_TRAIN, _TEST = 24, 6  # of each class in each domain
_GRID = 2.0**-10
_KEY = 2026


def load_synthetic(folder: Path) -> Dataset:
    """Make the 6,000 examples; ``folder`` is not looked at.

    They are the same on every machine and with every version of NumPy: made from the bits of Philox, of which no
    version changes the order, and rounded to multiples of 1/1024, so that last digits of functions do not matter.
    The first 4,800 are the training part; both parts have as many examples of every class in every domain.
    """
    rows = np.arange((_TRAIN + _TEST) * CLASSES * DOMAINS)
    domains, labels = rows % DOMAINS, rows // DOMAINS % CLASSES
    # the first bits are the signs of the shifts
    bits = _bits(CLASSES * DOMAINS + len(rows) * FEATURES)[CLASSES * DOMAINS :]
    uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53
    noise = special.ndtri(uniform).reshape(len(rows), FEATURES)
    examples = class_means()[domains, labels] + noise
    return Dataset(
        name="synthetic",
        x=(np.round(examples / _GRID) * _GRID).astype(np.float32),
        y=labels,
        num_classes=CLASSES,
        class_names=tuple(f"class {label}" for label in range(CLASSES)),
        domains=domains,
        domain_names=tuple(f"domain {domain}" for domain in range(DOMAINS)),
        normalize=Normalization((0.0,), (1.0,)),
        white=1.0,
        num_official_train=_TRAIN * CLASSES * DOMAINS,
    )


def class_means() -> np.ndarray:
    """Return the mean of every class in every domain: (domains, classes, features), exact."""
    directions = hadamard(FEATURES)[1 : CLASSES + 1] / np.sqrt(FEATURES)
    signs = np.where(_bits(CLASSES * DOMAINS) >> np.uint64(63), 1.0, -1.0).reshape(DOMAINS, CLASSES)
    shifts = SHIFT * signs @ directions
    means: np.ndarray = DISTANCE * directions + shifts[:, np.newaxis]
    return means


def best_accuracy() -> float:
    """Return the expected accuracy of the best classifier that knows the domain (Bayes' rule): about 0.90.

    With the noise Z of the right direction, it is right if DISTANCE + Z is above the noise of the nine others:
    E[Phi(DISTANCE + Z)^9] with Z standard normal, integrated by Gauss and Hermite's rule.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(64)
    right = special.ndtr(DISTANCE + points) ** (CLASSES - 1)
    return float(weights @ right / weights.sum())


def _bits(count: int) -> np.ndarray:
    """Return the first 64-bit words of the generator."""
    return np.asarray(np.random.Philox(key=_KEY).random_raw(count))
