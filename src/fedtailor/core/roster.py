"""The roster of a federation: who there is, without anybody's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedtailor.core.task import Task


@dataclass(frozen=True)
class Roster:
    """The clients of a federation, and all that a server may know of them before a run.

    Clients are numbered from 0. The last ``num_new`` of them are new: they never take part in
    training.
    """

    common_task: Task
    num_train: Sequence[int]
    """Number of training examples of every client."""
    num_new: int = 0
    names: Sequence[str] = ()
    """Name of every client; empty: clients have numbers only."""
    client_tasks: Sequence[Task] = ()
    """Task of every client where their models differ; empty: all have ``common_task``."""
    validates: bool = False
    """Whether any client has validation examples."""
    num_test: Sequence[int] = ()
    """Number of test examples of every client."""
    class_names: Sequence[str] = ()
    """Names of the classes; empty: classes have numbers only."""
    conditions: Sequence[str] = ()
    """What was done to every client's examples, such as ``clean`` or ``frost-3``; empty: nothing,
    for all clients."""

    @property
    def population(self) -> int:
        """Number of clients that can take part in training."""
        return len(self.num_train) - self.num_new

    @property
    def known(self) -> range:
        """Ids of the clients that can take part in training."""
        return range(self.population)

    @property
    def new(self) -> range:
        """Ids of the clients held out from training."""
        return range(self.population, len(self.num_train))

    @cached_property
    def trainable_clients(self) -> list[int]:
        """Ids of the known clients that have training examples."""
        return [client for client in self.known if self.num_train[client]]

    def task(self, client: int) -> Task:
        """Return the task of a client."""
        return self.client_tasks[client] if self.client_tasks else self.common_task
