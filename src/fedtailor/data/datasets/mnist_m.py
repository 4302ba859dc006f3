"""MNIST-M: MNIST's digits blended with photographs, 32x32 color pixels, in the folder MNIST-M.

Two layouts are read. The original release: ``mnist_m_train/*.png`` and ``mnist_m_train_labels.txt``
with lines such as ``00000000.png 5``, and the same for ``test``. Or NumPy arrays:
``train_images.npy`` (rows, 32, 32, 3), ``train_labels.npy``, and the same for ``test``. Pickles of
other releases are not read. Ganin et al. 2016, "Domain-adversarial training of neural networks",
JMLR.
"""

from __future__ import annotations

import dataclasses
import io
import re
import string

import numpy as np

from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.datasets.parts import ImagePart, join_parts
from fedtailor.data.files import Files, check_count, wrong_content
from fedtailor.data.pictures import read_pictures

_SIDE = 32
_LINE = re.compile(r"([0-9A-Za-z_-]{1,64}\.png) ([0-9])")


def load(files: Files) -> Dataset:
    """Load the original release if it exists, else NumPy arrays.

    Raises:
        DataError: a file is missing or damaged.
    """
    is_release = (files.folder / "MNIST-M" / "mnist_m_train_labels.txt").is_file()
    read = _read_pictures if is_release else _read_arrays
    dataset = join_parts(files, [read(files, "train"), read(files, "test")], string.digits)
    return dataclasses.replace(dataset, tested_on="synthetic" if is_release else "original")


def _read_arrays(files: Files, part: str) -> ImagePart:
    """Return images (rows, 32, 32, 3) and labels (rows,) from two NumPy files."""
    release = f"MNIST-M/mnist_m_{part}_labels.txt"
    path = files.find(f"MNIST-M/{part}_images.npy", release)
    # An array of Python objects would be a pickle.
    images = np.lib.format.read_array(io.BytesIO(files.read(path)), allow_pickle=False)
    if images.dtype != np.uint8 or images.shape[1:] != (_SIDE, _SIDE, 3) or not len(images):
        raise wrong_content(path, "bytes (rows, 32, 32, 3)", f"{images.dtype} {images.shape}")

    path = files.find(f"MNIST-M/{part}_labels.npy", release)
    numbers = np.lib.format.read_array(io.BytesIO(files.read(path)), allow_pickle=False)
    labels = check_labels(numbers, 10, where=str(path))
    check_count(path, labels, images)
    return ImagePart(images, labels)


def _read_pictures(files: Files, part: str) -> ImagePart:
    """Return images (rows, 32, 32, 3) and labels (rows,) of the original release."""
    path = files.find(f"MNIST-M/mnist_m_{part}_labels.txt")
    labels: dict[str, int] = {}
    for number, line in enumerate(files.read_text(path).splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[1] in labels:
            allowed = f"a new name and a digit such as '00000000.png 5' in line {number}"
            raise wrong_content(path, allowed, repr(line[:40]))
        labels[match[1]] = int(match[2])

    if not labels:
        raise wrong_content(path, "a line for every image", "no line")

    folder = f"MNIST-M/mnist_m_{part}"
    paths = [files.folder / folder / name for name in labels]
    images, digest = read_pictures(files, paths, side=_SIDE, formats=("PNG",))
    files.sources[f"{folder}/*.png"] = digest
    return ImagePart(images, np.array(list(labels.values()), np.int64))
