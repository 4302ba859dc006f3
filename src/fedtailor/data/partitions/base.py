"""The base class of all partitions: a value with checked options and a text form."""

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
    """Base class of all partitions; the fields are the options.

    ``str`` gives the text form, such as ``dirichlet(alpha=0.5, min_size=10)``, which
    :func:`fedtailor.data.partitions.text.parse_partition` reads.
    """

    name: ClassVar[str]
    hands_out_all: ClassVar[bool] = True
    """Whether every example goes to a client; otherwise some may be left over."""
    by_domain: ClassVar[bool] = False
    """Whether every client has examples of one domain only."""

    def __post_init__(self) -> None:
        check_options(self, owner=self.name)

    def __str__(self) -> str:
        names = [field.name for field in dataclasses.fields(self)]
        options = ", ".join(f"{name}={as_text(getattr(self, name))}" for name in names)
        return f"{self.name}({options})" if options else self.name

    def divide(self, annotations: Annotations, *, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions of each client's examples: disjoint, and not empty unless the
        partition allows it.

        Args:
            annotations: labels (rows,), subclasses and domains; only classes with examples count.
            clients: number of clients, 1 or more.
            seed: seed of the random generator, 0 or more.

        Raises:
            DataError: there are fewer examples than clients, or the options are impossible on this
                data.
        """
        rows = len(annotations.labels)
        if clients > rows:
            raise self.impossible(
                f"at most {rows} clients, one for each example", f"{clients} clients"
            )
        return self.draw(annotations, clients, seed)

    def default_clients(self, annotations: Annotations) -> int | None:
        """Return the number of clients that the partition defines on this data; None: any
        number.
        """
        return None

    @abstractmethod
    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions of each client; arguments as in :meth:`divide`."""

    def impossible(self, allowed: str, got: str) -> DataError:
        """Return the error for data that this partition cannot divide."""
        return DataError(
            f"partition {self}: needs {allowed}, got {got}.", key=KEY, allowed=allowed, got=got
        )


def as_text(value: float | bool) -> str:
    """Return an option as text that parses to the same value; whole numbers get no decimal
    point.
    """
    whole = not isinstance(value, bool) and float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if whole else repr(value)
