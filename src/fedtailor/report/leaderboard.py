"""What the records of the leaderboard say: standings, ranks, and what is missing. No torch.

A figure of a method is the mean over repetitions. Pairs are tested over the clients of all
repetitions; where the clients are the same in each, over the mean differences of every client.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.metrics import worst_tenth
from fedtailor.core.text import NOTHING, round_figure, with_error
from fedtailor.experiment.leaderboard import (
    FEDERATIONS,
    LOCAL,
    ONE_MODEL_HERE,
    REPETITIONS,
    Record,
    is_done,
    make_cells,
)
from fedtailor.experiment.site_rows import Verdict
from fedtailor.experiment.worth_it import count_verdicts
from fedtailor.report.comparison import SIGNIFICANT, Estimate
from fedtailor.report.parts import Cell, ReportTable
from fedtailor.report.statistics import (
    DECIMALS,
    Interval,
    bootstrap_interval,
    critical_difference,
    differences,
    joint_p_values,
    mean,
    mean_ranks,
)

ALONE = "alone"
BASELINES = (ALONE, "pooled")
"""Rows that are no methods: the best simple model of each client, and the best of all data."""
PERSONAL = "a model per client"
GLOBAL = "one global model"
FEW_EXCHANGES = "one or two exchanges"
NO_FEDERATION = "without a federation"
KINDS = (PERSONAL, GLOBAL, FEW_EXCHANGES, NO_FEDERATION)
_FEW_EXCHANGES = 2
"""One of statistics, and one of scores where a method chooses its options by them."""
REFERENCE = "fedavg"
"""The usual method; its time tells how long others take on a federation."""
_RESAMPLES = 2_000
_AGREEING = 2
"""Repetitions that two rows must share to be told apart."""
_SHARE_OF_METHODS = 0.75
"""That a federation needs to count in the ranks, because these are of methods that are on all."""
Accuracies = Sequence[float | None]


@dataclass(frozen=True)
class Standing:
    """A method on a federation."""

    name: str
    kind: str
    repetitions: int
    accuracy: Estimate
    """Mean over clients, by repetition."""
    interval: Interval | None
    """95 % over clients: ends of a repetition, averaged over repetitions."""
    worst_tenth: float
    harmed: float | None
    """Share of clients whose model is less accurate than that of ``local``; None: not known."""
    below_alone: float | None
    """Share of clients whose model is less accurate than the best simple one of their own."""
    verdicts: Mapping[Verdict, int]
    """How many clients of all repetitions have which verdict; empty for what is not a method."""
    megabytes: float | None
    """What a client sends and receives in a run."""
    seconds: float | None
    """Processor seconds of a trial: the median over repetitions."""
    chosen: Mapping[int, Mapping[str, Any]]
    """Options, by repetition."""
    uses_validation: bool
    is_one_model: bool
    """Whether all clients end with the same model."""
    better_than: tuple[str, ...]
    worse_than: tuple[str, ...]
    unclear: tuple[str, ...]
    """Rows that it cannot be told apart from."""


class _Row(NamedTuple):
    """The accuracies of clients in a row of a table, by repetition, with the records if any."""

    by_repetition: Mapping[int, Accuracies]
    records: Sequence[Record] = ()


def federations_of(records: Mapping[str, Record]) -> list[str]:
    """Return the federations with records, in the order of the leaderboard."""
    there = {record["federation"] for record in records.values()}
    return [name for name in FEDERATIONS if name in there]


def standings(records: Mapping[str, Record], federation: str) -> list[Standing]:
    """Return what the records say of every method on a federation, the highest accuracy first.

    Two rows are told apart if their accuracies differ over the clients of all repetitions, by
    :func:`fedtailor.report.statistics.joint_p_values` for all pairs together, and if the mean
    difference has the same direction in every repetition, of which they share two or more. Clients
    that are the same in all repetitions count once, with their mean difference.

    Args:
        records: from :func:`fedtailor.experiment.leaderboard.read_board`.
        federation: its name.
    """
    rows = _rows(records, federation)
    verdicts = _verdicts(rows, same_clients=FEDERATIONS[federation].same_clients)
    by_local = rows[LOCAL].by_repetition if LOCAL in rows else {}
    by_alone = rows[ALONE].by_repetition

    result = []
    for name, row in rows.items():
        against = {other: verdicts[name, other] for other in rows if other != name}
        seconds = known_of(list(map(seconds_of_trial, row.records)))
        result.append(
            Standing(
                name=name,
                kind=_kind(name, row.records),
                repetitions=len(row.by_repetition),
                accuracy=_estimate(row),
                interval=_interval(row),
                worst_tenth=mean(
                    worst_tenth(known_of(each)) for each in row.by_repetition.values()
                ),
                harmed=None if name == LOCAL else _share_below(row, by_local),
                below_alone=None if name == ALONE else _share_below(row, by_alone),
                verdicts=count_clients(row.records),
                megabytes=mean(map(_megabytes, row.records)) if row.records else None,
                seconds=statistics.median(seconds) if seconds else None,
                chosen={record["repetition"]: record["chosen"] for record in row.records},
                uses_validation=any(record["uses_validation"] for record in row.records),
                is_one_model=any(map(_is_one_model, row.records)),
                better_than=tuple(other for other, sign in against.items() if sign > 0),
                worse_than=tuple(other for other, sign in against.items() if sign < 0),
                unclear=tuple(other for other, sign in against.items() if sign == 0),
            )
        )

    return sorted(result, key=lambda standing: -standing.accuracy.mean)


def _rows(records: Mapping[str, Record], federation: str) -> dict[str, _Row]:
    """Return the rows of a federation: methods and baselines."""
    of_method: dict[str, list[Record]] = {}
    for record in records.values():
        if record["federation"] == federation:
            of_method.setdefault(record["method"], []).append(record)

    rows = {}
    for method, there in of_method.items():
        there.sort(key=lambda record: record["repetition"])
        rows[method] = _Row({one["repetition"]: one["accuracies"] for one in there}, there)

    # All methods of a repetition have the same baselines.
    for name in BASELINES:
        by_repetition = {}
        for there in of_method.values():
            for record in there:
                by_repetition[record["repetition"]] = record["baselines"][name]
        rows[name] = _Row(dict(sorted(by_repetition.items())))

    return rows


def _kind(name: str, records: Sequence[Record]) -> str:
    if not records or name == LOCAL:
        return NO_FEDERATION
    if records[0]["rounds"] <= _FEW_EXCHANGES:
        return FEW_EXCHANGES

    return GLOBAL if _is_one_model(records[0]) else PERSONAL


def _is_one_model(record: Record) -> bool:
    return record["evaluation"] == "global" or record["method"] in ONE_MODEL_HERE


def known_of(accuracies: Accuracies) -> list[float]:
    """Return the accuracies of the clients that have one."""
    return [accuracy for accuracy in accuracies if accuracy is not None]


def _estimate(row: _Row) -> Estimate:
    by_repetition = {number: mean(known_of(each)) for number, each in row.by_repetition.items()}
    estimate = Estimate.of(by_repetition)
    assert estimate is not None, "a row has a record"
    return estimate


def _interval(row: _Row) -> Interval | None:
    """Return the bootstrap interval over clients, its ends averaged over repetitions."""
    intervals = []
    for accuracies in row.by_repetition.values():
        interval = bootstrap_interval(known_of(accuracies), resamples=_RESAMPLES)
        if interval is None:
            return None
        intervals.append(interval)

    return Interval(*(mean(ends) for ends in zip(*intervals, strict=True)))


def seconds_of_trial(record: Record) -> float | None:
    """Return the processor seconds of a trial, their mean; None if the cell was interrupted."""
    if record["processor_seconds"] is None:
        return None

    return float(record["processor_seconds"]) / len(record["trials"])


def count_clients(records: Sequence[Record]) -> dict[Verdict, int]:
    """Return how many clients of records have which verdict; those without one are left out."""
    verdicts = [one for record in records for one in record["verdicts"] if one is not None]
    return count_verdicts(verdicts) if verdicts else {}


def clients_below(record: Record, accuracies: Accuracies) -> list[str]:
    """Return the clients of a record whose model is less accurate than another one.

    Args:
        record: of a method.
        accuracies: of the other models in the same repetition.
    """
    below = []
    for client, (one, other) in enumerate(zip(record["accuracies"], accuracies, strict=True)):
        if one is not None and other is not None and one < other:
            below.append(client_name(record, client))

    return below


def client_name(record: Record, client: int) -> str:
    """Return the name of a client; those without one are called by their number."""
    names = record["clients"]
    return str(names[client]) if names else str(client)


def _megabytes(record: Record) -> float:
    traffic: Mapping[str, int] = record["bytes"]
    return sum(traffic.values()) / len(record["accuracies"]) / 1e6


def _gaps(one: Accuracies, other: Accuracies) -> list[float]:
    """Return the differences of the clients that both have an accuracy of."""
    pairs = []
    for first, second in zip(one, other, strict=True):
        if first is not None and second is not None:
            pairs.append((first, second))

    return differences([first for first, _ in pairs], [second for _, second in pairs])


def _share_below(row: _Row, others: Mapping[int, Accuracies]) -> float | None:
    """Return the share of clients that are below others, over the repetitions of both."""
    shares = []
    for number in row.by_repetition.keys() & others.keys():
        gaps = _gaps(row.by_repetition[number], others[number])
        if gaps:
            shares.append(sum(gap < 0 for gap in gaps) / len(gaps))

    return mean(shares) if shares else None


def _verdicts(rows: Mapping[str, _Row], *, same_clients: bool) -> dict[tuple[str, str], int]:
    """Return for every pair whether the first is better (1), worse (-1), or not told apart (0)."""
    gaps = _gaps_of_pairs(list(rows.values()))
    shared = ~np.isnan(gaps).all(axis=2)
    directions = np.sign(np.round(np.nansum(gaps, axis=2), DECIMALS))
    total = directions.sum(axis=1)
    number = shared.sum(axis=1)
    agree = (np.abs(total) == number) & (number >= _AGREEING)

    if same_clients:
        known = np.maximum(1, (~np.isnan(gaps)).sum(axis=1))
        units = np.nansum(gaps, axis=1) / known
    else:
        units = gaps.reshape(len(gaps), -1)
    apart = agree & (joint_p_values(units) < SIGNIFICANT)

    verdicts = {}
    for (one, other), is_apart, direction in zip(
        combinations(rows, 2), apart.tolist(), np.sign(total).tolist(), strict=True
    ):
        verdicts[one, other] = int(direction) if is_apart else 0
        verdicts[other, one] = -verdicts[one, other]

    return verdicts


def _gaps_of_pairs(rows: Sequence[_Row]) -> np.ndarray:
    """Return the differences of all pairs, (pairs, repetitions, clients); NaN where one lacks."""
    clients = max(len(each) for row in rows for each in row.by_repetition.values())
    accuracies = np.full((len(rows), REPETITIONS, clients), np.nan)
    for place, row in enumerate(rows):
        for repetition, each in row.by_repetition.items():
            accuracies[place, repetition, : len(each)] = np.array(each, np.float64)

    first, second = np.triu_indices(len(rows), k=1)
    gaps: np.ndarray = accuracies[first] - accuracies[second]
    return gaps


# Ranks over federations.


class Ranks(NamedTuple):
    """Mean ranks of the methods that have all repetitions on all federations of the table."""

    federations: tuple[str, ...]
    mean_rank: Mapping[str, float]
    """By method, the first one first."""
    critical_difference: float | None
    """Nemenyi's; None with fewer than two federations or methods."""


def rank_methods(records: Mapping[str, Record]) -> Ranks:
    """Rank the methods by their mean accuracy on every federation.

    The federations are those on which ``local`` has all repetitions, and about as many methods as
    where there are most. A federation is one block, and its repetitions are averaged first, because
    they are not independent.
    """
    complete: dict[str, dict[str, float]] = {}
    for federation in federations_of(records):
        rows = _rows(records, federation)
        means = {
            name: _estimate(row).mean
            for name, row in rows.items()
            if row.records and len(row.records) == REPETITIONS
        }
        if LOCAL in means:
            complete[federation] = means

    if not complete:
        return Ranks((), {}, None)

    most = max(map(len, complete.values()))
    complete = {
        name: means for name, means in complete.items() if len(means) >= _SHARE_OF_METHODS * most
    }
    shared = set.intersection(*(set(means) for means in complete.values()))
    blocks = [{name: means[name] for name in sorted(shared)} for means in complete.values()]
    ranks = dict(sorted(mean_ranks(blocks).items(), key=lambda pair: pair[1]))
    difference = None
    if len(blocks) > 1 and len(ranks) > 1:
        difference = critical_difference(len(ranks), len(blocks))

    return Ranks(tuple(complete), ranks, difference)


# Tables.


def table_of(federation: str, rows: Sequence[Standing]) -> ReportTable:
    """Return the table of a federation."""
    columns = [
        "method",
        "accuracy, %",
        "95 % over clients",
        "worst tenth",
        "harmed",
        "below alone",
        "clients better / unclear / worse than alone",
        "MB a client",
        "core seconds a trial",
        "rows it beats / unclear / beaten by",
        "chosen",
    ]
    cells: list[list[Cell]] = []
    for row in rows:
        interval = NOTHING
        if row.interval is not None:
            interval = f"{100 * row.interval.low:.1f} to {100 * row.interval.high:.1f}"

        counts = (row.better_than, row.unclear, row.worse_than)
        cells.append(
            [
                _title(row),
                with_error(row.accuracy.mean, row.accuracy.standard_error, in_percent=True),
                interval,
                round_figure(row.worst_tenth, in_percent=True),
                whole_percent(row.harmed),
                whole_percent(row.below_alone),
                " / ".join(map(str, row.verdicts.values())) or NOTHING,
                NOTHING if row.megabytes is None else f"{row.megabytes:.3g}",
                NOTHING if row.seconds is None else f"{row.seconds:.1f}",
                " / ".join(str(len(names)) for names in counts),
                _chosen(row) or NOTHING,
            ]
        )

    return ReportTable(
        title=f"{federation}: {FEDERATIONS[federation].what}", columns=columns, rows=cells
    )


def _title(row: Standing) -> str:
    """Return the name of a row, with what its numbers lack."""
    title = f"{row.name} (v)" if row.uses_validation else row.name
    if row.repetitions < REPETITIONS:
        title += f", {row.repetitions} of {REPETITIONS}"
    return title


def whole_percent(share: float | None) -> str:
    """Return a share in whole percent."""
    return NOTHING if share is None else f"{100 * share:.0f} %"


def _chosen(row: Standing) -> str:
    """Return the chosen options, by repetition where they differ."""
    words = []
    for options in row.chosen.values():
        pairs = [f"{key.rpartition('.')[2]} {value}" for key, value in options.items()]
        words.append(", ".join(pairs))

    return words[0] if len(set(words)) == 1 else " | ".join(words)


# What is missing.


def missing_cells(records: Mapping[str, Record]) -> dict[str, dict[str, int]]:
    """Return how many cells of the package's methods are missing, by federation and method."""
    missing: dict[str, dict[str, int]] = {name: {} for name in FEDERATIONS}
    for cell in make_cells():
        if not is_done(cell, records):
            of_federation = missing[cell.federation]
            of_federation[cell.method] = of_federation.get(cell.method, 0) + 1

    return missing


def count_older(records: Mapping[str, Record]) -> int:
    """Return how many missing cells of the package's methods have a record of another protocol."""
    missing = [cell for cell in make_cells() if not is_done(cell, records)]
    return sum(cell.name in records for cell in missing)


def missing_hours(records: Mapping[str, Record]) -> dict[str, float]:
    """Estimate the processor hours of the missing cells, by federation.

    A cell takes as long as the median of its method there. Where its method has no record there, it
    takes the time of FedAvg there, times the median ratio of both elsewhere. Federations without a
    record of FedAvg are left out.
    """
    seconds = _median_seconds(records)
    ratios: dict[str, list[float]] = {}
    for (federation, method), median in seconds.items():
        reference = seconds.get((federation, REFERENCE))
        if reference:
            ratios.setdefault(method, []).append(median / reference)

    typical = {method: statistics.median(values) for method, values in ratios.items()}
    usual = statistics.median(typical.values()) if typical else 1.0
    hours = {}
    for federation, methods in missing_cells(records).items():
        reference = seconds.get((federation, REFERENCE))
        if reference is None:
            continue

        hours[federation] = 0.0
        for method, number in methods.items():
            guess = reference * typical.get(method, usual)
            hours[federation] += number * seconds.get((federation, method), guess) / 3600

    return hours


def seconds_of(record: Record) -> float:
    """Return the processor seconds of a cell; by the clock if it was interrupted."""
    return float(record["processor_seconds"] or record["trial_seconds"])


def _median_seconds(records: Mapping[str, Record]) -> dict[tuple[str, str], float]:
    """Return the median seconds of a cell by federation and method."""
    measured: dict[tuple[str, str], list[float]] = {}
    for record in records.values():
        key = (record["federation"], record["method"])
        measured.setdefault(key, []).append(seconds_of(record))

    return {key: statistics.median(values) for key, values in measured.items()}
