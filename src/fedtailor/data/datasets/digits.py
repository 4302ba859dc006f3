"""The digits of scikit-learn: 1,797 images of 8x8 pixels with 17 gray levels, part of it."""

from __future__ import annotations

import hashlib
import string
from importlib import resources

import numpy as np
from sklearn import datasets

from fedtailor.data.dataset import Dataset
from fedtailor.data.files import Files

_SOURCE = "digits.csv.gz"


def load(files: Files) -> Dataset:
    """Load the digits from the installation of scikit-learn."""
    bunch = datasets.load_digits()
    raw = resources.files("sklearn.datasets.data").joinpath(_SOURCE).read_bytes()
    return Dataset(
        name=files.dataset,
        x=bunch.images.astype(np.uint8)[..., np.newaxis],
        y=bunch.target.astype(np.int64),
        num_classes=10,
        class_names=tuple(string.digits),
        white=16.0,
        sources={f"sklearn/datasets/data/{_SOURCE}": hashlib.sha256(raw).hexdigest()},
    )
