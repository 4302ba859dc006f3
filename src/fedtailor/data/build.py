"""From options to the data of a run: divide, corrupt, and keep a record of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import ConfigError
from fedtailor.data.dataset import Dataset
from fedtailor.data.division import Division, divide
from fedtailor.data.folders import data_folder
from fedtailor.data.options import DataOptions
from fedtailor.data.shift import NEW_PAIRS, CifarS, Pair, apply_shift, pairs, parse_shift
from fedtailor.data.split import ClientRows, SplitRecord, split_digest, to_records

__all__ = ["DataOptions", "DividedData", "build", "split_record"]

CLEAN = "clean"
"""The condition of a client whose examples are as published."""


class DividedData(NamedTuple):
    """What a run uses: a data set with corrupted copies, and who has which of its examples for what."""

    division: Division
    dataset: Dataset
    """The division's data set, corrupted copies of examples behind the others."""
    rows: list[ClientRows]
    """Positions in ``dataset``."""
    num_new: int
    client_names: tuple[str, ...]
    conditions: tuple[str, ...]
    """What was done to each client's examples: ``clean``, or corruption and severity such as ``frost-3``."""
    notes: list[str]


def build(
    options: DataOptions,
    *,
    run_seed: int,
    dataset: Dataset | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DividedData:
    """Divide a data set among clients, and corrupt some clients' images if the options say so.

    Args:
        options: the ``[data]`` section.
        run_seed: the run's seed, used where ``options.seed`` is "run".
        dataset: in place of the one that ``options`` names.
        progress: called with the number of corrupted images that are made, and of all.

    Raises:
        ConfigError: options that do not fit the data.
        DataError: a file is missing or damaged, or the partition cannot be met.

    Example:
        >>> divided = build(DataOptions(partition="iid", clients=3), run_seed=0)
        >>> [len(rows.train) for rows in divided.rows]
        [479, 479, 479]
    """
    division = divide(options, run_seed=run_seed, dataset=dataset)
    shift = parse_shift(options.shift)
    if shift is None:
        notes, names = [*division.notes, *_other_conditions(division, ())], division.client_names
        return DividedData(division, division.dataset, division.rows, division.num_new, names, (), notes)
    clients, done = conditions_of(division, shift)
    rows = [division.rows[client] for client in clients]
    used = [np.concatenate(each) for each in rows]
    corrupted, copies = apply_shift(
        division.dataset,
        used,
        done,
        seed=division.seed,
        frost_folder=data_folder(options.dir) / "frost",
        progress=progress,
    )
    states = tuple(CLEAN if pair is None else str(pair) for pair in done)
    names = tuple(_name(division, client, state) for client, state in zip(clients, states, strict=True))
    notes = [*corrupted.notes, *division.notes[len(division.dataset.notes) :], *_other_conditions(division, states)]
    mapped = [_cut(copy, each) for copy, each in zip(copies, rows, strict=True)]
    num_new = len(rows) - (len(division.rows) - division.num_new)
    return DividedData(division, corrupted, mapped, num_new, names, states, notes)


def conditions_of(division: Division, shift: CifarS) -> tuple[list[int], list[Pair | None]]:
    """Return the clients of a run, and what is done to each one's examples; a new client comes once per condition.

    Raises:
        ConfigError: the shift is for more clients than there are, or for new ones where there are none.
    """
    if shift.new == "all" and not division.num_new:
        message = "cifar_s(new='all') needs new clients: data.new_clients must be > 0, got 0."
        raise ConfigError(message, key="data.new_clients", allowed="> 0", got=0)
    num_known = len(division.rows) - division.num_new
    clients = list(range(num_known))
    done = list(pairs(shift, num_known))
    conditions: tuple[Pair | None, ...] = (None, *NEW_PAIRS) if shift.new == "all" else (None,)
    for client in range(num_known, len(division.rows)):
        clients += [client] * len(conditions)
        done += conditions
    return clients, done


def _other_conditions(division: Division, states: tuple[str, ...]) -> list[str]:
    """Say that the examples of a split from a file were in other conditions there, if they were."""
    if division.conditions is None or division.conditions == states:
        return []
    return ["the clients' examples are in other conditions than the split file says: set data.shift as in its options."]


def split_record(division: Division, conditions: tuple[str, ...] = ()) -> SplitRecord:
    """Return the record of a split, ready for JSON; positions are those in the data set as published."""
    clients = to_records(division.rows)
    machine = ("dataset", "dir", "path", "split")
    shown = {name: value for name, value in dataclasses.asdict(division.options).items() if name not in machine}
    return SplitRecord(
        dataset=division.dataset.name,
        data_sha256=division.dataset.digest,
        split_sha256=split_digest(clients, division.num_new, list(conditions)),
        options={name: list(value) if isinstance(value, tuple) else value for name, value in shown.items()}
        | {"test": division.test, "clients": len(division.rows)},
        new_clients=division.num_new,
        client_names=list(division.client_names),
        conditions=list(conditions),
        clients=clients,
    )


def _name(division: Division, client: int, condition: str) -> str:
    """Return a client's name; a new client has one per condition."""
    name = division.client_names[client] if division.client_names else str(client)
    is_new = client >= len(division.rows) - division.num_new
    return f"{name}-{condition}" if is_new and condition != CLEAN else name


def _cut(positions: np.ndarray, like: ClientRows) -> ClientRows:
    """Cut positions into parts as long as those of ``like``."""
    first, second = len(like.train), len(like.train) + len(like.val)
    return ClientRows(positions[:first], positions[first:second], positions[second:])
