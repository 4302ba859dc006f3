"""Scores of single clients in records, and the difference between two methods client by client. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.core.errors import DataError
from fedtailor.papers.records import Record, records_of
from fedtailor.papers.tables import Cell, Reading

_DECIMALS = 6


def client_columns(lines: Iterable[Mapping[str, Any]]) -> Record:
    """Return the scores and diagnostics of all clients after the last round, for a record.

    Args:
        lines: those of ``clients.jsonl``.

    Returns:
        By ``known`` or ``new`` clients, then by evaluation point: columns of equal length with a value per client, in
        the order of the lines. ``correct`` counts the correct predictions among ``num_test`` test examples;
        ``condition`` is there if examples are corrupted; diagnostics, such as ``beta_means``, have six decimals.
    """
    scored = [line for line in lines if line.get("test_set") == "clients"]
    last = max((line["round"] for line in scored), default=0)
    found: Record = {}
    for line in scored:
        if line["round"] == last:
            columns = found.setdefault(line["clients"], {}).setdefault(line["point"], {})
            for name, value in _numbers(line).items():
                columns.setdefault(name, []).append(value)
    return found


def _numbers(line: Mapping[str, Any]) -> Record:
    """Return the numbers of one client for a record."""
    numbers = {name: line[name] for name in ("client", "condition", "num_train", "num_test") if name in line}
    numbers["correct"] = round((line.get("accuracy") or 0.0) * line["num_test"])
    diagnostics = line.get("diagnostics", {})
    return numbers | {name: None if value is None else round(value, _DECIMALS) for name, value in diagnostics.items()}


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
    """For other clients, the trained models as they are; None if the seeds have different splits, or for one client."""
    over_seeds: Interval | None
    """For other seeds, the clients as they are; None for one seed."""


class _Gaps(NamedTuple):
    """The differences of the clients in one seed."""

    values: list[float]
    weights: list[float]
    """Share of each client in the mean."""
    split: str


def difference(first: Cell, second: Cell, records: Sequence[Record]) -> Difference:
    """Compare two methods client by client, each at its first score, over all seeds that have a record of both.

    The difference of a seed is the mean over its clients, weighted by their test examples if the first score is
    ``pooled``. Intervals are t intervals: over clients, of each client's mean difference over the seeds; over seeds,
    of the differences of the seeds.

    Args:
        first: a cell.
        second: the cell of another method on the same column.
        records: those of the paper.

    Raises:
        DataError: no seed has a record of both, or the records lack the scores of single clients or differ in split.
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
        client_means = [_mean(column) for column in zip(*(each.values for each in gaps.values()), strict=True)]
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
    ours = _columns(first, own)
    theirs = _columns(second, other)
    if other["provenance"]["split_sha256"] != split or theirs["client"] != ours["client"]:
        raise DataError(
            f"{first.method} and {second.method} on {first.column}, seed {own['seed']}: the records are of other "
            "clients, or of other examples, so they cannot be compared client by client.",
            key="results",
        )
    tested = [client for client, num_test in enumerate(ours["num_test"]) if num_test]
    sizes = [ours["num_test"][client] for client in tested]
    values = [(ours["correct"][client] - theirs["correct"][client]) / ours["num_test"][client] for client in tested]
    if _figure(first) == "mean":
        sizes = [1] * len(tested)
    return _Gaps(values, [size / sum(sizes) for size in sizes], split)


def _columns(cell: Cell, record: Record) -> Mapping[str, list[Any]]:
    """Return the columns of the clients at the evaluation point of a cell's first score."""
    score = _first_reading(cell).score
    columns = record.get("clients", {}).get(score.clients, {}).get(score.point)
    if columns is None:
        raise DataError(
            f"the record of {cell.method} on {cell.column}, seed {record['seed']}, has no scores of single clients at "
            f"the evaluation point '{score.point}', as records of earlier versions. Remove it, and run the cell again.",
            key="results",
        )
    found: Mapping[str, list[Any]] = columns
    return found


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
    squares = math.fsum(weight**2 * (value - center) ** 2 for value, weight in zip(values, weights, strict=True))
    error = math.sqrt(squares * len(values) / (len(values) - 1))
    half_width = float(t.ppf(0.975, len(values) - 1)) * error
    return Interval(center - half_width, center + half_width)


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
