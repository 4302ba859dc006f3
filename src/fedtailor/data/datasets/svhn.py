"""SVHN and SynDigits: color digits of 32x32 pixels in MATLAB files.

``X`` holds the images (32, 32, 3, rows) as bytes and ``y`` the labels, 10 (in SVHN) for digit 0.
Netzer et al. 2011, "Reading digits in natural images with unsupervised feature learning", NIPS
workshop; Ganin et al. 2016, "Domain-adversarial training of neural networks", JMLR.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.readers import files
from fedtailor.data.readers.matlab import read_arrays

_MAX_BYTES = 2 * 2**30  # of a file and of its images; SynDigits has 1.5 GB of training images
_IMAGE = (32, 32, 3)


def load_svhn(folder: Path) -> Dataset:
    """Load SVHN (cropped digits) from ``folder``/SVHN/train_32x32.mat and test_32x32.mat, without
    the extra part.

    Raises:
        DataError: a file is missing, damaged or of version 7.3.
    """
    return _load("svhn", folder, "SVHN/train_32x32.mat", "SVHN/test_32x32.mat")


def load_syn_digits(folder: Path) -> Dataset:
    """Load SynDigits from ``folder``/SynthDigits/synth_train_32x32.mat and synth_test_32x32.mat.

    This takes 3 GB of memory.

    Raises:
        DataError: a file is missing, damaged or of version 7.3.
    """
    return _load(
        "syn_digits",
        folder,
        "SynthDigits/synth_train_32x32.mat",
        "SynthDigits/synth_test_32x32.mat",
    )


def _load(name: str, folder: Path, *parts: str) -> Dataset:
    sources: dict[str, str] = {}
    images = []
    labels = []
    for part in parts:
        path = folder / part
        if not path.is_file():
            raise files.missing(name, folder, [path])

        pixels, numbers = _read(path, sources, folder)
        images.append(pixels)
        labels.append(numbers)

    y = np.concatenate(labels)
    x = np.empty((len(y), *_IMAGE), np.uint8)
    np.concatenate(
        images, out=x
    )  # straight into the final memory layout: large data is copied once

    return Dataset(
        name=name,
        x=x,
        y=y,
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        num_official_train=len(labels[0]),
        sources=sources,
    )


def _read(path: Path, sources: dict[str, str], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 32, 32, 3), a view that is not contiguous, and digits (rows,)."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > _MAX_BYTES:
                raise files.damaged(path, f"at most {_MAX_BYTES} bytes", f"{size} bytes")

            sources[path.relative_to(folder).as_posix()] = hashlib.file_digest(
                stream, "sha256"
            ).hexdigest()
            stream.seek(0)
            arrays = read_arrays(stream, path, ("X", "y"), max_bytes=_MAX_BYTES)
    except OSError as error:
        raise files.damaged(
            path, "a file that can be read", error.strerror or str(error)
        ) from error

    images = arrays["X"]
    labels = arrays["y"]
    if images.dtype != np.uint8 or images.shape[:-1] != _IMAGE or not images.size:
        raise files.damaged(
            path, "'X' as bytes (32, 32, 3, rows)", f"{images.dtype} {images.shape}"
        )

    rows = images.shape[-1]
    if labels.shape not in ((rows, 1), (1, rows)):
        raise files.damaged(
            path, f"'y' with {rows} numbers, one for each image", f"the shape {labels.shape}"
        )

    return images.transpose(3, 0, 1, 2), _digits(path, labels.reshape(-1))


def _digits(path: Path, labels: np.ndarray) -> np.ndarray:
    """Return the digits for labels from 0 to 10, which may be stored in floating point."""
    whole = labels
    if labels.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isin(labels, np.arange(11)))
        if len(wrong):
            got = f"{labels[wrong[0]]} at row {wrong[0]}"
            raise files.damaged(path, "labels as whole numbers from 0 to 10", got)
        whole = labels.astype(np.int64)
    return check_labels(whole, 11, where=str(path)) % 10
