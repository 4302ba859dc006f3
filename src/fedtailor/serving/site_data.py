"""The labelled data of one site, read for a model that exists, and the federation of this site."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from fedtailor.core.errors import WARNING, DataError, did_you_mean
from fedtailor.core.federation import Federation, Splits
from fedtailor.core.task import Task
from fedtailor.core.text import listed
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.columns import Decimal
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.encoding import encode_like
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.options import KIND_OF, DataOptions
from fedtailor.data.own.like import TrainingTables
from fedtailor.data.own.patterns import reworded
from fedtailor.data.own.read import Purpose, load_own
from fedtailor.data.split import ClientPositions
from fedtailor.data.tensors import tables
from fedtailor.serving.inputs import to_stored

OF_COMMAND = {"label_column": "--label-column {value}"}
"""How ``onboard`` and ``evaluate`` write an option of the data."""
OF_RUN = "data.{key} = {value} in the run"
"""How they write those that only the run can set."""


class SiteData(NamedTuple):
    """Examples as stored, and their labels in the classes of the model; training examples first."""

    x: np.ndarray  # (n, height, width, channels), (n, times, channels) or (n, features)
    y: np.ndarray  # (n,), int64
    num_train: int
    """The examples after these are test examples, which came as such."""
    name: str
    """Of the data, for example the name of the folder."""
    groups: np.ndarray | None = None  # (n,), int64
    """The group of each example, such as its patient."""
    decimal: Decimal = "auto"
    """What commas are in the numbers of its tables; auto: there are none."""
    warnings: tuple[str, ...] = ()
    """On the examples, in sentences that begin with ``core.errors.WARNING``."""


def load_site(
    path: str,
    inputs: InputSpecification,
    *,
    label_column: str = "",
    group: str = "",
    leave_out: tuple[str, ...] = (),
    decimal: Decimal = "auto",
    purpose: Purpose = "site",
) -> SiteData:
    """Read the labelled data of one site.

    Args:
        path: everything that ``data.path`` can be: a folder with a folder per class, a table,
            arrays, a function.
        inputs: of the model.
        label_column: of a table; empty: the one whose name says so.
        group: which examples belong together, as ``data.group``.
        leave_out: columns that are not used, as ``data.leave_out`` of the run.
        decimal: what commas are in numbers, if the site says so.
        purpose: see :data:`fedtailor.data.own.read.Purpose`.

    Raises:
        DataError: the data cannot be read, is of several sites, has other classes, or does not fit
            the model.
    """
    # Pictures are read with the channels and the size that the model takes, arrays as its kind.
    raw = inputs.raw
    colors = {1: "gray", 3: "rgb"} if raw.kind == "images" else {}
    color = colors.get(raw.shape[0], "auto")
    kind = next(name for name, kind in KIND_OF.items() if kind == raw.kind)
    if inputs.encoder is not None:  # arrays may be raw, or features
        kind = "auto"

    # What is only scored is not divided.
    like = raw.training_tables
    if like is not None and purpose == "scores":
        leave_out = (*leave_out, "split")

    rules = raw.cells
    if decimal != "auto":
        rules = dataclasses.replace(rules or CellRules(), decimal=decimal)

    options = DataOptions(
        path=path,
        kind=kind,
        image_size=raw.image_size,
        color=cast(Any, color),
        label_column=label_column,
        group=group,
        leave_out=leave_out,
    )
    if like is not None:
        like = like._replace(rules=rules)

    dataset = load_one_site(path, options, like, purpose=purpose)
    labels = _labels(dataset, inputs, path)
    stored = _features(dataset, inputs, path)
    decimal = "auto"
    if dataset.raw is not None:
        decimal = next(iter(dataset.raw.decimals.values()), "auto")

    count = dataset.num_official_train
    return SiteData(
        x=stored,
        y=labels,
        num_train=count,
        name=dataset.name,
        groups=dataset.groups,
        decimal=cast(Any, decimal),
        warnings=tuple(note for note in dataset.notes if note.startswith(WARNING)),
    )


def load_labelled(
    paths: Sequence[str], inputs: InputSpecification, options: DataOptions, *, label_column: str
) -> list[SiteData]:
    """Read labelled data that are only scored, as the run of a model reads its own.

    Args:
        paths: one for each site, as in :func:`load_site`.
        inputs: of the model.
        options: of the data of the run.
        label_column: of tables; empty: that of the run.

    Raises:
        DataError: as :func:`load_site`.
    """
    sites = []
    with options_written_as(OF_COMMAND, OF_RUN):
        for path in paths:
            site = load_site(
                path,
                inputs,
                label_column=label_column or options.label_column,
                group=options.group,
                leave_out=options.leave_out,
                purpose="scores",
            )
            sites.append(site)

    return sites


def groups_of(sites: Sequence[SiteData]) -> list[tuple[int, int]] | None:
    """Return the group of every example of several sites; None if no site has groups.

    Each site numbers its groups from 0, so those of different sites are different ones. Where a
    site has none, each of its examples is a group.
    """
    if all(site.groups is None for site in sites):
        return None

    groups = []
    for number, site in enumerate(sites):
        own = np.arange(len(site.y)) if site.groups is None else site.groups
        groups += [(number, group) for group in own.tolist()]
    return groups


@contextmanager
def options_written_as(forms: Mapping[str, str], other: str) -> Iterator[None]:
    """Reword what errors of the data say about options; see :func:`reworded`.

    Raises:
        DataError: the one that was raised inside, with the options as they are written here.
    """
    try:
        yield
    except DataError as error:
        error.message = reworded(error.message, forms, other)
        error.args = (error.message,)
        raise


def absolute(path: str) -> str:
    """Return a path as it is from every working folder; a function stays as it is."""
    return os.path.abspath(os.path.expanduser(path)) if os.path.exists(path) else path


def load_one_site(
    path: str,
    options: DataOptions,
    like: TrainingTables | None = None,
    *,
    purpose: Purpose = "site",
) -> Dataset:
    """Read the labelled data of one site as they are.

    Args:
        path: of the data.
        options: as of every reader.
        like: the tables of a model that exists; None: nothing is known in advance.
        purpose: as of :func:`load_site`.

    Raises:
        DataError: the data cannot be read, or are of several sites.
    """
    expanded = os.path.expanduser(path)
    dataset = load_own(expanded, options, like=like, purpose=purpose)

    # The data is of one site: a folder per site is another form.
    count = len(dataset.domain_names)
    if count > 1:
        what = f"{count} sites ({', '.join(dataset.domain_names[:5])})"
        message = f"'{path}' holds {what}: give the folder or the table of one."
        raise DataError(message, key="data.path", path=path, allowed=1, got=count)
    return dataset


def _labels(dataset: Dataset, inputs: InputSpecification, path: str) -> np.ndarray:
    """Return the labels as numbers of the model's classes, by name."""
    class_names = dataset.names
    numbers = {name: number for number, name in enumerate(inputs.names)}
    used = sorted({class_names[label] for label in np.unique(dataset.y)})
    unknown = [name for name in used if name not in numbers]
    if unknown:
        hint = did_you_mean(unknown[0], inputs.names) or "."
        message = f"'{path}' has a class {unknown[0]!r:.80} that the model does not know{hint}"
        message += f" Its classes are {listed(inputs.names, 20)}."
        raise DataError(message, key="data", path=path, allowed=list(inputs.names), got=unknown)

    # Names that no example has need no number.
    translated = [numbers.get(name, -1) for name in class_names]
    labels: np.ndarray = np.array(translated, dtype=np.int64)[dataset.y]
    return labels


def _stored(dataset: Dataset, inputs: InputSpecification, path: str) -> np.ndarray:
    """Return the examples on the scale of the model's training data."""
    if dataset.raw is not None and inputs.columns is not None:
        return encode_like(dataset, inputs.columns)
    if dataset.raw is not None:
        message = f"'{path}' is a table; the model takes arrays, whose columns have no names."
        raise DataError(message, key="data", path=path, allowed="arrays", got="a table")
    if inputs.columns is not None:
        return to_stored(dataset.x, inputs)

    shape = dataset.input_shape
    if shape != inputs.shape:
        message = f"'{path}' holds inputs of shape {shape}; the model takes {inputs.shape}."
        raise DataError(message, key="data", path=path, allowed=inputs.shape, got=shape)

    if inputs.kind != "images":
        return dataset.x.astype(np.float32)

    # Whole numbers cannot be scaled.
    has_same_white = dataset.white == inputs.white
    fits = has_same_white and (inputs.stored != "uint8" or dataset.x.dtype == np.uint8)
    if inputs.stored == "uint8" and not fits:
        white = f"{dataset.white:g} is white; the model takes {inputs.white:g}"
        message = f"'{path}' holds images in which {white}."
        raise DataError(message, key="data", path=path, allowed=inputs.white, got=dataset.white)
    if fits:
        return dataset.x.astype(inputs.stored, copy=False)

    return (dataset.x.astype(np.float32) / np.float32(dataset.white)) * np.float32(inputs.white)


def _features(dataset: Dataset, inputs: InputSpecification, path: str) -> np.ndarray:
    """Return what the model takes: stored values, or features of its encoder."""
    if inputs.encoder is None:
        return _stored(dataset, inputs, path)

    # Features that were made before must be of the same encoder.
    expected = inputs.encoder.digest
    if dataset.encoder is not None:
        got = dataset.encoder.digest
        if got != expected:
            message = f"'{path}' holds features of an encoder with the digest {got}; those of the "
            message += f"model have {expected}."
            raise DataError(message, key="data", path=path, allowed=expected, got=got)

        return _stored(dataset, inputs, path)

    from fedtailor.data.embedding import embed_rows
    from fedtailor.encoders.load import load_unchanged

    # The labels stay as they were read, with which the features may be in the cache already.
    x = _stored(dataset, inputs.raw, path)
    raw = dataclasses.replace(dataset, x=x, raw=None, white=inputs.raw.white)
    encoder = load_unchanged(inputs.encoder.target, expected)
    return embed_rows(encoder, raw, np.arange(len(x)))[0]


def federation_of_one(
    site: SiteData,
    positions: ClientPositions,
    inputs: InputSpecification,
    task: Task,
    number: int,
    population: int,
) -> Federation:
    """Return a federation in which only the site with this number has data.

    Args:
        site: its examples, on the scale of the model's training data.
        positions: their division.
        inputs: of the model.
        task: of the site.
        number: of the site, whose programs run as those of the client with this number.
        population: number of sites that can take part in training; a site with a number from here
            on is new.
    """
    normalize = Normalization(tuple(inputs.mean.tolist()), tuple(inputs.std.tolist()), inputs.l2)
    dataset = Dataset(
        name=site.name,
        x=site.x,
        y=site.y,
        num_classes=inputs.num_classes,
        normalize=normalize,
        white=inputs.white,
    )

    # Clients before this one are empty: its number decides its random draws.
    x, scale = tables(dataset, normalize)
    nothing = positions.train[:0]
    empty = ClientPositions(nothing, nothing, nothing)

    return Federation(
        x=x,
        y=torch.from_numpy(site.y),
        splits=Splits([*([empty] * number), positions]),
        common_task=Task(task.model, task.num_classes, task.input_shape),
        num_new=max(number + 1 - population, 0),
        scale=scale,
    )
