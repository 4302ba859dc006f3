"""The digits of scikit-learn: 1,797 images of 8x8 pixels with 17 gray levels, part of the
installation.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

import numpy as np
from sklearn import datasets

from fedtailor.data.dataset import Dataset

_SOURCE = "digits.csv.gz"


def load_digits(folder: Path) -> Dataset:
    """Load the digits from scikit-learn; ``folder`` is ignored."""
    bunch = datasets.load_digits()
    raw = resources.files("sklearn.datasets.data").joinpath(_SOURCE).read_bytes()
    return Dataset(
        name="digits",
        x=bunch.images.astype(np.uint8)[..., np.newaxis],
        y=bunch.target.astype(np.int64),
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        white=16.0,
        sources={f"sklearn/datasets/data/{_SOURCE}": hashlib.sha256(raw).hexdigest()},
    )
