"""USPS: gray digits of 16x16 pixels, as libsvm text compressed by bzip2, in torchvision's folder.

A line is a label from 1 (digit 0) to 10 (digit 9) and pairs ``index:value``, indices 1 to 256,
values -1 to 1. Hull 1994, "A database for handwritten text recognition research", IEEE TPAMI.
"""

from __future__ import annotations

import bz2
import io
import string
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from fedtailor.data.dataset import Dataset
from fedtailor.data.datasets.parts import ImagePart, join_parts
from fedtailor.data.files import Files, wrong_content

_MAX_TEXT = 64 * 2**20
"""Most bytes of text; the training part has 17 MB."""


def load(files: Files) -> Dataset:
    """Load USPS from USPS/usps.bz2 and USPS/usps.t.bz2.

    A value v becomes the whole part of ``(v + 1) / 2 * 255``, in float32, as in torchvision.

    Raises:
        DataError: a file is missing or damaged.
    """
    parts = []
    for name in ("usps.bz2", "usps.t.bz2"):
        path = files.find(f"USPS/{name}")
        values, numbers = _read(files.read(path), path)
        images = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16, 1)
        parts.append(ImagePart(images, numbers.astype(np.int64) - 1))

    return join_parts(files, parts, string.digits)


def _read(raw: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return values (rows, 256) in float32 and labels (rows,) from 1 to 10."""
    text = bz2.BZ2File(io.BytesIO(raw)).read(_MAX_TEXT)
    values, labels = load_svmlight_file(
        io.BytesIO(text), n_features=256, dtype=np.float32, zero_based=False
    )

    # NaN is refused, too: it is not <= 1.
    pixels = values.toarray()
    if not (np.abs(pixels) <= 1).all():
        raise wrong_content(path, "values from -1 to 1", "another number")
    if not len(labels) or not np.isin(labels, np.arange(1, 11)).all():
        raise wrong_content(path, "labels from 1 to 10", "another number, or no line")
    return pixels, labels
