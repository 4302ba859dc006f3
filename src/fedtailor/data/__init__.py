"""Data of a federation: data sets, partitions, and the split of each client's examples.

Data flow from a :class:`Dataset` through a partition and a split to a ``Federation``. The modules
of an entry of a table are imported when it is used, so that listing a table is immediate.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor.core.errors import find_name
from fedtailor.data.datasets import DATASETS
from fedtailor.data.files import Files, Report, to_nobody
from fedtailor.data.files import cache_folder as cache_folder
from fedtailor.data.files import data_folder as data_folder
from fedtailor.data.partitions import PARTITIONS as PARTITIONS

if TYPE_CHECKING:
    from fedtailor.data.dataset import Dataset


def load_dataset(name: str, folder: str | Path = "", report: Report = to_nobody) -> Dataset:
    """Load a data set by its name in :data:`DATASETS`.

    Args:
        name: of the data set.
        folder: the data folder; empty: see :func:`data_folder`.
        report: is told how many pictures have been read, if every example is a file.

    Raises:
        ConfigError: no data set has that name.
        DataError: a file is missing or damaged; the message names it.

    Example:
        >>> load_dataset("digits").input_shape
        (1, 8, 8)
    """
    name = find_name("dataset", name, DATASETS, key="data.dataset")
    entry = DATASETS[name]
    files = Files(name, data_folder(folder), report)

    def build() -> Dataset:
        dataset = entry.load(files)
        return dataclasses.replace(
            dataset,
            license=entry.license,
            citation=entry.citation,
            official_size=entry.examples,
            tested_on="synthetic" if entry.tested_on == "synthetic" else dataset.tested_on,
        )

    # A data set without files comes with a library, or is computed.
    if not entry.files:
        return build()

    from fedtailor.data.cache import cached, signature_of

    return cached(signature_of(entry.files, files.folder), build, name=name)
