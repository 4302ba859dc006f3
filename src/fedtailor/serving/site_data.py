"""The labelled data of one site, read for a model that exists: its classes, its kind of inputs."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, cast

import numpy as np

from fedtailor.core.errors import DataError, did_you_mean
from fedtailor.data.dataset import Dataset
from fedtailor.data.encoding import encode_like
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own


class SiteData(NamedTuple):
    """Examples as stored, and their labels in the classes of the model; training examples first."""

    x: np.ndarray  # (n, height, width, channels) or (n, features)
    y: np.ndarray  # (n,), int64
    num_train: int
    """The examples after these are test examples, which came as such."""
    name: str
    """Of the data, for example the name of the folder."""
    groups: np.ndarray | None = None  # (n,), int64
    """The group of each example, such as its patient."""


def load_site(
    path: str, inputs: InputSpecification, *, label_column: str = "", group: str = ""
) -> SiteData:
    """Read the labelled data of one site.

    Args:
        path: everything that ``data.path`` can be: a folder with a folder per class, a table,
            arrays, a function.
        inputs: of the model.
        label_column: of a table; empty: the one whose name says so.
        group: which examples belong together, as ``data.group``.

    Raises:
        DataError: the data cannot be read, is of several sites, has other classes, or does not fit
            the model.
    """
    color = "auto" if inputs.kind == "table" else {1: "gray", 3: "rgb"}.get(inputs.shape[0], "auto")
    options = DataOptions(
        path=path,
        image_size=inputs.image_size,
        color=cast(Any, color),
        label_column=label_column,
        group=group,
    )
    dataset = load_own(os.path.expanduser(path), options)

    if len(dataset.domain_names) > 1:
        names = ", ".join(dataset.domain_names[:5])
        message = f"'{path}' holds {len(dataset.domain_names)} sites ({names}): give the folder or the table of one."
        raise DataError(message, key="data", path=path, allowed=1, got=len(dataset.domain_names))

    stored = _stored(dataset, inputs, path)
    labels = _labels(dataset, inputs, path)
    return SiteData(stored, labels, dataset.num_official_train, dataset.name, dataset.groups)


def _labels(dataset: Dataset, inputs: InputSpecification, path: str) -> np.ndarray:
    """Return the labels as numbers of the model's classes, by name."""
    here = dataset.class_names or tuple(str(label) for label in range(dataset.num_classes))
    known = inputs.names
    used = sorted({here[label] for label in np.unique(dataset.y)})
    unknown = [name for name in used if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], list(known)) or "."
        message = f"'{path}' has a class {unknown[0]!r:.80} that the model does not know{hint} Its classes are "
        message += f"{', '.join(known[:20])}{' and more' if len(known) > 20 else ''}."
        raise DataError(message, key="data", path=path, allowed=list(known), got=unknown)

    numbers = np.array(
        [known.index(name) if name in known else -1 for name in here], dtype=np.int64
    )
    labels: np.ndarray = numbers[dataset.y]

    return labels


def _stored(dataset: Dataset, inputs: InputSpecification, path: str) -> np.ndarray:
    """Return the examples on the scale of the model's training data."""
    if dataset.raw is not None and inputs.columns is not None:
        return encode_like(dataset, inputs.columns)

    if dataset.input_shape != inputs.shape:
        message = (
            f"'{path}' holds inputs of shape {dataset.input_shape}; the model takes {inputs.shape}."
        )
        raise DataError(
            message, key="data", path=path, allowed=inputs.shape, got=dataset.input_shape
        )

    if inputs.kind == "table":
        return dataset.x.astype(np.float32)

    if inputs.stored == "uint8" or dataset.white == inputs.white:
        if dataset.white != inputs.white or (
            inputs.stored == "uint8" and dataset.x.dtype != np.uint8
        ):
            message = f"'{path}' holds images in which {dataset.white:g} is white; the model takes {inputs.white:g}."
            raise DataError(message, key="data", path=path, allowed=inputs.white, got=dataset.white)

        return dataset.x.astype(inputs.stored, copy=False)

    return (dataset.x.astype(np.float32) / np.float32(dataset.white)) * np.float32(inputs.white)
