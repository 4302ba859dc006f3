"""The base class of all partitions, and how they group examples and hand them out."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.options import check_options
from fedtailor.data.dataset import Annotations


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Base class of all partitions; the fields are the options.

    ``str`` gives the text form, such as ``dirichlet(alpha=0.5, min_size=10)``, which
    :func:`fedtailor.data.partitions.parse_partition` reads.
    """

    name: ClassVar[str]
    by_domain: ClassVar[bool] = False
    """Whether every client has examples of one domain only."""

    def __post_init__(self) -> None:
        check_options(self, owner=self.name)

    def __str__(self) -> str:
        options = []
        for field in dataclasses.fields(self):
            options.append(f"{field.name}={as_text(getattr(self, field.name))}")

        return f"{self.name}({', '.join(options)})" if options else self.name

    def divide(self, annotations: Annotations, *, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions of each client's examples: disjoint, and seldom empty.

        A client may be without examples only if the partition allows it.

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
        """Return the number of clients that the partition defines on this data; None: any."""
        return None

    @abstractmethod
    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions of each client; arguments as in :meth:`divide`."""

    def check_sizes(
        self, pools: Sequence[np.ndarray], blocks: Sequence[int], names: Sequence[str]
    ) -> None:
        """Refuse a pool of examples, such as a class, with fewer of them than clients hold it."""
        for pool, needed, name in zip(pools, blocks, names, strict=True):
            if len(pool) < needed:
                allowed = f"at least {needed} examples of {name}, one for each client that holds it"
                raise self.impossible(allowed, str(len(pool)))

    def impossible(self, allowed: str, got: str) -> DataError:
        """Return the error for data that this partition cannot divide."""
        message = f"partition {self}: needs {allowed}, got {got}."
        return DataError(message, key="data.partition", allowed=allowed, got=got)


def as_text(value: float | bool) -> str:
    """Return an option as text that parses to the same value; whole numbers have no point."""
    is_whole = not isinstance(value, bool) and float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if is_whole else repr(value)


def positions_by_value(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the values (rows,) that occur, sorted, and the ascending positions of each."""
    order = np.argsort(values, kind="stable")
    present, starts = np.unique(values[order], return_index=True)
    return present, np.split(order, starts[1:])


def hand_out(
    pools: list[np.ndarray], classes: np.ndarray, owners: np.ndarray, clients: int
) -> list[np.ndarray]:
    """Give owner ``owners[i]`` the next unused position of the pool ``classes[i]``, for every i.

    Args:
        pools: positions of each class, in the order in which they are used.
        classes: (n,), index of the pool of each example that is handed out.
        owners: (n,), the client that gets it.
        clients: number of clients.
    """
    # Sorted by class, the examples come from the fronts of the pools.
    counts = np.bincount(classes, minlength=len(pools))
    used = [pool[:count] for pool, count in zip(pools, counts, strict=True)]
    positions = np.empty(len(classes), dtype=np.int64)
    positions[np.argsort(classes, kind="stable")] = np.concatenate(used)

    # Sorted by owner, they are the clients' parts.
    sizes = np.bincount(owners, minlength=clients)
    return np.split(positions[np.argsort(owners, kind="stable")], np.cumsum(sizes)[:-1])


def count_units(partition: Partition, annotations: Annotations, groups: np.ndarray) -> int:
    """Return how many groups a partition divides, see :func:`divide_groups`."""
    return len(np.unique(_units(partition, annotations, groups)))


def divide_groups(
    partition: Partition, annotations: Annotations, groups: np.ndarray, *, clients: int, seed: int
) -> list[np.ndarray]:
    """Return the positions of each client's examples, so that each group is at one client.

    The partition divides groups as if each were one example with the group's most frequent label.
    If it divides by domain, the examples of a group in different domains are different groups.

    Args:
        partition: the partition.
        annotations: labels, subclasses and domains of the examples.
        groups: number of each example's group (rows,).
        clients: number of clients.
        seed: seed of the partition.

    Raises:
        DataError: there are fewer groups than clients, or the partition is impossible on this data.
    """
    units = _units(partition, annotations, groups)
    typical = annotations.take(_typical_examples(units, annotations.labels))
    try:
        parts = partition.divide(typical, clients=clients, seed=seed)
    except DataError as error:
        message = f"{error.message} A group (data.group) counts as one example."
        raise DataError(message, key=error.key, allowed=error.allowed, got=error.got) from error

    # The positions of every unit, in ascending order.
    _, members = positions_by_value(units)
    return [np.concatenate([members[unit] for unit in part]) for part in parts]


def _units(partition: Partition, annotations: Annotations, groups: np.ndarray) -> np.ndarray:
    """Return the number of what is divided (rows,), from 0: groups, or groups within a domain."""
    keys = groups[None]
    if partition.by_domain and annotations.domains is not None:
        keys = np.stack([groups, annotations.domains])
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)


def _typical_examples(units: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for every unit (units,) the first example of its most frequent label.

    If several are, it is the smallest of them.
    """
    pairs, first, counts = np.unique(
        np.stack([units, labels]), axis=1, return_index=True, return_counts=True
    )
    # By unit, most frequent label first, then smallest label.
    order = np.lexsort((pairs[1], -counts, pairs[0]))
    is_first = np.diff(pairs[0][order], prepend=-1) > 0
    typical: np.ndarray = first[order][is_first]
    return typical
