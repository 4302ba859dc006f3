"""The division of a data set: partition, test policy, and the split of each client's examples."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

import numpy as np

from fedtailor.core.errors import DataError, find_name
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import content_of
from fedtailor.data import load_dataset
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.files import Report, to_nobody
from fedtailor.data.options import DataOptions, TestPolicy, refuse_too_many_new
from fedtailor.data.partitions import parse_partition
from fedtailor.data.partitions.base import Partition, count_units, divide_groups
from fedtailor.data.split import ClientPositions, ClientRecord, read_split, refuse_split

_DEFAULT_CLIENTS = 20
_LEAST_PER_CLIENT = 20
"""Least examples, or groups, of a client on average, if the number of clients is not given."""

Side = Literal["train", "val", "test"]

SIDES: Mapping[Side, str] = {"train": "training", "val": "validation", "test": "test"}
"""The sides of a split, and what they are for."""


class Division(NamedTuple):
    """A data set and the training, validation and test examples of every client."""

    dataset: Dataset
    """The data set as published, or as the user has it."""
    positions: list[ClientPositions]
    num_new: int
    options: DataOptions
    """The options with the values that were used: number of clients, partition, test policy and
    seed."""
    client_names: tuple[str, ...]
    """Names of the sites or writers; empty: clients have numbers only."""
    notes: list[str]
    """Sentences about the division, which a result is shown with."""
    test: TestPolicy = "own"
    """How test examples were chosen."""
    conditions: tuple[str, ...] | None = None
    """The condition of each client's examples according to a split file; None: there is no file."""
    num_late: int = 0
    """How many clients join during the run: the last ones before the new ones."""

    @property
    def fitted(self) -> slice:
        """The clients whose training examples decide how examples become inputs."""
        return slice(0, len(self.positions) - self.num_new - self.num_late)

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
    late: Sequence[str] = (),
) -> Division:
    """Divide a data set among clients, and each client's examples into three sides.

    These are training, validation and test.

    Args:
        options: the ``[data]`` section.
        run_seed: the run's seed, used if ``options.seed`` is "run".
        dataset: replaces the data set that ``options`` names.
        report: is told how many pictures have been read.
        late: names of the clients that join during the run, which come after the others.

    Raises:
        ConfigError: the options do not fit the data.
        DataError: a file is missing or damaged, or the partition is impossible on this data.

    Example:
        >>> division = divide(DataOptions(partition="iid", clients=3), run_seed=0)
        >>> [len(client.train) for client in division.positions]
        [479, 479, 479]
    """
    if dataset is None:
        dataset = load_for(options, report)

    seed = run_seed if options.seed == "run" else options.seed
    options = dataclasses.replace(options, seed=seed)
    if options.split:
        division = _from_file(dataset, options)
    else:
        division = _by_partition(dataset, options, seed, late)

    division = division._replace(num_late=len(late))
    check_disjoint(division.positions, len(dataset.y), shared_test=division.shared_test)
    if dataset.groups is not None:
        key = "data.split" if options.split else "data.group"
        check_groups_together(division.positions, dataset.groups, key=key)

    return division


def load_for(options: DataOptions, report: Report) -> Dataset:
    """Load the data set of the options; their mean and deviation replace its own."""
    if options.path:
        from fedtailor.data.own.read import load_own

        dataset = load_own(options.path, options, report)
    else:
        dataset = load_dataset(options.dataset, options.dir, report)

    if options.mean:
        normalize = Normalization(options.mean, options.std)
        dataset = dataclasses.replace(dataset, normalize=normalize)

    return dataset


def _from_file(dataset: Dataset, options: DataOptions) -> Division:
    """Return the division that a split file describes."""
    path = Path(options.split)
    record = read_split(path)
    with content_of(path):
        if record["data_sha256"] != dataset.digest:
            allowed = f"a split of these data, read with the same options ({dataset.digest})"
            got = f"one of {record['dataset']!r:.80} ({record['data_sha256']!r:.80})"
            raise refuse_split(path, allowed, got)
        if record["options"].get("folds") and not record["options"].get("fold"):
            allowed = "the split of one fold, such as fold-1/split.json"
            got = "that of all folds, which leaves nothing for training"
            raise refuse_split(path, allowed, got)

        positions = _read_positions(path, record["clients"], len(dataset.y))

    # The digest holds neither names nor options, and not that what it holds makes sense.
    names = record["client_names"]
    conditions = record["conditions"]
    test = record["options"].get("test")
    num_new = record["new_clients"]
    policies = get_args(TestPolicy)
    are_texts = all(type(text) is str and text.strip() for text in [*names, *conditions])
    checks = [
        (0 <= num_new < len(positions), f"new_clients from 0 to {len(positions) - 1}", num_new),
        (test in policies, f"options.test to be one of {', '.join(policies)}", test),
        (are_texts, "texts that are not empty as client_names and conditions", "others"),
        (len(names) in (0, len(positions)), f"{len(positions)} client_names or none", len(names)),
    ]
    for is_right, allowed, value in checks:
        if not is_right:
            raise refuse_split(path, allowed, f"{value!r:.80}")

    if len(set(names)) < len(names):
        raise refuse_split(path, "different client_names", "the same one twice")

    # New clients are those of the file, or of the options if the file has none.
    if num_new and options.num_new not in (0, num_new):
        allowed = f"{num_new}, as in the split file, or left out"
        raise wrong_value("data.new_clients", allowed, options.new_clients)

    num_new = num_new or options.num_new
    refuse_too_many_new(num_new, len(positions))

    # Corrupted pictures follow from it: they are those of the run that has written the file.
    seed = record["options"].get("seed")
    if options.shift and type(seed) is int:
        options = dataclasses.replace(options, seed=seed)
    return Division(
        dataset=dataset,
        positions=positions,
        num_new=num_new,
        options=dataclasses.replace(options, new_clients=num_new),
        client_names=tuple(names),
        notes=_notes(dataset, positions),
        test=cast(TestPolicy, test),
        conditions=tuple(conditions),
    )


def _read_positions(
    path: Path, clients: list[ClientRecord], num_rows: int
) -> list[ClientPositions]:
    allowed = f"lists of whole numbers from 0 to {num_rows - 1} as positions"
    positions = []
    for client in clients:
        parts = [np.asarray(part) for part in (client["train"], client["val"], client["test"])]
        for part in parts:
            # NumPy gives an empty list the type float64.
            if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
                got = f"type {part.dtype} of shape {part.shape}"
                raise refuse_split(path, allowed, got)

            wrong = part[(part < 0) | (part >= num_rows)]
            if len(wrong):
                raise refuse_split(path, allowed, f"{wrong[0]}")

        positions.append(ClientPositions(*(part.astype(np.int64) for part in parts)))

    return positions


def _by_partition(
    dataset: Dataset, options: DataOptions, seed: int, late: Sequence[str]
) -> Division:
    """Return the division by the partition of the options."""
    default = "natural" if dataset.domains is not None else "dirichlet(alpha=0.5)"
    partition = parse_partition(options.partition or default)
    test = _test_policy(dataset, options, partition)
    pool = _pool(dataset, options, test, seed)
    annotations = dataset.annotations.take(pool)
    groups = None if dataset.groups is None else dataset.groups[pool]

    # What is divided: single examples, or groups of them.
    units = len(pool)
    divide_units = partition.divide
    if groups is not None:
        units = count_units(partition, annotations, groups)
        divide_units = partial(divide_groups, partition, groups=groups)

    # The number of clients: that of the options, of the partition, or one that suits the data.
    fitting = max(min(_DEFAULT_CLIENTS, units // _LEAST_PER_CLIENT), 1)
    clients = options.clients or partition.default_clients(annotations) or fitting
    refuse_too_many_new(options.num_new, clients)
    options = dataclasses.replace(options, clients=clients, partition=str(partition), test=test)

    # Who has which examples, and what they are for.
    parts = divide_units(annotations, clients=clients, seed=seed)
    splitter = ClientSplitter(
        options, seed, dataset.num_official_train, dataset.groups, labels=dataset.y
    )
    positions = [splitter.split(pool[part]) for part in parts]
    if test not in ("own", "given"):
        positions = [
            client._replace(test=_official_test(dataset, client, test)) for client in positions
        ]

    # Clients have names if they are sites.
    names: tuple[str, ...] = ()
    notes: list[str] = []
    if test != "own" and options.test_share != DataOptions.test_share:
        notes.append(f"data.test_share has no effect with data.test = '{test}'.")
    if partition.name == "natural":
        sites = np.unique(cast(np.ndarray, annotations.domains)).tolist()
        names = tuple(dataset.domain_names[site] for site in sites[:clients])
        unused = len(sites) - clients
        if unused:
            notes.append(f"{unused} of {len(sites)} sites are not used: data.clients is {clients}.")

    if options.folds:
        from fedtailor.data.folds import notes_on_folds

        notes += notes_on_folds(dataset.y, splitter.folds, names, dataset.class_names)

    # New clients come last: those that the options name, or the last ones.
    last = options.new_clients
    if isinstance(last, int) and names and late:
        others = tuple(name for name in names if name not in late)
        last = others[len(others) - last :]

    if isinstance(last, tuple):
        both = [name for name in last if name in late]
        if both:
            raise wrong_value("data.new_clients", "clients that do not join during the run", both)

        order = _order_with_last(names, late, last)
        positions = [positions[client] for client in order]
        names = tuple(names[client] for client in order)

    if isinstance(options.new_clients, int) and options.new_clients and names:
        new = ", ".join(names[-options.new_clients :])
        notes.append(f"New clients, which never take part in training: {new}.")

    # They call clients by the numbers that these have in the end.
    notes = [*_notes(dataset, positions), *notes]
    return Division(
        dataset=dataset,
        positions=positions,
        num_new=options.num_new,
        options=options,
        client_names=names,
        notes=notes,
        test=test,
    )


def _order_with_last(
    names: tuple[str, ...], late: Sequence[str], last: tuple[str, ...]
) -> list[int]:
    """Return the order of clients in which those who join come after others, and new ones last."""
    if not names:
        allowed = "a number with this partition, which gives clients no names"
        raise wrong_value("data.new_clients", allowed, last)

    for name in late:
        if late.count(name) > 1:
            allowed = "one join of a client, which can pause and resume"
            raise wrong_value("federation.history", allowed, name)

    places = []
    for key, group in (("federation.history", late), ("data.new_clients", last)):
        places += [names.index(find_name("client", name, names, key=key)) for name in group]

    return [*(client for client in range(len(names)) if client not in places), *places]


def _test_policy(dataset: Dataset, options: DataOptions, partition: Partition) -> TestPolicy:
    """Return the test policy, and check that the data set has what it needs."""
    # Own data with a test part, and data by writer, are used as they come.
    is_divided = dataset.num_official_train < len(dataset.y)
    if options.test == "auto":
        comes_divided = is_divided and (bool(options.path) or partition.name == "natural")
        if comes_divided and options.folds:
            hint = f"The clients of '{dataset.name}' come with test examples, which folds train on."
            raise wrong_value("data.folds", "0, or data.test = 'own'", options.folds, hint)

        return "given" if comes_divided else "own"

    absent = ""
    if options.test != "own" and not is_divided:
        absent = "an official test part"
    elif options.test == "by_subclass" and dataset.subclasses is None:
        absent = "subclasses"

    if absent:
        allowed = f"another one for data set '{dataset.name}', which lacks {absent}"
        raise wrong_value("data.test", allowed, options.test)

    return options.test


def _pool(dataset: Dataset, options: DataOptions, test: TestPolicy, seed: int) -> np.ndarray:
    """Return the positions to be partitioned.

    These are all if clients test on examples of their own, else the official training part. With
    ``subset``, they are the same number of every class, the first in a random order (pFedVEM's |D|,
    Table 6).
    """
    pool = np.arange(len(dataset.y) if test in ("own", "given") else dataset.num_official_train)
    if not options.subset:
        return pool

    # The same number of every class.
    labels, counts = np.unique(dataset.y[pool], return_counts=True)
    quota, rest = divmod(options.subset, len(labels))
    if rest or quota > counts.min() or not quota:
        most = counts.min() * len(labels)
        allowed = f"a multiple of {len(labels)}, the number of classes, and at most {most}"
        raise wrong_value("data.subset", allowed, options.subset)

    order = np.random.RandomState(seed % 2**32).permutation(pool)
    parts = [order[dataset.y[order] == label][:quota] for label in labels]
    return np.sort(np.concatenate(parts))


class ClientSplitter:
    """Splits one client after the other into training, validation and test, as pFedFDA's release.

    Training gets ``floor((1 - test_share) * n)`` of a client's n examples, shuffled and not
    stratified; every client's shuffle starts from the same seed. Of the shuffled training part the
    first ``floor(fraction * n_train)`` are kept (at least one, at most ``train_size``), so that a
    smaller fraction is a part of a larger one; the last ``floor(val_fraction * kept)`` of these are
    for validation. All products are computed in floating point, as in released code. If test
    examples are ``given``, they are those from ``num_official_train`` on; if they are official
    ones, the client has none here.

    With ``subsampling = "release"``, what is kept is drawn from one stream for all clients; the
    release's validation examples are not used.

    With groups, whole groups are shuffled, and a side gets the first ones that come closest to its
    share. A group stays on the side that it has at an earlier client, and a client with one group
    has it for training.

    With ``folds``, the test examples are those of one fold, and the rest is divided as above; a
    group stays in the fold that it has at an earlier client. For all folds at once, all examples
    are test examples, fold by fold.

    Args:
        options: the ``[data]`` section.
        seed: seed of the shuffle.
        num_official_train: number of examples in the official training part.
        groups: number of the group of every example of the data set.
        labels: class of every example of the data set; folds need it.
    """

    def __init__(
        self,
        options: DataOptions,
        seed: int,
        num_official_train: int = 0,
        groups: np.ndarray | None = None,
        *,
        labels: np.ndarray | None = None,
    ) -> None:
        self._options = options
        self._seed = seed % 2**32
        self._num_official_train = num_official_train
        self._groups = groups
        self._labels = labels
        self._sides: dict[int, Side] = {}
        self._fold_of_group: dict[int, int] = {}
        self.folds: list[list[np.ndarray]] = []
        """The examples of every fold, by client, as far as clients have been split."""
        self._release: np.random.RandomState | None = None
        if options.subsampling == "release":
            self._release = np.random.RandomState(0)

    def split(self, positions: np.ndarray) -> ClientPositions:
        """Split the positions (n,) of the next client."""
        # Test examples first: they do not depend on how many training examples are kept.
        order = self._shuffle(positions)
        is_test = np.zeros(len(order), dtype=bool)
        if self._options.folds:
            folds = self._divide_into_folds(order)
            if self._options.runs_all_folds:
                return ClientPositions(order[:0], order[:0], np.concatenate(folds))
            is_test = np.isin(order, folds[self._options.fold - 1])
        elif self._options.test == "given":
            is_test = order >= self._num_official_train
        elif self._options.test in ("auto", "own"):
            num_train = math.floor((1 - self._options.test_share) * len(order))
            is_test = self._choose(order, len(order) - num_train, "test")

        # The stream of the release has an order of its own for what is kept.
        train = order[~is_test]
        num_kept = self._options.num_kept(len(train))
        if self._release is not None:
            train = train[self._release.permutation(len(train))]
            self._release.permutation(len(train) - num_kept)  # its validation examples

        # Validation examples are the last of those that are kept.
        train = train[:num_kept]
        num_val = math.floor(self._options.val_fraction * len(train))
        is_val = self._choose(train[::-1], num_val, "val")[::-1]
        client = ClientPositions(train[~is_val], train[is_val], order[is_test])
        self._note_sides(client)
        return client

    def _divide_into_folds(self, order: np.ndarray) -> list[np.ndarray]:
        """Return the examples of every fold of the next client, given all of them in order."""
        from fedtailor.data.folds import assign_folds

        assert self._labels is not None, "folds need labels"
        groups = None if self._groups is None else self._groups[order]
        number = self._options.folds
        fold_of = assign_folds(self._labels[order], groups, folds=number, seed=self._seed)

        # A group at several clients is in the fold that it has at the first of them.
        if groups is not None:
            for group, fold in zip(groups.tolist(), fold_of.tolist(), strict=True):
                self._fold_of_group.setdefault(group, fold)
            fold_of = np.array([self._fold_of_group[group] for group in groups.tolist()], int)

        folds = [order[fold_of == fold] for fold in range(number)]
        self.folds.append(folds)
        return folds

    def _shuffle(self, positions: np.ndarray) -> np.ndarray:
        """Return a client's examples in random order, those of a group side by side."""
        generator = np.random.RandomState(self._seed)
        if self._groups is None:
            return positions[generator.permutation(len(positions))]

        # Groups in a random order; within a group the order of the data set.
        groups, group_numbers = np.unique(self._groups[positions], return_inverse=True)
        rank = np.empty_like(groups)
        rank[generator.permutation(len(groups))] = np.arange(len(groups))
        return positions[np.argsort(rank[group_numbers], kind="stable")]

    def _choose(self, order: np.ndarray, count: int, side: Side) -> np.ndarray:
        """Return which examples (n,) a side gets: the first ones, or the first groups."""
        if self._groups is None:
            return np.arange(len(order)) < count

        groups = self._groups[order]
        return np.isin(groups, _choose_groups(groups, count, self._sides, side))

    def _note_sides(self, client: ClientPositions) -> None:
        if self._groups is not None:
            for side in SIDES:
                for group in np.unique(self._groups[getattr(client, side)]).tolist():
                    self._sides.setdefault(group, side)


def _choose_groups(
    groups: np.ndarray, count: int, sides: Mapping[int, Side], side: Side
) -> list[int]:
    """Return the groups for a side: those that are on it, and the first free ones.

    They come closest to ``count`` examples, and at least one group is left for training.

    Args:
        groups: the group of every example (n,), in order.
        count: number of examples for the side.
        sides: the sides of groups that are not free.
        side: the side.
    """
    # Groups in the order of appearance.
    sizes = Counter(groups.tolist())
    fixed = [group for group in sizes if sides.get(group) == side]
    free = [group for group in sizes if group not in sides]
    # How many examples the side has with each number of free groups.
    ends = np.cumsum([sum(sizes[group] for group in fixed), *(sizes[group] for group in free)])
    number = int(np.argmin(np.abs(ends - count)))

    # Something must be left for training.
    if len(fixed) + number == len(sizes):
        number = max(number - 1, 0)
    return [*fixed, *free[:number]]


def _official_test(dataset: Dataset, positions: ClientPositions, test: TestPolicy) -> np.ndarray:
    """Return the official test examples of a client.

    These are all of them, or those with its labels or subclasses in its domains.
    """
    official = np.arange(dataset.num_official_train, len(dataset.y))
    if test == "complete":
        return official

    used = np.concatenate([positions.train, positions.val])
    column = cast(np.ndarray, dataset.subclasses if test == "by_subclass" else dataset.y)
    is_chosen = np.isin(column[official], column[used])
    if dataset.domains is not None:
        is_chosen &= np.isin(dataset.domains[official], dataset.domains[used])

    return official[is_chosen]


def check_disjoint(
    positions: Sequence[ClientPositions], num_rows: int, *, shared_test: bool = False
) -> None:
    """Check that no example is used twice, by one client or by two.

    Args:
        positions: the clients' examples.
        num_rows: number of examples in the data set.
        shared_test: whether clients may share test examples.

    Raises:
        DataError: an example is used twice; the message names the first.
    """
    # Official test examples count once, however many clients use them.
    training = np.concatenate([part for client in positions for part in (client.train, client.val)])
    test = np.concatenate([client.test for client in positions])
    if shared_test:
        test = np.unique(test)

    # A row that counts more than once is used twice.
    uses = np.bincount(np.concatenate([training, test]), minlength=num_rows)
    twice = np.flatnonzero(uses > 1)
    if len(twice):
        raise DataError(
            "training, validation and test examples must be disjoint over all clients, but "
            f"example {twice[0]} and {len(twice) - 1} others are used more than once.",
            key="data.partition",
            allowed="each example at most once",
            got=f"{len(twice)} examples more than once",
        )


def check_groups_together(
    positions: Sequence[ClientPositions], groups: np.ndarray, *, key: str
) -> None:
    """Check that the examples of a group are all on one side.

    Raises:
        DataError: a group is on two sides; the message counts them.
    """
    for one, other in combinations(SIDES, 2):
        first = np.concatenate([getattr(client, one) for client in positions])
        second = np.concatenate([getattr(client, other) for client in positions])
        both = np.intersect1d(groups[first], groups[second])
        if len(both):
            where = f"examples in {SIDES[one]} and in {SIDES[other]}"
            raise DataError(
                f"{len(both)} groups of data.group have {where}, but must stay on one side.",
                key=key,
                allowed="each group on one side",
                got=f"{len(both)} on two",
            )


def _notes(dataset: Dataset, positions: list[ClientPositions]) -> list[str]:
    """Return notes on a subset of a known data set, and on clients that lack examples."""
    notes = list(dataset.notes)
    if dataset.subset and dataset.official_size >= 0:
        size = f"{len(dataset.y)} examples, published with {dataset.official_size}"
        notes.append(f"data set '{dataset.name}' is a subset: {size}.")

    for part, what in (("train", "training"), ("test", "test")):
        empty = [
            str(number) for number, client in enumerate(positions) if not len(getattr(client, part))
        ]
        if empty:
            numbers = ", ".join(empty[:10]) + (" and more" if len(empty) > 10 else "")
            which = f"{len(empty)} of {len(positions)} clients"
            notes.append(f"{which} have no {what} examples: {numbers}.")

    return notes
