"""Features of a data set as a folder of arrays, which is read as own data, without the encoder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedtailor.core.atomic import safe_name, to_json, writing
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.folders import whole_folder
from fedtailor.data.dataset import AS_THEY_ARE, Dataset, EncoderRecord
from fedtailor.data.embedding import embed_rows, record_of
from fedtailor.data.files import Report, to_nobody
from fedtailor.data.input_specification import inputs_of
from fedtailor.data.options import DataOptions
from fedtailor.data.own.layout import ENCODER_FILE
from fedtailor.encoders.load import load_encoder

Precision = Literal["float32", "float16"]


class EmbeddedFolder(NamedTuple):
    """What was written."""

    encoder: EncoderRecord
    dimension: int
    examples: dict[str, int]
    """By site; the only site of data without sites has no name."""
    notes: list[str]


def write_embedded(
    dataset: Dataset,
    options: DataOptions,
    out: Path,
    *,
    precision: Precision = "float32",
    report: Report = to_nobody,
) -> EmbeddedFolder:
    """Embed all examples of a data set, and write ``SITE/train.npz`` and ``SITE/test.npz``.

    A file has the features ``x`` (n, d), the labels ``y``, ``class_names``, the record of the
    ``encoder``, and the ``groups`` where there are any. Features that were made before, by this
    function or by a run, come from the cache, so a process that was killed continues.

    Args:
        dataset: as it was read.
        options: the ``[data]`` section, with the encoder.
        out: the folder to write; it is there whole or not at all.
        precision: of the features in the files.
        report: is told how many examples have been embedded.

    Raises:
        ConfigError: the encoder cannot be loaded or used, or its features are too large for the
            precision.
        DataError: the data are a table, whose cells become features in a run only.
        RunError: a file cannot be written.
    """
    if dataset.raw is not None:
        message = "the cells of tables become features in a run, of all sites together: use the "
        message += "option --encoder of the run."
        raise DataError(message, key="data.path", allowed="pictures, series or arrays", got="table")

    encoder = load_encoder(options.encoder)
    inputs = inputs_of(dataset, options, AS_THEY_ARE)
    record = record_of(encoder, inputs)
    features, notes = embed_rows(encoder, dataset, np.arange(len(dataset.y)), report)

    with writing(out), whole_folder(out) as unfinished:
        (unfinished / ENCODER_FILE).write_text(
            to_json({**record._asdict(), "dimension": features.shape[1]}, indent=2) + "\n"
        )
        examples: dict[str, int] = {}
        for site, part, rows in _files(dataset):
            folder = unfinished / _folder_name(site)
            folder.mkdir(exist_ok=True)
            arrays = _arrays(dataset, _rounded(features[rows], precision), rows, record)
            np.savez(folder / f"{part}.npz", **arrays)
            examples[site] = examples.get(site, 0) + len(rows)

    return EmbeddedFolder(record, features.shape[1], examples, notes)


def _files(dataset: Dataset) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield site, part and rows of every file that has any."""
    domains = np.zeros_like(dataset.y) if dataset.domains is None else dataset.domains
    is_test = np.arange(len(dataset.y)) >= dataset.num_official_train
    for number, site in enumerate(dataset.domain_names or ("",)):
        for part in ("train", "test"):
            rows = np.flatnonzero((domains == number) & (is_test == (part == "test")))
            if len(rows):
                yield site, part, rows


def _rounded(features: np.ndarray, precision: Precision) -> np.ndarray:
    """Return features in the precision of a file."""
    with np.errstate(over="ignore"):
        rounded = features.astype(precision)

    if not np.isfinite(rounded).all():
        most = np.finfo(precision).max
        message = f"{precision} holds numbers up to {most:g}, and the features have larger ones."
        raise ConfigError(message, key="precision", allowed=float(most), got=precision)

    return rounded


def _arrays(
    dataset: Dataset, features: np.ndarray, rows: np.ndarray, record: EncoderRecord
) -> dict[str, Any]:
    """Return the arrays of a file."""
    arrays: dict[str, Any] = {
        "x": features,
        "y": dataset.y[rows],
        "encoder": np.array(to_json(record._asdict())),
    }
    if dataset.class_names:
        arrays["class_names"] = np.array(dataset.class_names)
    if dataset.groups is not None:
        arrays["groups"] = dataset.groups[rows]

    return arrays


def _folder_name(site: str) -> str:
    """Return the name of a site as that of a folder, as it is where that is possible."""
    is_plain = not site.startswith(".") and os.sep not in site and "/" not in site
    return site if is_plain else safe_name(site)
