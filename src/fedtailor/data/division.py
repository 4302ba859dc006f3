"""The division of a data set: partition, test policy, and the split of each client's examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from fedtailor.core.errors import ConfigError, DataError, find_name
from fedtailor.data import load_dataset
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.grouping import (
    Side,
    check_groups_together,
    count_units,
    divide_groups,
    split_by_groups,
)
from fedtailor.data.options import DataOptions, TestPolicy, refuse_too_many_new
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.domains import Natural
from fedtailor.data.partitions.text import parse_partition
from fedtailor.data.preparing import Report, to_nobody
from fedtailor.data.split import ClientRows

if TYPE_CHECKING:
    from fedtailor.data.split_files import LoadedSplit

_DEFAULT_CLIENTS = 20
_LEAST_PER_CLIENT = 20
"""Least number of examples, or groups, of a client on average, if the number of clients is not
given."""


class Division(NamedTuple):
    """A data set and the training, validation and test examples of every client."""

    dataset: Dataset
    """The data set as published, or as the user has it."""
    rows: list[ClientRows]
    num_new: int
    options: DataOptions
    """The options with the values that were used: number of clients, partition, test policy and
    seed."""
    client_names: tuple[str, ...]
    """Names of the sites or writers; empty: clients have numbers only."""
    notes: list[str]
    """Sentences for readers of results."""
    test: TestPolicy = "own"
    """How test examples were chosen."""
    conditions: tuple[str, ...] | None = None
    """The condition of each client's examples according to a split file; None: there is no file."""

    @property
    def shared_test(self) -> bool:
        """Whether test examples are official ones, which several clients may use."""
        return self.test not in ("own", "given")

    @property
    def seed(self) -> int:
        """The seed that was used."""
        return cast(int, self.options.seed)


def divide(
    options: DataOptions,
    *,
    run_seed: int,
    dataset: Dataset | None = None,
    report: Report = to_nobody,
) -> Division:
    """Divide a data set among clients, and each client's examples into training, validation and
    test.

    Args:
        options: the ``[data]`` section.
        run_seed: the run's seed, used if ``options.seed`` is "run".
        dataset: replaces the data set that ``options`` names.
        report: is told how many pictures have been read.

    Raises:
        ConfigError: the options do not fit the data.
        DataError: a file is missing or damaged, or the partition is impossible on this data.

    Example:
        >>> division = divide(DataOptions(partition="iid", clients=3), run_seed=0)
        >>> [len(rows.train) for rows in division.rows]
        [479, 479, 479]
    """
    if dataset is None:
        dataset = _load(options, report)

    seed = run_seed if options.seed == "run" else options.seed
    options = dataclasses.replace(options, seed=seed)
    division = (
        _from_file(dataset, options) if options.split else _by_partition(dataset, options, seed)
    )
    check_disjoint(division.rows, len(dataset.y), shared_test=division.shared_test)

    if dataset.groups is not None:
        check_groups_together(
            division.rows, dataset.groups, key="data.split" if options.split else "data.group"
        )

    return division


def _from_file(dataset: Dataset, options: DataOptions) -> Division:
    """Return the division that a split file describes."""
    from fedtailor.data.split_files import read_split_file

    loaded = read_split_file(Path(options.split), dataset)
    num_new = _new_clients_of(loaded, options)
    return Division(
        dataset=dataset,
        rows=loaded.rows,
        num_new=num_new,
        options=dataclasses.replace(options, new_clients=num_new),
        client_names=loaded.client_names,
        notes=[*_notes(dataset, loaded.rows), *loaded.notes],
        test=loaded.test,
        conditions=loaded.conditions,
    )


def _new_clients_of(loaded: LoadedSplit, options: DataOptions) -> int:
    """Return how many clients are new according to the file, or to the options if the file does not
    say.
    """
    if loaded.num_new and options.num_new not in (0, loaded.num_new):
        raise ConfigError(
            f"data.new_clients must be {loaded.num_new}, as in the split file, or left out, got {options.new_clients}.",
            key="data.new_clients",
            allowed=loaded.num_new,
            got=options.new_clients,
        )

    num_new = loaded.num_new or options.num_new
    refuse_too_many_new(num_new, len(loaded.rows))
    return num_new


def _load(options: DataOptions, report: Report) -> Dataset:
    """Load the data set of the options; their mean and standard deviation replace those of the data
    set.
    """
    if options.path:
        from fedtailor.data.own.read import load_own

        dataset = load_own(options.path, options, report)
    else:
        dataset = load_dataset(options.dataset, options.dir, report)

    if not options.mean and not options.std:
        return dataset

    normalize = Normalization(options.mean or (0.0,), options.std or (1.0,))
    changed = dataclasses.replace(dataset, normalize=normalize)
    vars(changed)["digest"] = dataset.digest  # of the same values: no need to compute it again
    return changed


def _by_partition(dataset: Dataset, options: DataOptions, seed: int) -> Division:
    """Return the division by the partition of the options."""
    default = "natural" if dataset.domains is not None else "dirichlet(alpha=0.5)"
    partition = parse_partition(options.partition or default)
    test = _test_policy(dataset, options, partition)
    pool = _pool(dataset, options, test, seed)
    annotations = dataset.annotations.take(pool)
    units = len(pool)
    if dataset.groups is not None:
        units = count_units(partition, annotations, dataset.groups[pool])

    fitting = max(min(_DEFAULT_CLIENTS, units // _LEAST_PER_CLIENT), 1)
    clients = options.clients or partition.default_clients(annotations) or fitting
    refuse_too_many_new(options.num_new, clients)
    if dataset.groups is None:
        divided = partition.divide(annotations, clients=clients, seed=seed)
    else:
        divided = divide_groups(
            partition, annotations, dataset.groups[pool], clients=clients, seed=seed
        )

    options = dataclasses.replace(options, clients=clients, partition=str(partition), test=test)
    rows = _split_clients(dataset, [pool[part] for part in divided], options, seed)
    if test not in ("own", "given"):
        rows = [each._replace(test=_official_test(dataset, each, test)) for each in rows]

    names: tuple[str, ...] = ()
    notes = _notes(dataset, rows)
    if isinstance(partition, Natural) and annotations.domains is not None:
        sites = np.unique(annotations.domains).tolist()
        names = tuple(dataset.domain_names[site] for site in sites[:clients])
        if clients < len(sites):
            unused = len(sites) - clients
            notes.append(f"{unused} of {len(sites)} sites are not used: data.clients is {clients}.")

    if isinstance(options.new_clients, tuple):
        order = _order_with_new_last(names, options.new_clients)
        rows = [rows[client] for client in order]
        names = tuple(names[client] for client in order)
    elif options.new_clients and names:
        notes.append(
            f"New clients, which never take part in training: {', '.join(names[-options.new_clients :])}."
        )

    return Division(
        dataset=dataset,
        rows=rows,
        num_new=options.num_new,
        options=options,
        client_names=names,
        notes=notes,
        test=test,
    )


def _order_with_new_last(names: tuple[str, ...], new: tuple[str, ...]) -> list[int]:
    """Return the order of clients in which those with the given names come last.

    Raises:
        ConfigError: the clients have no names, or one of the names is not among them.
    """
    if not names:
        message = (
            "data.new_clients must be a number: the clients have no names with this partition."
        )
        raise ConfigError(message, key="data.new_clients", allowed=">= 0", got=list(new))
    found = [find_name("client", name, names, key="data.new_clients") for name in new]
    known = [client for client, name in enumerate(names) if name not in found]
    return [*known, *(names.index(name) for name in found)]


def _split_clients(
    dataset: Dataset, parts: list[np.ndarray], options: DataOptions, seed: int
) -> list[ClientRows]:
    """Return the training, validation and test examples of every client; a group stays on one side
    at all clients.
    """
    generator = (
        np.random.RandomState(0) if options.subsampling == "release" else None
    )  # one stream for all clients
    if dataset.groups is None:
        return [
            split_client(part, options, seed, dataset.num_official_train, generator)
            for part in parts
        ]

    sides: dict[int, Side] = {}
    rows = []
    for part in parts:
        own = split_by_groups(
            part, dataset.groups, options, seed, sides, dataset.num_official_train, generator
        )
        rows.append(own)

    return rows


def _test_policy(dataset: Dataset, options: DataOptions, partition: Partition) -> TestPolicy:
    """Return the test policy, and check that the data set has what it needs."""
    divided = dataset.num_official_train < len(dataset.y)
    if options.test == "auto":
        comes_divided = divided and (bool(options.path) or isinstance(partition, Natural))
        return "given" if comes_divided else "own"

    if options.test != "own" and not divided:
        raise _unfit(dataset, "test", options.test, "an official test part")
    if options.test == "by_subclass" and dataset.subclasses is None:
        raise _unfit(dataset, "test", options.test, "subclasses")

    return options.test


def _pool(dataset: Dataset, options: DataOptions, test: TestPolicy, seed: int) -> np.ndarray:
    """Return the rows to be partitioned: all if clients test on examples of their own, else the
    official training part.

    With ``subset``, these are the same number of every class, the first in a random order
    (pFedVEM's |D|, Table 6).
    """
    pool = np.arange(len(dataset.y) if test in ("own", "given") else dataset.num_official_train)
    if not options.subset:
        return pool

    classes, counts = np.unique(dataset.y[pool], return_counts=True)
    each, rest = divmod(options.subset, len(classes))
    if rest or each > counts.min() or not each:
        allowed = f"a multiple of {len(classes)}, the number of classes, and at most {counts.min() * len(classes)}"
        raise ConfigError(
            f"data.subset must be {allowed}, got {options.subset}.",
            key="data.subset",
            allowed=allowed,
            got=options.subset,
        )

    order = np.random.RandomState(seed % 2**32).permutation(pool)
    return np.sort(np.concatenate([order[dataset.y[order] == label][:each] for label in classes]))


def split_client(
    positions: np.ndarray,
    options: DataOptions,
    seed: int,
    num_official_train: int = 0,
    generator: np.random.RandomState | None = None,
) -> ClientRows:
    """Split one client's positions (n,) as pFedFDA's release does.

    Training gets ``floor((1 - test_share) * n)``, shuffled and not stratified; every client's
    shuffle starts from the same seed. Of the shuffled training part the first ``floor(fraction *
    n_train)`` are kept (at least one, at most ``train_size``), so that a smaller fraction is a part
    of a larger one; the last ``floor(val_fraction * kept)`` of these are for validation. All
    products are computed in floating point, as in released code. If test examples are ``given``,
    they are those from ``num_official_train`` on; if they are official ones, the client has none
    here.

    Args:
        positions: the client's examples.
        options: the ``[data]`` section.
        seed: seed of the shuffle.
        num_official_train: number of examples in the official training part.
        generator: draws what is kept as the release does, and must have done so for the clients
            before this one; the release's validation examples are not used. None: the first ones
            are kept.
    """
    order = positions[np.random.RandomState(seed % 2**32).permutation(len(positions))]
    if options.test == "given":
        test = order[order >= num_official_train]
        train = order[order < num_official_train]
    elif options.test in ("auto", "own"):
        num_test = len(order) - math.floor((1 - options.test_share) * len(order))
        test = order[:num_test]
        train = order[num_test:]
    else:
        test = order[:0]
        train = order

    num_kept = options.num_kept(len(train))
    if generator is not None:
        train = train[generator.permutation(len(train))]
        generator.permutation(len(train) - num_kept)  # the release now draws validation examples

    kept = train[:num_kept]
    num_train = len(kept) - math.floor(options.val_fraction * len(kept))
    return ClientRows(kept[:num_train], kept[num_train:], test)


def _official_test(dataset: Dataset, rows: ClientRows, test: TestPolicy) -> np.ndarray:
    """Return the official test examples with a client's labels or subclasses in its domains, or all
    of them.
    """
    official = np.arange(dataset.num_official_train, len(dataset.y))
    if test == "complete":
        return official

    own = np.concatenate([rows.train, rows.val])
    column = cast(np.ndarray, dataset.subclasses if test == "by_subclass" else dataset.y)
    chosen = np.isin(column[official], column[own])
    if dataset.domains is not None:
        chosen &= np.isin(dataset.domains[official], dataset.domains[own])

    return official[chosen]


def check_disjoint(rows: Sequence[ClientRows], num_rows: int, *, shared_test: bool = False) -> None:
    """Check that no example is used twice, by one client or by two.

    Args:
        rows: the clients' examples.
        num_rows: number of examples in the data set.
        shared_test: whether clients may share test examples.

    Raises:
        DataError: an example is used twice; the message names the first.
    """
    trained = np.bincount(
        np.concatenate([part for each in rows for part in each[:2]]), minlength=num_rows
    )
    tested = np.bincount(np.concatenate([each.test for each in rows]), minlength=num_rows)
    used = trained + (np.minimum(tested, 1) if shared_test else tested)
    twice = np.flatnonzero(used > 1)

    if len(twice):
        raise DataError(
            f"training, validation and test examples must be disjoint over all clients, but example {twice[0]} "
            f"and {len(twice) - 1} others are used more than once.",
            key="data.partition",
            allowed="each example at most once",
            got=f"{len(twice)} examples more than once",
        )


def _unfit(dataset: Dataset, option: str, value: str, needed: str) -> ConfigError:
    return ConfigError(
        f"data.{option} = '{value}' needs {needed}, which data set '{dataset.name}' does not have.",
        key=f"data.{option}",
        got=value,
    )


def _notes(dataset: Dataset, rows: list[ClientRows]) -> list[str]:
    """Return notes on a subset of a known data set, and on clients without training or test
    examples.
    """
    notes = list(dataset.notes)
    if dataset.subset and dataset.official_size >= 0:
        size = f"{len(dataset.y)} examples, published with {dataset.official_size}"
        notes.append(f"data set '{dataset.name}' is a subset: {size}.")

    for part, what in (("train", "training"), ("test", "test")):
        empty = [str(client) for client, each in enumerate(rows) if len(getattr(each, part)) == 0]
        if empty:
            shown = ", ".join(empty[:10]) + (" and more" if len(empty) > 10 else "")
            notes.append(f"{len(empty)} of {len(rows)} clients have no {what} examples: {shown}.")

    return notes
