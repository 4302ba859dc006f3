"""Who has which examples for what: partition, test policy, and the split of each client's examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data import load_dataset
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.options import DataOptions, TestPolicy, refuse_too_many_new
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.domains import Natural
from fedtailor.data.partitions.text import parse_partition
from fedtailor.data.split import ClientRows
from fedtailor.data.split_files import LoadedSplit, read_split_file

_DEFAULT_CLIENTS = 20
_LEAST_PER_CLIENT = 20
"""Examples that a client has at least on average, where the number of clients is left open."""


class Division(NamedTuple):
    """A data set and who has which of its examples for what."""

    dataset: Dataset
    """As published, or as the user has it."""
    rows: list[ClientRows]
    num_new: int
    options: DataOptions
    """With the values that were used: number of clients, partition, test policy and seed."""
    client_names: tuple[str, ...]
    """Names of the sites or writers; empty: clients have numbers only."""
    notes: list[str]
    """Sentences on what a reader of results should know."""
    test: TestPolicy = "own"
    """How test examples were chosen."""
    conditions: tuple[str, ...] | None = None
    """What a split file says was done to each client's examples; None: there is no file."""

    @property
    def shared_test(self) -> bool:
        """Whether test examples are the official ones, which clients share."""
        return self.test not in ("own", "given")

    @property
    def seed(self) -> int:
        """The seed that was used."""
        return cast(int, self.options.seed)


def divide(options: DataOptions, *, run_seed: int, dataset: Dataset | None = None) -> Division:
    """Divide a data set among clients, and each client's examples into training, validation and test.

    Args:
        options: the ``[data]`` section.
        run_seed: the run's seed, used where ``options.seed`` is "run".
        dataset: in place of the one that ``options`` names.

    Raises:
        ConfigError: options that do not fit the data.
        DataError: a file is missing or damaged, or the partition cannot be met.

    Example:
        >>> division = divide(DataOptions(partition="iid", clients=3), run_seed=0)
        >>> [len(rows.train) for rows in division.rows]
        [479, 479, 479]
    """
    dataset = dataset if dataset is not None else _load(options)
    seed = run_seed if options.seed == "run" else options.seed
    options = dataclasses.replace(options, seed=seed)
    if options.split:
        loaded = read_split_file(Path(options.split), dataset)
        rows, names, notes = loaded.rows, loaded.client_names, loaded.notes
        num_new = _new_clients_of(loaded, options)
        test, conditions = loaded.test, loaded.conditions
        options = dataclasses.replace(options, new_clients=num_new)
    else:
        rows, names, options, notes = _by_partition(dataset, options, seed)
        test, conditions = cast(TestPolicy, options.test), None
    division = Division(
        dataset, rows, options.new_clients, options, names, [*_notes(dataset, rows), *notes], test, conditions
    )
    check_disjoint(rows, len(dataset.y), shared_test=division.shared_test)
    return division


def _new_clients_of(loaded: LoadedSplit, options: DataOptions) -> int:
    """Return how many clients are new: the file says it, or the options where it does not."""
    if loaded.num_new and options.new_clients not in (0, loaded.num_new):
        raise ConfigError(
            f"data.new_clients must be {loaded.num_new}, as in the split file, or left out, got {options.new_clients}.",
            key="data.new_clients",
            allowed=loaded.num_new,
            got=options.new_clients,
        )
    num_new = loaded.num_new or options.new_clients
    refuse_too_many_new(num_new, len(loaded.rows))
    return num_new


def _load(options: DataOptions) -> Dataset:
    """Load what the options name; mean and deviation given there replace those of the data set."""
    if options.path:
        from fedtailor.data.own.read import load_own

        dataset = load_own(options.path, options)
    else:
        dataset = load_dataset(options.dataset, options.dir)
    if not options.mean and not options.std:
        return dataset
    normalize = Normalization(options.mean or (0.0,), options.std or (1.0,))
    changed = dataclasses.replace(dataset, normalize=normalize)
    vars(changed)["digest"] = dataset.digest  # of the same values: not computed anew
    return changed


def _by_partition(
    dataset: Dataset, options: DataOptions, seed: int
) -> tuple[list[ClientRows], tuple[str, ...], DataOptions, list[str]]:
    """Return every client's rows, the clients' names, the options with the values that were used, and notes."""
    default = "natural" if dataset.domains is not None else "dirichlet(alpha=0.5)"
    partition = parse_partition(options.partition or default)
    test = _test_policy(dataset, options, partition)
    pool = _pool(dataset, options, test, seed)
    annotations = dataset.annotations.take(pool)
    everybody = partition.default_clients(annotations)
    clients = options.clients or everybody or max(min(_DEFAULT_CLIENTS, len(pool) // _LEAST_PER_CLIENT), 1)
    refuse_too_many_new(options.new_clients, clients)
    parts = [pool[part] for part in partition.divide(annotations, clients=clients, seed=seed)]
    options = dataclasses.replace(options, clients=clients, partition=str(partition), test=test)
    rows = [split_client(part, options, seed, dataset.num_official_train) for part in parts]
    if test not in ("own", "given"):
        rows = [each._replace(test=_official_test(dataset, each, test)) for each in rows]
    natural = annotations.domains if isinstance(partition, Natural) else None
    present: list[int] = [] if natural is None else np.unique(natural)[: len(rows)].tolist()
    names = tuple(dataset.domain_names[domain] for domain in present)
    unused = (everybody or 0) - clients if isinstance(partition, Natural) else 0
    notes = [f"{unused} of {everybody} sites are not used: data.clients is {clients}."] if unused else []
    return rows, names, options, notes


def _test_policy(dataset: Dataset, options: DataOptions, partition: Partition) -> TestPolicy:
    """Return the policy for ``auto``, and check that the data set has what another one needs."""
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
    """Return the rows to be partitioned: all where clients test on their own, else the official training part.

    With ``subset``, the same number of every class: the first in a random order (pFedVEM's |D|, Table 6).
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


def split_client(positions: np.ndarray, options: DataOptions, seed: int, num_official_train: int = 0) -> ClientRows:
    """Split one client's positions (n,) as pFedFDA's release does.

    Training gets ``floor((1 - test_share) * n)``, shuffled and not stratified; every client's shuffle starts
    from the same seed. Of the shuffled training part the first ``floor(fraction * n_train)`` are kept (one
    at least, ``train_size`` at most), so that a smaller fraction is a part of a larger one (the release draws them
    anew, with another seed); the last ``floor(val_fraction * kept)``
    of these are for validation. All products are taken in floating point, as released codes do. Where test examples
    are ``given``, they are those from ``num_official_train`` on; where they come from elsewhere, there are none.
    """
    order = positions[np.random.RandomState(seed % 2**32).permutation(len(positions))]
    if options.test == "given":
        test, train = order[order >= num_official_train], order[order < num_official_train]
    elif options.test in ("auto", "own"):
        num_test = len(order) - math.floor((1 - options.test_share) * len(order))
        test, train = order[:num_test], order[num_test:]
    else:
        test, train = order[:0], order
    kept = train[: max(math.floor(options.fraction * len(train)), min(1, len(train)))]
    kept = kept[: options.train_size or len(kept)]
    num_train = len(kept) - math.floor(options.val_fraction * len(kept))
    return ClientRows(kept[:num_train], kept[num_train:], test)


def _official_test(dataset: Dataset, rows: ClientRows, test: TestPolicy) -> np.ndarray:
    """Return the official test examples of a client's labels or subclasses, within its domains, or all of them."""
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
        num_rows: examples of the data set.
        shared_test: whether clients may share test examples.

    Raises:
        DataError: naming an example that is.
    """
    trained = np.bincount(np.concatenate([part for each in rows for part in each[:2]]), minlength=num_rows)
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
    """Say which clients have nothing to train or test on, and whether the data are all of a known set."""
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
