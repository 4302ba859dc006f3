"""The data of a run, made from its options: divided among clients, and perhaps corrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedtailor.core.options import wrong_value
from fedtailor.data.dataset import Dataset
from fedtailor.data.division import Division, divide
from fedtailor.data.files import Report, data_folder, to_nobody
from fedtailor.data.options import DataOptions
from fedtailor.data.split import (
    ClientPositions,
    SplitRecord,
    clients_of_run,
    split_digest,
    to_records,
)

if TYPE_CHECKING:
    from fedtailor.data.corruptions.shift import CifarS, Pair

__all__ = ["DataOptions", "DividedData", "build", "split_record"]

CLEAN = "clean"
"""The condition of a client whose examples are not corrupted."""

_LOCAL = ("dataset", "dir", "path", "split", "encoder")
"""Options that differ between machines, and are not in the record of a split."""


class DividedData(NamedTuple):
    """The data of a run: a data set with corrupted copies, and every client's examples in it."""

    division: Division
    dataset: Dataset
    """The division's data set with the features of tables, or followed by corrupted copies of
    images."""
    positions: list[ClientPositions]
    """Positions in ``dataset``."""
    num_new: int
    client_names: tuple[str, ...]
    conditions: tuple[str, ...]
    """The condition of each client's examples: ``clean``, or corruption and severity such as
    ``frost-3``."""
    notes: list[str]


def build(
    options: DataOptions,
    *,
    run_seed: int,
    dataset: Dataset | None = None,
    report: Report = to_nobody,
    late: Sequence[str] = (),
) -> DividedData:
    """Divide a data set among clients, then make features of cells, or corrupt images.

    Args:
        options: the ``[data]`` section.
        run_seed: the run's seed, used if ``options.seed`` is "run".
        dataset: replaces the data set that ``options`` names.
        report: is told how many images have been read or corrupted.
        late: names of the clients that join during the run, which come after the others.

    Raises:
        ConfigError: the options do not fit the data.
        DataError: a file is missing or damaged, or the partition is impossible on this data.

    Example:
        >>> divided = build(DataOptions(partition="iid", clients=3), run_seed=0)
        >>> [len(client.train) for client in divided.positions]
        [479, 479, 479]
    """
    division = divide(options, run_seed=run_seed, dataset=dataset, report=report, late=late)
    if options.shift.strip():
        return _corrupt(division, report)

    dataset, notes = _encode(division)
    return DividedData(
        division=division,
        dataset=dataset,
        positions=division.positions,
        num_new=division.num_new,
        client_names=division.client_names,
        conditions=(),
        notes=[*division.notes, *notes, *_other_conditions(division, ())],
    )


def _encode(division: Division) -> tuple[Dataset, list[str]]:
    """Return the data set with features in place of the cells of a table, and notes."""
    if division.dataset.raw is None:
        refuse_knots_without_columns(division.options.numbers)
        return division.dataset, []

    from fedtailor.data.encoding import encode_table

    fitted = division.positions[division.fitted]
    return encode_table(division.dataset, fitted, division.options)


def refuse_knots_without_columns(numbers: str) -> None:
    """Check that ``data.numbers`` is left alone where the data are not a table with columns.

    Raises:
        ConfigError: it is not.
    """
    if numbers != "standard":
        raise wrong_value("data.numbers", "'standard' for arrays and pictures", numbers)


def _corrupt(division: Division, report: Report) -> DividedData:
    """Return the data of a run with corrupted copies of the images of some clients."""
    from fedtailor.data.corruptions.shift import apply_shift, parse_shift

    shift = parse_shift(division.options.shift)
    clients, pairs = conditions_of(division, shift)
    positions = [division.positions[client] for client in clients]
    dataset, copies = apply_shift(
        division.dataset,
        [np.concatenate(client) for client in positions],
        pairs,
        seed=division.seed,
        frost_folder=data_folder(division.options.dir) / "frost",
        progress=partial(report, "corrupting images"),
    )

    # The copies of a client are in the order of its examples.
    corrupted = []
    for client, copied in zip(positions, copies, strict=True):
        ends = np.cumsum([len(client.train), len(client.val)])
        corrupted.append(ClientPositions(*np.split(copied, ends)))

    conditions = tuple(CLEAN if pair is None else str(pair) for pair in pairs)
    num_known = len(division.positions) - division.num_new

    # A new client appears once per condition, and each has its own name. Without variants, numbers
    # say enough: they are no sites to compare over seeds.
    names: list[str] = []
    if division.client_names or len(clients) > len(division.positions):
        record = {
            "clients": division.positions,
            "new_clients": division.num_new,
            "client_names": list(division.client_names),
            "conditions": conditions,
        }
        names = [name for _, name in clients_of_run(record)]

    return DividedData(
        division=division,
        dataset=dataset,
        positions=corrupted,
        num_new=len(positions) - num_known,
        client_names=tuple(names),
        conditions=conditions,
        notes=[
            *dataset.notes,
            *division.notes[len(division.dataset.notes) :],
            *_other_conditions(division, conditions),
        ],
    )


def conditions_of(division: Division, shift: CifarS) -> tuple[list[int], list[Pair | None]]:
    """Return the clients of a run and the corruption of each.

    A new client appears once per condition.

    Raises:
        ConfigError: the shift asks for more clients than there are, or for new clients without any.
    """
    from fedtailor.data.corruptions.shift import NEW_PAIRS, pairs

    if shift.new == "all" and not division.num_new:
        raise wrong_value("data.new_clients", "> 0 with cifar_s(new='all')", 0)

    # Clients in training come first, each once.
    num_known = len(division.positions) - division.num_new
    clients = list(range(num_known))
    corruptions = list(pairs(shift, num_known))
    variants: tuple[Pair | None, ...] = (None, *NEW_PAIRS) if shift.new == "all" else (None,)
    for client in range(num_known, len(division.positions)):
        clients += [client] * len(variants)
        corruptions += variants

    return clients, corruptions


def _other_conditions(division: Division, conditions: tuple[str, ...]) -> list[str]:
    """Return a note if a split file gives other conditions for the clients' examples."""
    if division.conditions is None or division.conditions == conditions:
        return []

    return ["the split file has other conditions of examples: set data.shift as in its options."]


def split_record(division: Division, conditions: tuple[str, ...] = ()) -> SplitRecord:
    """Return the record of a split; its positions are those in the published data set."""
    clients = to_records(division.positions)
    # What a reader of the record needs to divide the same data again.
    options: dict[str, Any] = {}
    for name, value in dataclasses.asdict(division.options).items():
        if name not in _LOCAL:
            options[name] = list(value) if isinstance(value, tuple) else value

    options["test"] = division.test
    options["clients"] = len(division.positions)
    return SplitRecord(
        dataset=division.dataset.name,
        data_sha256=division.dataset.digest,
        split_sha256=split_digest(clients, division.num_new, list(conditions)),
        options=options,
        new_clients=division.num_new,
        client_names=list(division.client_names),
        conditions=list(conditions),
        clients=clients,
    )
