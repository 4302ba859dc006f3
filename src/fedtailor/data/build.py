"""From options to a federation: load, divide among clients, split, and make tensors."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.federation import Federation, Split
from fedtailor.core.task import Task
from fedtailor.data import load_dataset
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.partition import parse_partition
from fedtailor.data.split import ClientRows, SplitRecord, split_digest, to_records

__all__ = ["DataOptions", "DividedData", "build", "build_federation", "split_record", "to_federation"]


class DividedData(NamedTuple):
    """A data set and who has which of its examples for what."""

    dataset: Dataset
    rows: list[ClientRows]
    num_new: int
    seed: int
    """The seed that was used."""
    notes: list[str]
    """Sentences on what a reader of results should know."""


def build(options: DataOptions, *, run_seed: int, dataset: Dataset | None = None) -> DividedData:
    """Divide a data set among clients, and each client's examples into training, validation and test.

    Args:
        options: the ``[data]`` section.
        run_seed: the run's seed, used where ``options.seed`` is "run".
        dataset: in place of the one that ``options`` names.

    Raises:
        DataError: a file is missing or damaged, or the partition cannot be met.

    Example:
        >>> divided = build(DataOptions(partition="iid", clients=3), run_seed=0)
        >>> [len(rows.train) for rows in divided.rows]
        [479, 479, 479]
    """
    dataset = dataset if dataset is not None else load_dataset(options.dataset, options.dir)
    seed = run_seed if options.seed == "run" else options.seed
    parts = parse_partition(options.partition).divide(dataset.y, clients=options.clients, seed=seed)
    rows = [split_client(part, options, seed) for part in parts]
    check_disjoint(rows, len(dataset.y))
    return DividedData(dataset, rows, options.new_clients, seed, _notes(dataset, rows))


def split_client(positions: np.ndarray, options: DataOptions, seed: int) -> ClientRows:
    """Split one client's positions (n,) as pFedFDA's release does.

    Training gets ``floor((1 - test_share) * n)``, shuffled and not stratified; every client's shuffle starts
    from the same seed. Of the shuffled training part the first ``floor(fraction * n_train)`` are kept (one
    at least), so that a smaller fraction is a part of a larger one (the release draws them
    anew, with another seed); the last ``floor(val_fraction * kept)``
    of these are for validation. All products are taken in floating point, as released codes do.
    """
    order = positions[np.random.RandomState(seed % 2**32).permutation(len(positions))]
    num_test = len(order) - math.floor((1 - options.test_share) * len(order))
    test, train = order[:num_test], order[num_test:]
    kept = train[: max(math.floor(options.fraction * len(train)), min(1, len(train)))]
    num_train = len(kept) - math.floor(options.val_fraction * len(kept))
    return ClientRows(kept[:num_train], kept[num_train:], test)


def check_disjoint(rows: list[ClientRows], num_rows: int) -> None:
    """Check that no example is used twice, by one client or by two.

    Raises:
        DataError: naming an example that is.
    """
    used = np.concatenate([positions for each in rows for positions in each])
    twice = np.flatnonzero(np.bincount(used, minlength=num_rows) > 1)
    if len(twice):
        raise DataError(
            f"training, validation and test examples must be disjoint over all clients, but example {twice[0]} "
            f"and {len(twice) - 1} others are used more than once.",
            key="data.partition",
            allowed="each example at most once",
            got=f"{len(twice)} examples more than once",
        )


def split_record(divided: DividedData, options: DataOptions) -> SplitRecord:
    """Return the record of a split, ready for JSON."""
    clients = to_records(divided.rows)
    shown = {name: value for name, value in dataclasses.asdict(options).items() if name not in ("dataset", "dir")}
    return SplitRecord(
        dataset=divided.dataset.name,
        data_sha256=divided.dataset.digest,
        split_sha256=split_digest(clients, divided.num_new),
        options={**shown, "partition": str(parse_partition(options.partition)), "seed": divided.seed},
        new_clients=divided.num_new,
        clients=clients,
    )


def to_federation(divided: DividedData, task: Task) -> Federation:
    """Make tensors in torch's default dtype; images are normalized, and channels last in memory.

    Args:
        divided: the data.
        task: made by the caller for ``dataset.input_shape`` and ``dataset.num_classes``.

    Raises:
        ConfigError: the task is for examples of another shape, or for another number of classes.
    """
    dataset = divided.dataset
    wanted = f"examples of shape {dataset.input_shape} in {dataset.num_classes} classes, as data set '{dataset.name}'"
    if (tuple(task.input_shape), task.num_classes) != (dataset.input_shape, dataset.num_classes):
        got = f"{tuple(task.input_shape)} in {task.num_classes}"
        raise ConfigError(f"the task must be for {wanted}, got {got}.", key="model", allowed=wanted, got=got)
    return Federation(
        x=images(dataset),
        y=torch.tensor(dataset.y),
        splits=[Split(*(torch.tensor(positions) for positions in each)) for each in divided.rows],
        common_task=task,
        num_new=divided.num_new,
        class_names=dataset.class_names,
    )


def build_federation(options: DataOptions, task: Task, *, run_seed: int, dataset: Dataset | None = None) -> Federation:
    """Build the data and make tensors of them: :func:`build`, then :func:`to_federation`."""
    return to_federation(build(options, run_seed=run_seed, dataset=dataset), task)


def images(dataset: Dataset) -> Tensor:
    """Return the normalized images (rows, channels, height, width), channels last in memory."""
    flat = torch.tensor(dataset.x.ravel(), dtype=torch.get_default_dtype())  # numpy may give an axis of 1 stride 0
    mean, std = (torch.tensor(values, dtype=flat.dtype) for values in dataset.normalize)
    return flat.view(dataset.x.shape).div_(dataset.white).sub_(mean).div_(std).permute(0, 3, 1, 2)


def _notes(dataset: Dataset, rows: list[ClientRows]) -> list[str]:
    """Say which clients have nothing to train or test on, and whether the data are all of a known set."""
    notes = []
    if dataset.subset:
        size = f"{len(dataset.y)} examples, published with {dataset.official_size}"
        notes.append(f"data set '{dataset.name}' is a subset: {size}.")
    for part, what in (("train", "training"), ("test", "test")):
        empty = [str(client) for client, each in enumerate(rows) if len(getattr(each, part)) == 0]
        if empty:
            shown = ", ".join(empty[:10]) + (" and more" if len(empty) > 10 else "")
            notes.append(f"{len(empty)} of {len(rows)} clients have no {what} examples: {shown}.")
    return notes
