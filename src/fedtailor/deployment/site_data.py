"""The data of one site: what it says of them before a run, and their division in a run.

A site's examples come in the order, and are divided into training, validation and test examples by
the rule, of a simulation that reads the data of all sites from one folder. So both give the same
bits.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import WARNING, DataError
from fedtailor.data.dataset import AS_THEY_ARE, Dataset
from fedtailor.data.division import ClientSplitter
from fedtailor.data.embedding import embed_rows, record_of, with_features
from fedtailor.data.input_specification import inputs_of
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientPositions, split_digest, to_records
from fedtailor.deployment.options import SiteOptions
from fedtailor.deployment.site_memory import SiteMemory
from fedtailor.encoders.load import load_encoder
from fedtailor.serving.load import TrainedMethod
from fedtailor.serving.site_data import SiteData, load_one_site, load_site, options_written_as

log = logging.getLogger("fedtailor.site")

_OWN_OPTIONS = ("label_column", "group", "decimal")
"""Options of the data that a site sets in ``site.toml``."""


class PreparedData(NamedTuple):
    """A site's examples as inputs of the model, and their division."""

    site: SiteData
    positions: ClientPositions
    digest: str
    """SHA-256 of examples, labels and division."""


def options_of(options: SiteOptions, data: DataOptions, folder: Path) -> DataOptions:
    """Return ``[data]`` with what the site sets for itself."""
    # A function is named "package.module:function".
    path = os.path.expanduser(options.data)
    is_function = ":" in path
    if not is_function and not os.path.isabs(path):
        path = str(folder / path)
    return dataclasses.replace(
        data,
        path=path,
        label_column=options.label_column,
        group=options.group,
        decimal=data.decimal if options.decimal == "auto" else options.decimal,
    )


def _options_of_site_file() -> AbstractContextManager[None]:
    """Reword errors of the data: a site sets its own options in ``site.toml``."""
    forms = {key: f'{key} = "{{value}}" in site.toml' for key in _OWN_OPTIONS}
    of_server = "in [data] of the server's federation.toml"
    forms["leave_out"] = f"leave_out = {{value}} {of_server}"
    return options_written_as(forms, f'{{key}} = "{{value}}" {of_server}')


def read_dataset(options: SiteOptions, data: DataOptions, folder: Path) -> Dataset:
    """Read a site's data as they are, before anything is known of other sites.

    Raises:
        DataError: the data cannot be read, or are of several sites.
    """
    data = options_of(options, data, folder)
    with _options_of_site_file():
        return load_one_site(data.path, data)


def embed_dataset(dataset: Dataset, data: DataOptions, digest: str) -> Dataset:
    """Return a site's data with the features of an encoder in place of the examples.

    They may be such features already. Features lie in the cache of this machine, and are made once.

    Args:
        dataset: as it was read.
        data: the section ``[data]``, whose encoder the site allows.
        digest: of the encoder of the server.

    Raises:
        ConfigError: the encoder is not here, or cannot be used.
        DataError: its digest is another one, and the message has both; or the data are a table,
            whose cells become features with those of other sites only.
    """
    target = data.encoder
    if dataset.encoder is not None:
        _check_digest(target, dataset.encoder.digest, digest)
        return dataset

    if dataset.raw is not None:
        message = "at real sites, an encoder takes pictures, series or arrays, not cells of tables."
        raise DataError(message, key="data.encoder", got="table")

    encoder = load_encoder(target)
    _check_digest(target, encoder.digest, digest)
    inputs = inputs_of(dataset, data, AS_THEY_ARE)
    features, notes = embed_rows(encoder, dataset, np.arange(len(dataset.y)))
    for note in notes:
        log.warning("%s", note)

    log.info("the features of %s examples are there, by %s", f"{len(dataset.y):,}", target)
    return with_features(dataset, features, record_of(encoder, inputs))


def _check_digest(target: str, here: str, there: str) -> None:
    if here != there:
        message = f"encoder '{target}' has the digest {here} here, and {there!s:.80} at the server."
        raise DataError(message, key="data.encoder", allowed=there, got=here)


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return what all sites must agree on, ready for JSON, and nothing about single examples."""
    raw = dataset.raw
    return {
        "kind": dataset.kind,
        "shape": list(dataset.input_shape),
        "stored": "uint8" if dataset.x.dtype == np.uint8 else "float32",
        "white": dataset.white,
        "mean": list(dataset.normalize.mean),
        "std": list(dataset.normalize.std),
        "classes": list(dataset.names),
        "has_test": dataset.num_official_train < len(dataset.y),
        "columns": None if raw is None else [column.name for column in raw.columns],
        "encoder": None if dataset.encoder is None else dataset.encoder._asdict(),
    }


def divide_site(
    memory: SiteMemory,
    data: DataOptions,
    count: int,
    num_official_train: int,
    groups: np.ndarray | None,
) -> ClientPositions:
    """Return a site's training, validation and test examples, divided as in a simulation.

    Raises:
        ConfigError: too few are left for a purpose.
        DataError: they were divided in another way before.
    """
    splitter = ClientSplitter(data, memory.seed, num_official_train, groups)
    positions = splitter.split(np.arange(count))

    parts = {name: len(part) for name, part in positions._asdict().items()}
    memory.keep_division(data, {**parts, "all": count})
    return positions


def prepare(
    options: SiteOptions, method: TrainedMethod, memory: SiteMemory, folder: Path
) -> PreparedData:
    """Read a site's data as inputs of the model, and divide them.

    Raises:
        ConfigError: the division leaves too few examples for a purpose.
        DataError: the data cannot be read, do not fit the model, or were divided in another way.
    """
    data = method.config.data
    own = options_of(options, data, folder)
    with _options_of_site_file():
        site = load_site(
            own.path,
            method.inputs,
            label_column=own.label_column,
            group=own.group,
            leave_out=own.leave_out,
            decimal=own.decimal,
        )

    for warning in site.warnings:
        log.warning(warning.removeprefix(WARNING))

    positions = divide_site(memory, data, len(site.y), site.num_train, site.groups)
    return PreparedData(site, positions, _digest(site, positions))


def _digest(site: SiteData, positions: ClientPositions) -> str:
    """Return the SHA-256 of what a site trains and tests with."""
    dataset = Dataset(name="", x=site.x, y=site.y, num_classes=int(site.y.max(initial=0)) + 1)
    return split_digest(to_records([positions]), 0, [dataset.digest])
