"""A data set in memory: images as stored, labels, and where they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError


class Normalization(NamedTuple):
    """Mean and standard deviation of pixels scaled to [0, 1], per channel; one value serves all channels."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images and labels: the official training part first, then the official test part.

    A pixel p becomes ``(p / white - mean) / std``; the default maps it to [-1, 1] (pFedFDA's experiments).

    Raises:
        DataError: shapes that do not fit together, values that are not finite, labels out of range.
    """

    name: str
    x: np.ndarray  # (rows, height, width, channels), uint8 or float32
    """Images as stored."""
    y: np.ndarray  # (rows,), int64
    """Labels, 0 to ``num_classes`` - 1."""
    num_classes: int
    class_names: tuple[str, ...] = ()
    normalize: Normalization = Normalization()
    white: float = 255.0
    """The stored value that becomes 1 before normalization."""
    num_official_train: int = -1
    """Rows of the official training part, which come first; -1 (all rows) where there is no official division."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of every file read, by its name."""
    tested_on: Literal["original", "fabricated"] = "original"
    """Whether the reader was tested on the original data, or on fabricated files only."""
    official_size: int = -1
    """Rows of the whole published data set; -1: not known."""
    license: str = ""
    citation: str = ""

    def __post_init__(self) -> None:
        if self.num_official_train < 0:
            object.__setattr__(self, "num_official_train", len(self.y))
        self._check_images()
        object.__setattr__(self, "x", np.ascontiguousarray(self.x))
        object.__setattr__(self, "y", check_labels(self.y, self.num_classes, where=f"data set '{self.name}'"))
        if self.class_names and len(self.class_names) != self.num_classes:
            raise self._refuse("class names", f"{self.num_classes} names", len(self.class_names))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one example as a model gets it: (channels, height, width)."""
        _, height, width, channels = self.x.shape
        return channels, height, width

    @property
    def subset(self) -> bool:
        """Whether this is only a part of (or more than) the published data set."""
        return self.official_size >= 0 and len(self.y) != self.official_size

    @cached_property
    def digest(self) -> str:
        """SHA-256 of images and labels with their shapes and types, the same on every machine."""
        digest = hashlib.sha256()
        for array in (self.x, self.y):
            portable = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{portable.dtype.str} {portable.shape}\n".encode())
            digest.update(portable.data)
        return digest.hexdigest()

    def _check_images(self) -> None:
        if self.x.ndim != 4 or 0 in self.x.shape:
            raise self._refuse("images", "an array (rows, height, width, channels) that is not empty", self.x.shape)
        if self.x.dtype not in (np.uint8, np.float32):
            raise self._refuse("images", "of type uint8 or float32", self.x.dtype)
        if len(self.y) != len(self.x):
            raise self._refuse("labels", f"{len(self.x)}, one for each image", len(self.y))
        if self.x.dtype == np.float32 and not np.isfinite(self.x).all():
            raise self._refuse("images", "finite", "NaN or infinity")
        mean, std = self.normalize
        if len(mean) != len(std) or len(mean) not in (1, self.x.shape[3]) or min(std) <= 0:
            allowed = f"1 or {self.x.shape[3]} means and as many deviations > 0"
            raise self._refuse("normalization", allowed, tuple(self.normalize))

    def _refuse(self, what: str, allowed: str, got: object) -> DataError:
        return DataError(
            f"data set '{self.name}': {what} must be {allowed}, got {got}.", key=what, allowed=allowed, got=got
        )


def check_labels(labels: np.ndarray, num_classes: int, *, where: str) -> np.ndarray:
    """Return ``labels`` (rows,) as int64 if all are whole numbers from 0 to ``num_classes`` - 1.

    Raises:
        DataError: naming ``where`` (a file), what is allowed, and the first offender with its row.
    """
    allowed = f"whole numbers from 0 to {num_classes - 1}"
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        got = f"type {labels.dtype} of shape {labels.shape}"
        raise DataError(f"labels of {where} must be {allowed}, got {got}.", path=where, allowed=allowed, got=got)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        row, label = int(wrong[0]), int(labels[wrong[0]])
        message = f"labels of {where} must be {allowed}, got {label} at row {row}."
        raise DataError(message, path=where, allowed=allowed, got=label)
    return labels.astype(np.int64)
