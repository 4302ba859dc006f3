"""SVHN and SynDigits: color digits of 32x32 pixels in MATLAB files of version 5 to 7.2.

``X`` holds the images (32, 32, 3, rows) as bytes and ``y`` the labels, 10 (in SVHN) for digit 0.
Netzer et al. 2011, "Reading digits in natural images with unsupervised feature learning", NIPS
workshop; Ganin et al. 2016, "Domain-adversarial training of neural networks", JMLR.

SciPy's reader is not used: up to version 1.17 it takes types from the file as indices without a
check, so that a wrong byte can end the process, and SynDigits has no published checksum that would
find it first. What is needed of the format is short: a header of 128 bytes, then variables, usually
compressed by zlib, each made of flags, dimensions, name and values (MathWorks, "MAT-File Format").
"""

from __future__ import annotations

import string
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.files import MAX_BYTES, Files, check_count, damaged

_PLACES = {"svhn": "SVHN/{}_32x32.mat", "syn_digits": "SynthDigits/synth_{}_32x32.mat"}
_IMAGE = (32, 32, 3)
_MATRIX = 14
_COMPRESSED = 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8"}


def load(files: Files) -> Dataset:
    """Load the training and the test part; for SynDigits this takes 3 GB of memory.

    Raises:
        DataError: a file is missing, damaged or of version 7.3.
    """
    images = []
    labels = []
    for part in ("train", "test"):
        path = files.find(_PLACES[files.dataset].format(part))
        pixels, digits = _read(files.read(path), path)
        images.append(pixels)
        labels.append(digits)

    # Straight into the final memory layout: large data is copied once.
    y = np.concatenate(labels)
    x = np.empty((len(y), *_IMAGE), np.uint8)
    np.concatenate(images, out=x)
    return Dataset(
        name=files.dataset,
        x=x,
        y=y,
        num_classes=10,
        class_names=tuple(string.digits),
        num_official_train=len(labels[0]),
        sources=files.sources,
    )


def _read(raw: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 32, 32, 3), a view that is not contiguous, and digits (rows,)."""
    if raw[124:128] != b"\0\1IM":
        raise damaged(path, "a MATLAB file of version 5 to 7.2", f"the version {raw[124:128]!r}")

    try:
        variables = _variables(memoryview(raw)[128:])
        images = variables["X"].transpose(3, 0, 1, 2)
        labels = variables["y"].reshape(-1)
    except (struct.error, zlib.error, ValueError, KeyError, StopIteration) as error:
        allowed = "an intact MATLAB file with arrays of numbers X and y"
        raise damaged(path, allowed, f"{type(error).__name__}: {error}") from error

    if images.dtype != np.uint8 or images.shape[1:] != _IMAGE or not len(images):
        raise damaged(path, "'X' as bytes (32, 32, 3, rows)", f"{images.dtype} {images.shape}")

    check_count(path, labels, images)
    if not np.isin(labels, np.arange(11)).all():  # they may be stored in floating point
        raise damaged(path, "labels as whole numbers from 0 to 10", "another number")
    return images, check_labels(labels.astype(np.int64), 11, where=str(path)) % 10


def _variables(content: memoryview) -> dict[str, np.ndarray]:
    """Return the variables called X and y."""
    variables = {}
    for kind, element in _elements(content, padding=1):
        if kind == _COMPRESSED:
            inflate = zlib.decompressobj()
            element = memoryview(inflate.decompress(element, MAX_BYTES))
            if not inflate.eof:
                raise ValueError("compressed values that are truncated or too long")
            kind, element = next(_elements(element, padding=1))

        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind}")

        # Flags, dimensions, name, values: the last are read of two variables only.
        parts = _elements(element, padding=8)
        next(parts)
        shape = np.frombuffer(next(parts)[1], "<i4")
        name = bytes(next(parts)[1]).decode("latin-1")
        if name in ("X", "y"):
            kind, values = next(parts)
            array = np.frombuffer(values, _TYPES[kind])
            variables[name] = array.reshape(shape.tolist(), order="F")

    return variables


def _elements(content: memoryview, *, padding: int) -> Iterator[tuple[int, memoryview]]:
    """Yield type and content of elements, each padded to a multiple of ``padding`` bytes."""
    while len(content):
        kind, size = struct.unpack_from("<II", content)
        start = 8

        # A short element: its length is in the upper half, and up to four bytes follow.
        if kind >> 16:
            size = kind >> 16
            kind = kind & 0xFFFF
            start = 4

        element = content[start : start + size]
        if len(element) < size:
            raise ValueError("a file that is truncated")

        yield kind, element
        content = content[start + size + -(start + size) % padding :]
