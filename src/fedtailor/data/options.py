"""The ``[data]`` section: which data, divided how among how many clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedtailor.core.errors import ConfigError, unknown_name
from fedtailor.core.options import Range, check_options
from fedtailor.data import DATASETS


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The ``[data]`` section.

    Raises:
        ConfigError: a value of the wrong type or out of range, an unknown name, no client left for training.
    """

    dataset: str = "digits"
    """Name of the data set."""
    dir: str = ""
    """Folder of the data sets; empty: FEDTAILOR_DATA, else ~/.cache/fedtailor."""
    partition: str = "dirichlet(alpha=0.5)"
    """Who has which examples: iid, dirichlet(alpha=..., min_size=...) or classes(k=...)."""
    clients: Annotated[int, Range(ge=1)] = 20
    """Number of clients, new ones included."""
    new_clients: Annotated[int, Range(ge=0)] = 0
    """The last so many clients are new: they never take part in training."""
    fraction: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of each client's training examples that is kept; test examples are not touched."""
    test_share: Annotated[float, Range(ge=0, lt=1)] = 0.2
    """Share of each client's examples for testing."""
    val_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of each client's kept training examples for validation: personalized models are scored on them too."""
    seed: Annotated[int | Literal["run"], Range(ge=0)] = 42
    """Seed of partition and split; "run": the seed of the run."""

    def __post_init__(self) -> None:
        check_options(self, owner="data")
        if self.dataset not in DATASETS:
            raise unknown_name("dataset", self.dataset, DATASETS, key="data.dataset")
        if self.new_clients >= self.clients:
            allowed = f"less than data.clients ({self.clients})"
            raise ConfigError(
                f"data.new_clients must be {allowed}, got {self.new_clients}.",
                key="data.new_clients",
                allowed=allowed,
                got=self.new_clients,
            )
        from fedtailor.data.partition import parse_partition  # numpy is imported only once options are made

        parse_partition(self.partition)
