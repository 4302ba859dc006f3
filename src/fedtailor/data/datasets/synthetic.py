"""A synthetic data set with a known best accuracy: Gaussian classes, shifted in every domain.

In every domain class k is Gaussian with covariance I around ``class_means()[domain, k]``. The means
are ``DISTANCE`` times ten orthonormal directions, plus a shift that all classes of a domain share:
``SHIFT`` times a sum of these directions with random signs. Within a domain the shift changes
nothing, so that the best classifier that knows the domain (Bayes' rule) has an accuracy of 0.9025.
One that does not know the domain cannot do better.
"""

from __future__ import annotations

import numpy as np
from scipy import special
from scipy.linalg import hadamard

from fedtailor.data.dataset import AS_THEY_ARE, Dataset
from fedtailor.data.files import Files

CLASSES = 10
DOMAINS = 20
FEATURES = 16
DISTANCE = 3.0
"""Distance of a class's mean from the center of its domain, in standard deviations."""
SHIFT = 1.5
"""Shift of a domain along each class's direction, in standard deviations."""

_TRAIN = 24  # examples of each class in each domain
_TEST = 6
_GRID = 2.0**-10
_KEY = 2026


def load(files: Files) -> Dataset:
    """Make the 6,000 examples.

    The examples are the same on every machine and with every version of NumPy: they are made from
    the bits of Philox, which do not depend on the version, and rounded to multiples of 1/1024,
    which hides differences in the last digits of functions. The first 4,800 are the training part;
    within a part every class of every domain has the same number of examples.
    """
    rows = np.arange((_TRAIN + _TEST) * CLASSES * DOMAINS)
    domains = rows % DOMAINS
    labels = rows // DOMAINS % CLASSES
    # the first bits are the signs of the shifts
    bits = _bits(CLASSES * DOMAINS + len(rows) * FEATURES)[CLASSES * DOMAINS :]
    uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53
    noise = special.ndtri(uniform).reshape(len(rows), FEATURES)
    examples = class_means()[domains, labels] + noise

    return Dataset(
        name=files.dataset,
        x=(np.round(examples / _GRID) * _GRID).astype(np.float32),
        y=labels,
        num_classes=CLASSES,
        class_names=tuple(f"class {label}" for label in range(CLASSES)),
        domains=domains,
        domain_names=tuple(f"domain {domain}" for domain in range(DOMAINS)),
        normalize=AS_THEY_ARE,
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


def _bits(count: int) -> np.ndarray:
    """Return the first 64-bit words of the generator."""
    return np.asarray(np.random.Philox(key=_KEY).random_raw(count))
