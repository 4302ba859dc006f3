"""Data of a federation: data sets, partitions, and the split of each client's examples.

The two tables name what there is; nothing heavy is imported until an entry is used, so that listing
them is immediate. The way of the data: :class:`Dataset` -> partition -> split -> ``Federation``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fedtailor.core.errors import unknown_name

if TYPE_CHECKING:
    from fedtailor.data.dataset import Dataset


class Entry(NamedTuple):
    """A line of a table: where the thing is, and what it is."""

    target: str
    """``module:attribute`` within this package."""
    description: str

    def resolve(self) -> Any:
        """Import the module and return the attribute."""
        module, attribute = self.target.split(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


DATASETS: Mapping[str, Entry] = {
    "cifar10": Entry("cifar:load_cifar10", "60,000 color photographs of 32x32 pixels, 10 classes"),
    "cifar100": Entry("cifar:load_cifar100", "60,000 color photographs of 32x32 pixels, 100 classes"),
    "digits": Entry("digits:load_digits", "1,797 handwritten digits of 8x8 pixels, in scikit-learn: no download"),
    "fashion_mnist": Entry("mnist:load_fashion_mnist", "70,000 gray pictures of clothes of 28x28 pixels, 10 classes"),
    "mnist": Entry("mnist:load_mnist", "70,000 handwritten digits of 28x28 pixels, 10 classes"),
}
"""Data sets by name; an entry resolves to ``load(folder: Path) -> Dataset``."""

PARTITIONS: Mapping[str, Entry] = {
    "classes": Entry("partition:Classes", "every client holds k classes, each class shared evenly: classes(k=2)"),
    "dirichlet": Entry(
        "partition:Dirichlet", "shares of each class drawn from a Dirichlet: dirichlet(alpha=0.5, min_size=10)"
    ),
    "iid": Entry("partition:Iid", "examples dealt out at random in equal parts: iid"),
}
"""Partitions by name; an entry resolves to a subclass of :class:`fedtailor.data.partition.Partition`."""


def data_folder(folder: str | Path = "") -> Path:
    """Return the folder of data sets: the argument, else ``FEDTAILOR_DATA``, else ``~/.cache/fedtailor``."""
    chosen = str(folder) or os.environ.get("FEDTAILOR_DATA", "") or "~/.cache/fedtailor"
    return Path(chosen).expanduser()


def load_dataset(name: str, folder: str | Path = "") -> Dataset:
    """Load a data set by its name in :data:`DATASETS`.

    Raises:
        ConfigError: there is no data set of that name.
        DataError: a file is missing or damaged; the message names it.

    Example:
        >>> load_dataset("digits").input_shape
        (1, 8, 8)
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS, key="data.dataset")
    return cast("Dataset", DATASETS[name].resolve()(data_folder(folder)))
