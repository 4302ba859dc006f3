"""The parts in which data sets of images are published, joined to one data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.dataset import Dataset
from fedtailor.data.files import Files


class ImagePart(NamedTuple):
    """The training or the test part, or one of its files."""

    images: np.ndarray  # (rows, height, width, channels), uint8
    labels: np.ndarray  # (rows,), int64


def join_parts(files: Files, parts: Sequence[ImagePart], class_names: Iterable[str]) -> Dataset:
    """Return the data set of some parts, of which the last one is the test part."""
    names = tuple(class_names)
    y = np.concatenate([part.labels for part in parts])

    # Straight into the final memory layout, so that large data are copied once.
    x = np.empty((len(y), *parts[0].images.shape[1:]), np.uint8)
    np.concatenate([part.images for part in parts], out=x)
    return Dataset(
        name=files.dataset,
        x=x,
        y=y,
        num_classes=len(names),
        class_names=names,
        num_official_train=len(y) - len(parts[-1].labels),
        sources=files.sources,
    )
