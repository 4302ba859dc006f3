"""SVHN and SynDigits: color digits of 32x32 pixels in MATLAB files of version 5 to 7.2.

``X`` holds the images (32, 32, 3, rows) as bytes and ``y`` the labels, 10 (in SVHN) for digit 0.
Netzer et al. 2011, "Reading digits in natural images with unsupervised feature learning", NIPS
workshop; Ganin et al. 2016, "Domain-adversarial training of neural networks", JMLR.
"""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.datasets.parts import ImagePart, join_parts
from fedtailor.data.files import Files, check_count, wrong_content

_PATHS = {"svhn": "SVHN/{}_32x32.mat", "syn_digits": "SynthDigits/synth_{}_32x32.mat"}
_IMAGE = (32, 32, 3)


def load(files: Files) -> Dataset:
    """Load the training and the test part; for SynDigits this takes 3 GB of memory.

    Raises:
        DataError: a file is missing, damaged or of version 7.3.
    """
    parts = []
    for part in ("train", "test"):
        path = files.find(_PATHS[files.dataset].format(part))
        files.read(path)  # for its SHA-256
        parts.append(_read(path))

    return join_parts(files, parts, string.digits)


def _read(path: Path) -> ImagePart:
    """Return images (rows, 32, 32, 3), a view that is not contiguous, and digits (rows,)."""
    try:
        variables = loadmat(str(path), variable_names=("X", "y"))
    except (MatReadError, NotImplementedError) as error:  # the latter for version 7.3
        raise wrong_content(path, "a MATLAB file of version 5 to 7.2", error) from error

    images = variables["X"].transpose(3, 0, 1, 2)
    labels = variables["y"].reshape(-1)

    if images.dtype != np.uint8 or images.shape[1:] != _IMAGE or not len(images):
        raise wrong_content(
            path, "'X' as bytes (32, 32, 3, rows)", f"{images.dtype} {images.shape}"
        )

    check_count(path, labels, images)
    if not np.isin(labels, np.arange(11)).all():  # they may be stored in floating point
        raise wrong_content(path, "labels as whole numbers from 0 to 10", "another number")
    return ImagePart(images, check_labels(labels.astype(np.int64), 11, where=str(path)) % 10)
