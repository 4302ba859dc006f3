"""A federation: its roster and its data, and the part of the data that a client's program sees.

Never the test set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, cast, overload

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.devices import to_host
from fedtailor.core.engine import ExamplePositions
from fedtailor.core.rng import Key, row_words
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
    test_groups: Sequence[int] = ()
    """Number of groups, such as patients, of the test examples of every client, 0 if not known;
    empty: each example is one."""
    class_names: Sequence[str] = ()
    """Names of the classes; empty: classes have numbers only."""
    conditions: Sequence[str] = ()
    """What was done to every client's examples, such as ``clean`` or ``frost-3``; empty: nothing,
    for all clients."""
    majority: Sequence[int] = ()
    """Most frequent class of every client's training examples, the first of equal ones; -1 without
    examples; empty: not known, as on the server of real sites."""
    class_holders: Sequence[int] = ()
    """How many of the known clients have training examples of every class; empty: not known."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers if they have none."""
        return tuple(self.class_names) or tuple(map(str, range(self.common_task.num_classes)))

    def name_of(self, client: int) -> str:
        """Return the name of a client, or its number if clients have none."""
        return self.names[client] if self.names else str(client)

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

    def independence(self, client: int) -> float:
        """Return how many independent examples a test example of a client is worth, at least.

        Examples of a group may all be alike.
        """
        if not self.test_groups or not self.test_groups[client]:
            return 1.0
        return self.test_groups[client] / self.num_test[client]


UNSCALED = torch.empty(3, 0)
"""The scale of a table whose values are used as they are. Its shape tells, so that no batch has to
check values."""
UNWEIGHTED = torch.empty(0)
"""The class weights of examples whose classes all count the same. Its shape tells."""


class ExampleSet(NamedTuple):
    """A client's table of n examples: row k is the example at ``positions[k]`` of a data set.

    Building blocks gather the examples, algorithms do not.

    The data set holds examples of this client, or of several; or it is made from such examples
    (cached features). Rows of weight 0 do not count: they are padding, or were left out by
    sampling. Images and 8-bit values stay as stored: a gathered value becomes ``(value / scale[0] -
    scale[1]) / scale[2]``. Others are used as they are.
    """

    x: Tensor  # (size of the data set, *input_shape)
    y: Tensor  # (size of the data set,)
    positions: Tensor  # (n,)
    weight: Tensor  # (n,)
    scale: Tensor = UNSCALED  # (3, channels or 1): white, mean, deviation; (3, 0): none
    class_weight: Tensor = UNWEIGHTED  # (classes,), factors of the cross-entropy; (0,): none

    def labels(self) -> Tensor:
        """Return the labels (n,)."""
        return self.y[self.positions]

    def size(self) -> Tensor:
        """Return the number of examples that count, ()."""
        return (self.weight > 0).sum()

    def keep(self, count: Tensor, key: Key) -> ExampleSet:
        """Keep ``count`` examples drawn without replacement; the others get weight 0."""
        # The examples with the lowest words are kept; absent ones come after all others.
        absent = self.weight <= 0
        words = row_words(key, self.weight).masked_fill(absent, torch.iinfo(torch.int64).max)
        rank = torch.argsort(torch.argsort(words, stable=True), stable=True)
        return self._replace(weight=torch.where(rank < count, self.weight, 0.0))

    def sample(self, fraction: float, key: Key) -> ExampleSet:
        """Keep a fraction of the examples, rounded down."""
        return self.keep(torch.floor(fraction * self.size()), key)


class ClientInfo(NamedTuple):
    """What a client knows of its own training data before any training."""

    num_train: Tensor  # ()
    class_counts: Tensor  # (classes,)


class ClientData(NamedTuple):
    """The data of one client within reach of an algorithm."""

    train: ExampleSet
    val: ExampleSet
    info: ClientInfo


class Cohort(NamedTuple):
    """The clients of a round, and where the round stands in the run."""

    ids: Tensor  # (cohort,), on the host
    population: int
    round: int
    rounds: int
    rounds_trained: float = 0.0
    """Rounds that a client with training examples has trained so far, on average."""

    @property
    def new(self) -> bool:
        """Whether these are clients that never take part in training."""
        return bool((self.ids >= self.population).any())


class Split(NamedTuple):
    """Positions of one client's examples in the dataset."""

    train: Tensor  # (n,)
    val: Tensor
    test: Tensor


class Splits(Sequence[Split]):
    """The splits of all clients in three tensors, not in 300,000 small ones."""

    def __init__(self, splits: Iterable[Sequence[np.ndarray | Tensor]]) -> None:
        """Join the splits, each of three arrays or tensors on the host."""
        nothing = np.empty(0, dtype=np.int64)
        columns = list(zip(*splits, strict=True)) or [()] * len(Split._fields)
        self._positions = [torch.from_numpy(np.concatenate([nothing, *part])) for part in columns]
        self._ends = [np.cumsum([0, *map(len, part)]) for part in columns]

    @overload
    def __getitem__(self, client: int) -> Split: ...
    @overload
    def __getitem__(self, client: slice) -> list[Split]: ...
    def __getitem__(self, client: int | slice) -> Split | list[Split]:
        if isinstance(client, slice):
            return [self[number] for number in range(len(self))[client]]

        # Counts from the end, and raises IndexError, as lists do.
        client = range(len(self))[client]
        parts = zip(self._positions, self._ends, strict=True)
        return Split(*(positions[ends[client] : ends[client + 1]] for positions, ends in parts))

    def __len__(self) -> int:
        return len(self._ends[0]) - 1

    def on(self, device: torch.device) -> Splits:
        """Return the same splits with the positions on a device."""
        result = copy(self)
        result._positions = [positions.to(device) for positions in self._positions]
        return result

    def num_train(self) -> list[int]:
        """Return the number of training examples of every client."""
        counts: list[int] = np.diff(self._ends[0]).tolist()
        return counts

    def num_test(self) -> list[int]:
        """Return the number of test examples of every client."""
        counts: list[int] = np.diff(self._ends[2]).tolist()
        return counts

    def majority(self, y: Tensor) -> list[int]:
        """Return the most frequent class of every client's training examples.

        The first of equal ones; -1 without examples.

        Args:
            y: the class of every example of the data set.
        """
        owners, labels, counts = self._labels_by_client(y)

        # The last one written stays: the largest count, of equal ones the first class.
        ascending = np.lexsort((-labels, -owners, counts))
        majority = np.full(len(self._ends[0]) - 1, -1)
        majority[owners[ascending]] = labels[ascending]
        return majority.tolist()

    def class_holders(self, y: Tensor, num_classes: int, population: int) -> list[int]:
        """Return how many of the first clients have training examples of every class.

        Args:
            y: the class of every example of the data set.
            num_classes: how many classes there are.
            population: how many clients count.
        """
        owners, labels, _ = self._labels_by_client(y)
        holders: list[int] = np.bincount(
            labels[owners < population], minlength=num_classes
        ).tolist()
        return holders

    def _labels_by_client(self, y: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return client, class and count of the training examples, for all that occur."""
        labels = to_host(y[self._positions[0]], "the classes of clients").numpy()
        sizes = np.diff(self._ends[0])
        owners = np.repeat(np.arange(len(sizes)), sizes)

        # Client and class as one number: what occurs, and how often.
        num_classes = int(labels.max(initial=0)) + 1
        pairs, counts = np.unique(owners * num_classes + labels, return_counts=True)
        return pairs // num_classes, pairs % num_classes, counts

    @property
    def has_validation(self) -> bool:
        """Whether any client has validation examples."""
        return len(self._positions[1]) > 0


@dataclass(frozen=True)
class Federation:
    """A data set divided among clients: the roster, and the data.

    ``x`` holds the examples. They are images as stored, (n, channels, height, width) in
    channels-last memory, which ``scale`` normalizes when they are used, or tables of floats. ``y``
    holds the labels. ``splits[i]`` are the positions of client i. The last ``num_new`` clients
    never take part in training.
    """

    x: Tensor
    y: Tensor
    splits: Sequence[Split]
    common_task: Task
    num_new: int = 0
    class_names: Sequence[str] = field(default_factory=tuple)
    client_names: Sequence[str] = field(default_factory=tuple)
    conditions: Sequence[str] = field(default_factory=tuple)
    """What was done to each client's examples, such as ``clean`` or ``frost-3``; empty: nothing,
    for all clients."""
    scale: Tensor = field(default_factory=lambda: UNSCALED)
    client_tasks: Sequence[Task] = field(default_factory=tuple)
    """Task of every client where their models differ; empty: all have ``common_task``."""
    test_groups: Sequence[int] = field(default_factory=tuple)
    """See :attr:`Roster.test_groups`."""
    complete: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """Positions of the official test part if it belongs to no client: global models are scored on
    it too."""

    def __post_init__(self) -> None:
        if not isinstance(self.splits, Splits):
            object.__setattr__(self, "splits", Splits(self.splits))

    @cached_property
    def roster(self) -> Roster:
        """Who there is, without the data."""
        splits = cast(Splits, self.splits)
        return Roster(
            common_task=self.common_task,
            num_train=splits.num_train(),
            num_new=self.num_new,
            names=self.client_names,
            client_tasks=self.client_tasks,
            validates=splits.has_validation,
            num_test=splits.num_test(),
            test_groups=self.test_groups,
            class_names=self.class_names,
            conditions=self.conditions,
            majority=splits.majority(self.y),
            class_holders=splits.class_holders(
                self.y, self.common_task.num_classes, len(splits) - self.num_new
            ),
        )

    def on(self, device: torch.device) -> Federation:
        """Return the same federation with its data on a device; values of 8 bits stay such.

        On the CPU it is itself.
        """
        if self.x.device == device:
            return self

        return replace(
            self,
            x=self.x.to(device),
            y=self.y.to(device),
            scale=self.scale.to(device),
            splits=cast(Splits, self.splits).on(device),
            complete=self.complete.to(device),
        )

    def examples(self, positions: Tensor) -> ExampleSet:
        """Return the examples at the given positions, each with weight 1."""
        return ExampleSet(self.x, self.y, *ExamplePositions.of(positions), self.scale)

    def info(self, client: int) -> ClientInfo:
        """Return the counts of a client's training data."""
        labels = self.y[self.splits[client].train]
        counts = torch.bincount(labels, minlength=self.common_task.num_classes)
        return ClientInfo(torch.tensor(float(len(labels))), counts.to(torch.get_default_dtype()))

    def data(self, client: int) -> ClientData:
        """Return what an algorithm may see of a client's data."""
        split = self.splits[client]
        return ClientData(self.examples(split.train), self.examples(split.val), self.info(client))

    def test(self, client: int) -> ExampleSet:
        """Return a client's test examples; engines evaluate on them, algorithms never see them."""
        return self.examples(self.splits[client].test)
