"""A data set in memory: examples as stored, labels, and their sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.columns import Columns, RawTable

InputKind = Literal["images", "series", "table"]
"""What examples are: pictures, series over time, or rows of features."""
_KINDS: Mapping[int, InputKind] = {2: "table", 3: "series", 4: "images"}
"""By the number of axes of all examples together."""


class Annotations(NamedTuple):
    """What a partition may use of examples; None if the data set lacks it."""

    labels: np.ndarray  # (rows,), int64
    subclasses: np.ndarray | None = None  # (rows,), int64: finer classes, each within one label
    domains: np.ndarray | None = None  # (rows,), int64: domain, writer or site

    def take(self, rows: np.ndarray) -> Annotations:
        """Return the annotations of some examples."""
        subclasses = None if self.subclasses is None else self.subclasses[rows]
        domains = None if self.domains is None else self.domains[rows]
        return Annotations(self.labels[rows], subclasses, domains)


class Normalization(NamedTuple):
    """Mean and standard deviation of values scaled by ``white``: per channel, or one for all."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    l2: bool = False
    """Whether rows of features are divided by their Euclidean norm first."""


AS_THEY_ARE = Normalization(mean=(0.0,), std=(1.0,))
"""No normalization: values are used as they are stored."""


class EncoderRecord(NamedTuple):
    """Which frozen encoder made features, and from which inputs."""

    target: str
    """By which it is loaded: ``onnx:FILE`` or ``package.module:function``."""
    digest: str
    """SHA-256 of its weights, code and preprocessing."""
    license: str
    """What it says of its license; may be empty."""
    inputs: Mapping[str, Any]
    """What it takes: a record of :class:`fedtailor.data.input_specification.InputSpecification`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Examples and labels: the official training part first, then the official test part.

    A value p becomes ``(p / white - mean) / std``; the default maps a pixel to [-1, 1] (pFedFDA's
    experiments).

    Raises:
        DataError: shapes do not match, values are not finite, or labels are out of range.
    """

    name: str
    x: np.ndarray
    """Images as stored, (rows, height, width, channels), uint8 or float32; series, (rows, times,
    channels), float32; or tables of numbers, (rows, features), float32."""
    y: np.ndarray  # (rows,), int64
    """Labels, 0 to ``num_classes`` - 1."""
    num_classes: int
    class_names: tuple[str, ...] = ()
    subclasses: np.ndarray | None = None  # (rows,), int64
    """Finer classes, 0 to ``len(subclass_names)`` - 1, each within one label (pFedVEM's concept
    drift)."""
    subclass_names: tuple[str, ...] = ()
    domains: np.ndarray | None = None  # (rows,), int64
    """The domain, writer or site of each example, 0 to ``len(domain_names)`` - 1."""
    domain_names: tuple[str, ...] = ()
    groups: np.ndarray | None = None  # (rows,), int64
    """The group of each example, such as its patient, numbered from 0: a split never divides a
    group."""
    raw: RawTable | None = None
    """Tables as they were read: ``x`` has one number per column, which is a position in the texts
    of a category if the column has texts; NaN: the cell is empty.
    :func:`fedtailor.data.build.build` makes features of them."""
    columns: Columns | None = None
    """Tables: how their cells became the features in ``x``; None before that, and for other
    data."""
    encoder: EncoderRecord | None = None
    """The frozen encoder that made the features in ``x``; None for other data."""
    normalize: Normalization = Normalization()
    white: float = 255.0
    """The stored value that becomes 1 before normalization."""
    num_official_train: int = -1
    """Rows of the official training part, which come first; -1 (all rows) without an official
    division."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of every file read, by its name."""
    tested_on: Literal["original", "synthetic"] = "original"
    """Whether the reader was tested on the original data, or on synthetic files only."""
    official_size: int = -1
    """Rows of the whole published data set; -1: unknown."""
    partial: bool = False
    """Whether this is known to be a part of the published data, whatever ``official_size`` says."""
    license: str = ""
    citation: str = ""
    notes: tuple[str, ...] = ()
    """Sentences about the data, which a result is shown with."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; numbers where the data have no names."""
        return self.class_names or tuple(map(str, range(self.num_classes)))

    def __post_init__(self) -> None:
        if self.num_official_train < 0:
            object.__setattr__(self, "num_official_train", len(self.y))

        self._check_examples()
        object.__setattr__(self, "x", np.ascontiguousarray(self.x))
        labels = check_labels(self.y, self.num_classes, where=f"data set '{self.name}'")
        object.__setattr__(self, "y", labels)
        if self.class_names and len(self.class_names) != self.num_classes:
            raise self._refuse("class names", f"{self.num_classes} names", len(self.class_names))

        self._check_column("subclasses", self.subclasses, self.subclass_names)
        self._check_column("domains", self.domains, self.domain_names)
        if self.groups is not None:
            self._check_column("groups", self.groups, range(len(self.y)))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an example at the input of a model.

        It is (channels, height, width), (channels, times) or (features,).
        """
        return (self.x.shape[-1], *self.x.shape[1:-1])

    @property
    def kind(self) -> InputKind:
        """What the examples are, by their shape."""
        return _KINDS[self.x.ndim]

    @property
    def annotations(self) -> Annotations:
        """The properties of the examples that a partition may use."""
        return Annotations(self.y, self.subclasses, self.domains)

    @property
    def subset(self) -> bool:
        """Whether the number of examples differs from the published data set."""
        return self.partial or (self.official_size >= 0 and len(self.y) != self.official_size)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all arrays with shapes and types; the same on every machine."""
        digest = hashlib.sha256()
        texts = [column.texts for column in self.raw.columns] if self.raw is not None else []
        if any(texts):
            digest.update(json.dumps(texts).encode("ascii"))

        # Bytes in one order on every machine, and shapes, so that no two data sets are confused.
        for array in (self.x, self.y, self.subclasses, self.domains, self.groups):
            if array is None:
                continue

            portable = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{portable.dtype.str} {portable.shape}\n".encode())
            digest.update(portable.data)

        return digest.hexdigest()

    def _check_examples(self) -> None:
        shape = self.x.shape
        if len(shape) not in _KINDS or 0 in shape:
            allowed = (
                "of shape (rows, height, width, channels), (rows, times, channels) or (rows, "
                "features), not empty"
            )
            raise self._refuse("examples", allowed, shape)
        if self.x.dtype not in (np.uint8, np.float32):
            raise self._refuse("examples", "of type uint8 or float32", self.x.dtype)
        if self.kind == "series" and self.x.dtype == np.uint8:
            allowed = "series of type float32, or pictures with their channels in a fourth axis"
            raise self._refuse("examples", allowed, f"uint8 of shape {shape}")
        if len(self.y) != len(self.x):
            raise self._refuse("labels", f"{len(self.x)}, one for each example", len(self.y))

        # The features of a table as read are not known yet, and it may lack cells (NaN).
        mean = self.normalize.mean
        std = self.normalize.std
        most = shape[-1] if self.raw is None else len(mean)
        if self.raw is None and self.x.dtype == np.float32 and not np.isfinite(self.x).all():
            raise self._refuse("examples", "finite", "NaN or infinity")

        if len(mean) not in (1, most) or len(mean) != len(std) or min(std) <= 0:
            allowed = f"1 or {most} means and as many deviations > 0"
            raise self._refuse("normalization", allowed, tuple(self.normalize))

    def _check_column(self, what: str, column: np.ndarray | None, names: Sized) -> None:
        """Check that every example has one of the named domains or subclasses."""
        if column is None:
            return
        if len(column) != len(self.x):
            raise self._refuse(what, f"{len(self.x)}, one for each example", len(column))

        where = f"{what} of data set '{self.name}'"
        object.__setattr__(self, what, check_labels(column, len(names), where=where))

    def _refuse(self, what: str, allowed: str, got: object) -> DataError:
        message = f"data set '{self.name}': {what} must be {allowed}, got {got}."
        return DataError(message, key=what, allowed=allowed, got=got)


def check_labels(labels: np.ndarray, num_classes: int, *, where: str, first: int = 0) -> np.ndarray:
    """Return ``labels`` (rows,) as int64, counted from 0, if all are whole numbers in the range.

    This has ``num_classes`` numbers from ``first`` on.

    Raises:
        DataError: a label is out of range; the message names ``where`` (a file) and the first such
            label and its row.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        got = f"type {labels.dtype} of shape {labels.shape}"
    else:
        wrong = np.flatnonzero((labels < first) | (labels >= first + num_classes))
        if not len(wrong):
            return labels.astype(np.int64) - first

        got = f"{labels[wrong[0]]} at row {wrong[0]}"

    allowed = f"whole numbers from {first} to {first + num_classes - 1}"
    message = f"labels of {where} must be {allowed}, got {got}."
    raise DataError(message, path=where, allowed=allowed, got=got)
