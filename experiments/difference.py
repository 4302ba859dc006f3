"""The difference between two methods, client by client, from their records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.cells import Cell
from experiments.records import Record, records_of
from fedtailor.core.errors import DataError

Interval = tuple[float, float]
"""A 95 % interval."""


@dataclass(frozen=True)
class Difference:
    """The accuracy of one method minus that of another, as fractions."""

    by_seed: dict[int, float]
    over_clients: Interval | None
    """For other clients, the trained models as they are; None if the seeds have different splits,
    or for one client."""
    over_seeds: Interval | None
    """For other seeds, the clients as they are; None for one seed."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return math.fsum(self.by_seed.values()) / len(self.by_seed)


def difference(first: Cell, second: Cell, records: Sequence[Record]) -> Difference:
    """Compare two methods on one column, over all seeds that have a record of both.

    The difference of a seed is the mean over its clients, weighted by their test examples if the
    paper's number is ``pooled``. Intervals are t intervals: over clients, of each client's mean
    difference over the seeds; over seeds, of the differences of the seeds.

    Raises:
        DataError: no seed has a record of both, or the records are of other clients.
    """
    ours = {int(record["seed"]): record for record in records_of(first, records)}
    others = {int(record["seed"]): record for record in records_of(second, records)}
    seeds = sorted(ours.keys() & others.keys())
    if not seeds:
        methods = f"{first.method} and {second.method}"
        raise DataError(f"no seed has a record of both {methods} on {first.column}.", key="column")

    gaps = {seed: _gaps_by_client(first, second, ours[seed], others[seed]) for seed in seeds}
    shares = {seed: _shares(first, ours[seed]) for seed in seeds}
    by_seed = {seed: _weighted_mean(gaps[seed].values(), shares[seed]) for seed in seeds}
    over_seeds = _t_interval(list(by_seed.values()), [1 / len(seeds)] * len(seeds))

    # Clients have a mean over the seeds only if all seeds have the same split, and score the same.
    clients = gaps[seeds[0]].keys()
    over_clients = None
    splits = {ours[seed]["provenance"]["split_sha256"] for seed in seeds}
    if len(splits) == 1 and all(gaps[seed].keys() == clients for seed in seeds):
        means = [math.fsum(gaps[seed][client] for seed in seeds) / len(seeds) for client in clients]
        over_clients = _t_interval(means, shares[seeds[0]])

    return Difference(by_seed, over_clients, over_seeds)


def _gaps_by_client(first: Cell, second: Cell, ours: Record, other: Record) -> dict[int, float]:
    """Return the difference in accuracy of each client that has a score."""
    ours_correct = _correct_by_client(first, ours)
    other_correct = _correct_by_client(second, other)
    has_same_split = ours["provenance"]["split_sha256"] == other["provenance"]["split_sha256"]
    if not has_same_split or ours_correct.keys() != other_correct.keys():
        raise DataError(
            f"seed {ours['seed']} has other clients in the records of {first.method} and "
            f"{second.method} on {first.column}.",
            key="column",
        )

    num_test = ours["by_client"]["num_test"]
    return {
        client: (right - other_correct[client]) / num_test[client]
        for client, right in ours_correct.items()
    }


def _correct_by_client(cell: Cell, record: Record) -> dict[int, int]:
    """Return the correct predictions of each client that has a score, at the cell's first score."""
    if "by_client" not in record:
        raise DataError(
            f"the record of {cell} has no scores of single clients, as the oldest records. Remove "
            "its line, and run the cell again.",
            key="column",
        )

    # The records have the clients of a run as they are, and no tenth or condition of them.
    score = cell.printed[0].score
    if score.figure not in ("mean", "pooled") or score.clients != "known" or score.condition:
        raise DataError(
            f"{cell} has no mean over all clients: '{score.label}' is printed, which is of others.",
            key="column",
            allowed="a mean over known clients",
            got=score.label,
        )

    point = score.point
    correct = record["by_client"]["correct"].get(point)
    if correct is None:
        raise DataError(
            f"{cell} is scored at '{point}', where no test examples belong to a client.",
            key="method",
        )

    return {client: right for client, right in enumerate(correct) if right is not None}


def _shares(cell: Cell, record: Record) -> list[float]:
    """Return the share of each scored client in the mean."""
    clients = _correct_by_client(cell, record)
    if cell.printed[0].score.figure != "pooled":
        return [1 / len(clients)] * len(clients)

    sizes = [record["by_client"]["num_test"][client] for client in clients]
    return [size / sum(sizes) for size in sizes]


def _weighted_mean(values: Iterable[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True))


def _t_interval(values: Sequence[float], weights: Sequence[float]) -> Interval | None:
    """Return the t interval of a weighted mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None

    from scipy.stats import t

    center = _weighted_mean(values, weights)
    squares = [
        weight**2 * (value - center) ** 2 for value, weight in zip(values, weights, strict=True)
    ]
    error = math.sqrt(math.fsum(squares) * len(values) / (len(values) - 1))
    half_width = float(t.ppf(0.975, len(values) - 1)) * error
    return center - half_width, center + half_width
