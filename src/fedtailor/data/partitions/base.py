"""The base of all partitions: a value with checked options, and a text form that gives it back."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.options import check_options
from fedtailor.data.dataset import Annotations

KEY = "data.partition"
"""The option that names a partition."""


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Base of all partitions; the fields are the options.

    ``str`` gives the text form, such as ``dirichlet(alpha=0.5, min_size=10)``, that
    :func:`fedtailor.data.partitions.text.parse_partition` reads.
    """

    name: ClassVar[str]
    hands_out_all: ClassVar[bool] = True
    """Whether every example goes to some client; otherwise some may be left over."""

    def __post_init__(self) -> None:
        check_options(self, owner=self.name)

    def __str__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        options = ", ".join(f"{name}={as_text(value)}" for name, value in values)
        return f"{self.name}({options})" if options else self.name

    def divide(self, annotations: Annotations, *, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions that each client gets: disjoint, at least one each unless the partition allows none.

        Args:
            annotations: labels (rows,), subclasses and domains; a class is what has an example.
            clients: how many clients, 1 or more.
            seed: seed of the random generator, 0 or more.

        Raises:
            DataError: there are fewer examples than clients, or the options cannot be met by these data.
        """
        rows = len(annotations.labels)
        if clients > rows:
            raise self.impossible(f"at most {rows} clients, one for each example", f"{clients} clients")
        return self.draw(annotations, clients, seed)

    def default_clients(self, annotations: Annotations) -> int | None:
        """Return the number of clients that the partition itself has on these data; None: any number."""
        return None

    @abstractmethod
    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions of each client; arguments as in :meth:`divide`."""

    def impossible(self, allowed: str, got: str) -> DataError:
        """Return the error for data that cannot be divided as asked."""
        return DataError(f"partition {self}: needs {allowed}, got {got}.", key=KEY, allowed=allowed, got=got)


def as_text(value: float | bool) -> str:
    """Return an option as text that reads as the same value; whole numbers without a fraction."""
    whole = not isinstance(value, bool) and float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if whole else repr(value)
