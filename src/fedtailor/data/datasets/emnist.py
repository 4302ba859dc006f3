"""EMNIST: the six splits of the NIST release as IDX files, and FedCR's ten letters.

Files are ``emnist-SPLIT-{train,test}-{images-idx3,labels-idx1}-ubyte``, compressed by gzip or not,
in EMNIST/raw, where torchvision puts them, or in EMNIST/gzip, as in the archive of the release. The
release stores every image transposed. Cohen, Afshar, Tapson and van Schaik 2017, "EMNIST: extending
MNIST to handwritten letters", IJCNN.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.datasets.mnist import read_idx
from fedtailor.data.readers import files

_SIDE = 28
_LETTERS10 = 10
_DIGITS = tuple(string.digits)
_LETTERS = tuple(string.ascii_uppercase)  # a lowercase letter has the label of its uppercase letter
_BY_CLASS = (*_DIGITS, *_LETTERS, *string.ascii_lowercase)
_MERGED = (
    *_DIGITS,
    *_LETTERS,
    *"abdefghnqrt",
)  # the other lowercase letters look like uppercase ones


class _Part(NamedTuple):
    """The official training or test part."""

    images: np.ndarray  # (rows, 28, 28), uint8, as stored: transposed
    labels: np.ndarray  # (rows,), int64, from 0


def load_balanced(folder: Path) -> Dataset:
    """Load the split "balanced" from ``folder``/EMNIST: 47 classes with the same number of images
    each.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("balanced", folder, _MERGED)


def load_byclass(folder: Path) -> Dataset:
    """Load the split "byclass" from ``folder``/EMNIST: 62 classes. Reading it takes 1.3 GB of
    memory.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("byclass", folder, _BY_CLASS)


def load_bymerge(folder: Path) -> Dataset:
    """Load the split "bymerge" from ``folder``/EMNIST: 47 classes. Reading it takes 1.3 GB of
    memory.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("bymerge", folder, _MERGED)


def load_digits(folder: Path) -> Dataset:
    """Load the split "digits" from ``folder``/EMNIST: 10 classes.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("digits", folder, _DIGITS)


def load_letters(folder: Path) -> Dataset:
    """Load the split "letters" from ``folder``/EMNIST: the labels 1 to 26 of the files become 0 to
    25.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("letters", folder, _LETTERS, first=1)


def load_mnist(folder: Path) -> Dataset:
    """Load the split "mnist" from ``folder``/EMNIST: as many digits as in MNIST.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("mnist", folder, _DIGITS)


def load_letters10(folder: Path) -> Dataset:
    """Load the first ten letters from ``folder``/EMNIST as FedCR uses them: transposed as stored,
    standardized.

    Mean and standard deviation are over all pixels of the training part, in raw values from 0 to
    255, and exact up to the last rounding. Zhang et al. 2023, "FedCR", ICML.

    Raises:
        DataError: a file is missing or damaged, or holds none of these letters.
    """
    sources: dict[str, str] = {}
    parts = []
    for part in ("train", "test"):
        images, labels = _read("letters10", "letters", part, 1, len(_LETTERS), sources, folder)
        few = labels < _LETTERS10
        if not few.any():
            path = _find("letters10", f"emnist-letters-{part}-labels-idx1-ubyte", folder)
            raise files.damaged(path, "one of the letters A to J", "none")

        parts.append(_Part(images[few], labels[few]))

    train, test = parts
    return Dataset(
        name="emnist_letters10",
        x=np.concatenate([train.images, test.images])[..., np.newaxis],
        y=np.concatenate([train.labels, test.labels]),
        num_classes=_LETTERS10,
        class_names=_LETTERS[:_LETTERS10],
        normalize=_standardization(train.images),
        white=1.0,
        num_official_train=len(train.labels),
        sources=sources,
        notes=("images are transposed, as in FedCR's experiments",),
    )


def _standardization(images: np.ndarray) -> Normalization:
    """Return mean and standard deviation of bytes, computed from the counts of the 256 values."""
    counts = np.bincount(images.reshape(-1), minlength=256)
    values = np.arange(256)
    total = int(counts.sum())
    mean = int(counts @ values) / total
    variance = int(counts @ values**2) / total - mean**2
    return Normalization((mean,), (max(variance, 0.0) ** 0.5,))


def _load(split: str, folder: Path, class_names: tuple[str, ...], *, first: int = 0) -> Dataset:
    """Return a split with upright images; ``first`` is the first label of its files."""
    sources: dict[str, str] = {}
    parts = [
        _read(split, split, part, first, len(class_names), sources, folder)
        for part in ("train", "test")
    ]
    x = np.empty((sum(len(part.labels) for part in parts), _SIDE, _SIDE, 1), np.uint8)
    # written straight into the final memory layout, so that a large split is copied once
    np.concatenate([part.images.transpose(0, 2, 1) for part in parts], out=x[..., 0])

    return Dataset(
        name=f"emnist_{split}",
        x=x,
        y=np.concatenate([part.labels for part in parts]),
        num_classes=len(class_names),
        class_names=class_names,
        num_official_train=len(parts[0].labels),
        sources=sources,
    )


def _read(
    name: str,
    split: str,
    part: str,
    first: int,
    num_classes: int,
    sources: dict[str, str],
    folder: Path,
) -> _Part:
    """Return a part of a split, its labels counted from 0; ``first`` is the first label of the
    file.
    """
    path = _find(name, f"emnist-{split}-{part}-images-idx3-ubyte", folder)
    images = read_idx(path, 3, sources, folder=folder)
    if images.shape[1:] != (_SIDE, _SIDE) or not len(images):
        raise files.damaged(path, f"images of {_SIDE}x{_SIDE} pixels", f"an array {images.shape}")

    path = _find(name, f"emnist-{split}-{part}-labels-idx1-ubyte", folder)
    labels = read_idx(path, 1, sources, folder=folder).astype(np.int64) - first
    if len(labels) != len(images):
        raise files.damaged(
            path, f"{len(images)} labels, one for each image", f"{len(labels)} labels"
        )

    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        got = f"{labels[wrong[0]] + first} at row {wrong[0]}"
        raise files.damaged(path, f"labels from {first} to {first + num_classes - 1}", got)

    return _Part(images, labels)


def _find(name: str, file: str, folder: Path) -> Path:
    """Return the path of a file, compressed or not."""
    place = folder / "EMNIST"
    places = [place / "raw" / file, place / "raw" / f"{file}.gz", place / "gzip" / f"{file}.gz"]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise files.missing(f"emnist_{name}", folder, places)
    return found
