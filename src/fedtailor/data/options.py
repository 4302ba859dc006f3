"""The ``[data]`` section: which data, divided how among how many clients."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from fedtailor.core.errors import ConfigError, find_name
from fedtailor.core.options import Range, check_options
from fedtailor.data.datasets.known import DATASETS

TestPolicy = Literal["own", "given", "by_label", "by_subclass", "complete"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The ``[data]`` section.

    Raises:
        ConfigError: a value of the wrong type or out of range, an unknown name, options that exclude each other.
    """

    dataset: str = "digits"
    """Name of a known data set; not looked at where ``path`` is given."""
    dir: str = ""
    """Folder of the known data sets; empty: FEDTAILOR_DATA, else ~/.cache/fedtailor."""
    path: str = ""
    """Own data in place of a known data set: a folder, or ``package.module:function`` that returns arrays."""
    label_column: str = "label"
    """Own tables: the column with the class."""
    image_size: Annotated[int, Range(ge=0, le=1024)] = 0
    """Own images: side of the square they are brought to; 0: kept if all have one size, an error otherwise."""
    color: Literal["auto", "gray", "rgb"] = "auto"
    """Own images: auto is rgb if any image has colors."""
    partition: str = ""
    """Who has which examples; empty: natural where the data have sites, else dirichlet(alpha=0.5)."""
    clients: Annotated[int, Range(ge=0)] = 0
    """Number of clients, new ones included; 0: as many as the partition itself has, else 20."""
    new_clients: Annotated[int, Range(ge=0)] = 0
    """The last so many clients are new: they never take part in training."""
    subset: Annotated[int, Range(ge=0)] = 0
    """Examples kept before the partition (of the training part, where tests come from the official test part), the
    same number of every class; 0: all."""
    fraction: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of each client's training examples that is kept; test examples are not touched."""
    train_size: Annotated[int, Range(ge=0)] = 0
    """Most training examples of a client; 0: no limit."""
    test: Literal["auto"] | TestPolicy = "auto"
    """Test examples of a client: a share of its ``own``; those ``given`` as such among its own; or of the official
    test part those of its labels, of its subclasses, or all of it. auto: given for data by writer or site that come
    divided, else own."""
    test_share: Annotated[float, Range(ge=0, lt=1)] = 0.2
    """Share of each client's examples for testing, where they are its own."""
    val_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of each client's kept training examples for validation: personalized models are scored on them too."""
    shift: str = ""
    """Corruption of some clients' images, such as cifar_s(clients=50, pairing='release'); empty: none."""
    normalize: Literal["auto", "dataset", "training"] = "auto"
    """Mean and deviation by which values are normalized: those of the ``dataset``, or of all ``training`` examples;
    auto: training for tables of numbers, dataset for images."""
    mean: tuple[float, ...] = ()
    """In place of the data set's own: means of pixels scaled to [0, 1], one or one per channel."""
    std: tuple[float, ...] = ()
    """Deviations that go with ``mean``."""
    split: str = ""
    """File of a split, or folder of client_*.npz files, in place of ``partition`` and all that divides."""
    seed: Annotated[int | Literal["run"], Range(ge=0)] = 42
    """Seed of partition, split and corruptions; "run": the seed of the run."""

    @property
    def title(self) -> str:
        """A short name of the data, for folders."""
        return [part for part in re.split(r"[:/\\]", self.path) if part][-1] if self.path else self.dataset

    def __post_init__(self) -> None:
        check_options(self, owner="data")
        if not self.path:
            dataset = find_name("dataset", self.dataset, DATASETS, key="data.dataset")
            object.__setattr__(self, "dataset", dataset)
        if self.clients:
            refuse_too_many_new(self.new_clients, self.clients)
        if bool(self.mean) != bool(self.std):
            given, other = ("mean", "std") if self.mean else ("std", "mean")
            raise ConfigError(f"data.{given} needs data.{other} beside it, got none.", key=f"data.{other}", got="none")
        self._refuse_without_effect()
        from fedtailor.data.partitions.text import parse_partition  # numpy is imported only once options are made

        if self.partition:
            parse_partition(self.partition)
        from fedtailor.data.shift import parse_shift

        parse_shift(self.shift)

    def _refuse_without_effect(self) -> None:
        """Refuse options that another one overrules, so that none is given in vain."""
        if self.split:
            self._refuse(DIVIDING, "data.split is given: the file says who has which examples")
        if self.mean:
            self._refuse(("normalize",), "data.mean and data.std are given")
        if not self.path:
            self._refuse(("label_column", "image_size", "color"), "data.path is not given: it is for own data")

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                message = f"data.{field.name} = {value!r} has no effect, because {reason}. Leave one of them out."
                raise ConfigError(message, key=f"data.{field.name}", allowed=repr(field.default), got=repr(value))


DIVIDING = ("partition", "clients", "subset", "fraction", "train_size", "test", "test_share", "val_fraction")
"""Options that divide the data, which a split file does."""


def refuse_too_many_new(new_clients: int, clients: int) -> None:
    """Check that a client is left that is not new.

    Raises:
        ConfigError: there is none.
    """
    if new_clients >= clients:
        allowed = f"less than the number of clients ({clients})"
        raise ConfigError(
            f"data.new_clients must be {allowed}, got {new_clients}.",
            key="data.new_clients",
            allowed=allowed,
            got=new_clients,
        )
