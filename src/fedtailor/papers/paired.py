"""The difference between two methods, client by client, from their records. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedtailor.core.errors import DataError
from fedtailor.papers.records import Record, records_of
from fedtailor.papers.tables import Cell, Reading


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """The accuracy of one method minus that of another, as a fraction."""

    value: float
    """Mean over the seeds."""
    by_seed: dict[int, float]
    num_clients: int
    figure: str
    """``pooled`` if clients count by their numbers of test examples, else ``mean``."""
    over_clients: Interval | None
    """For other clients, the trained models as they are; None if the seeds have different splits,
    or for one client."""
    over_seeds: Interval | None
    """For other seeds, the clients as they are; None for one seed."""


class _Gaps(NamedTuple):
    """The differences of the clients in one seed."""

    values: list[float]
    weights: list[float]
    """Share of each client in the mean."""
    split: str


def difference(first: Cell, second: Cell, records: Sequence[Record]) -> Difference:
    """Compare two methods client by client, each at its first score, over all seeds that have a
    record of both.

    The difference of a seed is the mean over its clients, weighted by their test examples if the
    first score is ``pooled``. Intervals are t intervals: over clients, of each client's mean
    difference over the seeds; over seeds, of the differences of the seeds.

    Args:
        first: a cell.
        second: the cell of another method on the same column.
        records: those of the paper.

    Raises:
        DataError: no seed has a record of both, or the records lack the scores of single clients or
            differ in split.
    """
    own = {int(record["seed"]): record for record in records_of(first, records)}
    others = {int(record["seed"]): record for record in records_of(second, records)}
    seeds = sorted(own.keys() & others.keys())
    if not seeds:
        methods = f"{first.method} and {second.method}"
        raise DataError(f"no seed has a record of both {methods} on {first.column}.", key="results")

    gaps = {seed: _gaps(first, second, own[seed], others[seed]) for seed in seeds}
    by_seed = {seed: _weighted_mean(each.values, each.weights) for seed, each in gaps.items()}
    over_clients = None
    if len({each.split for each in gaps.values()}) == 1:
        client_means = [
            _mean(column) for column in zip(*(each.values for each in gaps.values()), strict=True)
        ]
        over_clients = _interval(client_means, gaps[seeds[0]].weights)

    return Difference(
        value=_mean(list(by_seed.values())),
        by_seed=by_seed,
        num_clients=len(gaps[seeds[0]].values),
        figure=_figure(first),
        over_clients=over_clients,
        over_seeds=_interval(list(by_seed.values()), [1 / len(seeds)] * len(seeds)),
    )


def _gaps(first: Cell, second: Cell, own: Record, other: Record) -> _Gaps:
    """Return the differences of the clients between two records of one seed."""
    split = str(own["provenance"]["split_sha256"])
    ours = _correct(first, own)
    theirs = _correct(second, other)
    scored = _scored(ours)
    if other["provenance"]["split_sha256"] != split or _scored(theirs) != scored:
        raise DataError(
            f"{first.method} and {second.method} on {first.column}, seed {own['seed']}: the records are of other "
            "clients, or of other examples, so they cannot be compared client by client.",
            key="results",
        )

    sizes = [own["by_client"]["num_test"][client] for client in scored]
    values = [
        (ours[client] - theirs[client]) / size for client, size in zip(scored, sizes, strict=True)
    ]
    if _figure(first) == "mean":
        sizes = [1] * len(scored)

    return _Gaps(values, [size / sum(sizes) for size in sizes], split)


def _correct(cell: Cell, record: Record) -> list[Any]:
    """Return each client's correct predictions at the point of a cell's first score; None for one
    without a score.
    """
    point = _first_reading(cell).score.point
    correct = record.get("by_client", {}).get("correct", {}).get(point)
    if correct is None:
        raise DataError(
            f"the record of {cell.method} on {cell.column}, seed {record['seed']}, has no scores of single clients at "
            f"the evaluation point '{point}', as records of earlier versions. Remove it, and run the cell again.",
            key="results",
        )

    return list(correct)


def _scored(correct: Sequence[int | None]) -> list[int]:
    """Return the clients that have a score."""
    return [client for client, number in enumerate(correct) if number is not None]


def _first_reading(cell: Cell) -> Reading:
    return cell.readings[0]


def _figure(cell: Cell) -> str:
    return "pooled" if _first_reading(cell).score.figure == "pooled" else "mean"


def _interval(values: Sequence[float], weights: Sequence[float]) -> Interval | None:
    """Return the t interval of a weighted mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None

    from scipy.stats import t

    center = _weighted_mean(values, weights)
    squares = math.fsum(
        weight**2 * (value - center) ** 2 for value, weight in zip(values, weights, strict=True)
    )
    error = math.sqrt(squares * len(values) / (len(values) - 1))
    half_width = float(t.ppf(0.975, len(values) - 1)) * error

    return Interval(center - half_width, center + half_width)


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
