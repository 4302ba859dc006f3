"""Data of a federation: data sets, partitions, and the split of each client's examples.

The tables name what there is; nothing heavy is imported until an entry is used, so that listing
them is immediate. The way of the data: :class:`Dataset` -> partition -> split -> ``Federation``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fedtailor.core.errors import find_name
from fedtailor.data.datasets.known import DATASETS, KnownDataset
from fedtailor.data.folders import cache_folder as cache_folder
from fedtailor.data.folders import data_folder as data_folder

if TYPE_CHECKING:
    from fedtailor.data.dataset import Dataset


class Entry(NamedTuple):
    """A line of a table: where the thing is, and what it is."""

    target: str
    """``module:attribute`` within this package."""
    description: str

    def resolve(self) -> Any:
        """Import the module and return the attribute."""
        return find(self.target)


PARTITIONS: Mapping[str, Entry] = {
    "classes": Entry("partitions.classes:Classes", "every client holds k classes, each shared evenly: classes(k=2)"),
    "cyclic_classes": Entry(
        "partitions.classes:CyclicClasses",
        "client i holds classes i to i+k-1, equal sizes (FedCR): cyclic_classes(k=5)",
    ),
    "dirichlet": Entry(
        "partitions.dirichlet:Dirichlet",
        "shares of each class drawn from a Dirichlet: dirichlet(alpha=0.5, min_size=10)",
    ),
    "dirichlet_quota": Entry(
        "partitions.quota:DirichletQuota",
        "every client has `quota` examples of classes drawn from a Dirichlet (FedLDA): "
        "dirichlet_quota(alpha=0.5, quota=500)",
    ),
    "domain_labels": Entry(
        "partitions.domains:DomainLabels", "one domain and k of its labels per client (pFedVEM): domain_labels(k=5)"
    ),
    "domains": Entry(
        "partitions.domains:Domains", "clients within every domain, by Dirichlet: domains(per_domain=4, alpha=0.5)"
    ),
    "iid": Entry("partitions.iid:Iid", "examples dealt out at random in equal parts: iid"),
    "label_slices": Entry(
        "partitions.slices:LabelSlices", "part of the labels, each cut at random places (pFedVEM): label_slices(k=5)"
    ),
    "natural": Entry("partitions.domains:Natural", "one client per writer, site or domain of the data: natural"),
    "subclass_slices": Entry(
        "partitions.slices:SubclassSlices", "one subclass of every label, cut at random (pFedVEM): subclass_slices"
    ),
}
"""Partitions by name; an entry resolves to a subclass of :class:`fedtailor.data.partitions.base.Partition`."""


def find(target: str) -> Any:
    """Return what ``module:attribute`` within this package names."""
    module, attribute = target.split(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def load_dataset(name: str, folder: str | Path = "") -> Dataset:
    """Load a data set by its name in :data:`DATASETS`.

    Raises:
        ConfigError: there is no data set of that name.
        DataError: a file is missing or damaged; the message names it.

    Example:
        >>> load_dataset("digits").input_shape
        (1, 8, 8)
    """
    name = find_name("dataset", name, DATASETS, key="data.dataset")
    known = DATASETS[name]
    dataset = _decode(name, known, data_folder(folder))
    tested_on = "fabricated" if known.tested_on == "fabricated" else dataset.tested_on
    complete = dataclasses.replace(
        dataset,
        license=known.license,
        citation=known.citation,
        official_size=known.examples,
        tested_on=cast(Any, tested_on),
    )
    if "digest" in vars(dataset):  # of the same examples: not computed twice
        vars(complete)["digest"] = dataset.digest
    return complete


def _decode(name: str, known: KnownDataset, folder: Path) -> Dataset:
    """Return a data set from the cache of decoded data, or from its files."""
    from fedtailor.data.cache import cached, signature_of

    return cached(signature_of(known.files, folder), lambda: cast("Dataset", find(known.target)(folder)), name=name)
