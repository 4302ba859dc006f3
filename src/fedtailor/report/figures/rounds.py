"""Figures over the rounds of runs: accuracy, fit of the features, seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fedtailor.report.charts import FEWEST_OF_A_LINE, CurvePoint, curves, evenly
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable, to_percent
from fedtailor.report.records import POINTS, MethodRecords, SeedRecords, number
from fedtailor.report.statistics import mean

MOST_ROUNDS = 200
"""Rounds of a curve that are drawn and listed; of more, some are left out, evenly."""
_MEGABYTE = 1e6

Curves: TypeAlias = Mapping[str, Sequence[CurvePoint]]
"""By label of the method."""
Values: TypeAlias = Iterable[tuple[int, float | None]]
"""Rounds of a seed, and values."""


@dataclass(frozen=True)
class Quantity:
    """What a panel of curves shows."""

    title: str
    unit: str
    curves: Curves
    include: float | None = None
    """A value that the vertical axis holds in any case."""


def accuracy_curves(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return a figure of accuracy by round for every evaluation point that the records have."""
    figures = []
    for point, words in POINTS.items():

        def accuracies(figure: str, point: str = point) -> Curves:
            def values(seed: SeedRecords) -> Values:
                for round, line in seed.curves.get(point, {}).items():
                    yield round, to_percent(number(line.get(figure)))

            return _with_away(records, _over_seeds(records, values))

        quantities = [
            Quantity("Mean over clients", "accuracy, %", accuracies("mean")),
            Quantity("Worst tenth of the clients", "accuracy, %", accuracies("worst10")),
        ]
        figures += _figure(
            f"curves-{point}",
            f"Accuracy by round: {words}",
            f"Accuracy of {words} on the clients' own test examples.",
            quantities,
        )

    return figures


def epsilons(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return what all rounds so far tell of a client, where noise hides clients."""

    def by_round(name: str) -> Curves:
        def values(seed: SeedRecords) -> Values:
            for line in seed.run.rounds:
                record = line.get("privacy", {})
                if record.get("unit") == "client":
                    yield int(line["round"]), number(record[name])

        return _over_seeds(records, values)

    quantities = [
        Quantity("Who took part is secret", "epsilon", by_round("epsilon"), 0.0),
        Quantity("Who took part is known", "epsilon", by_round("epsilon_known_cohort"), 0.0),
    ]
    caption = "What the global models of all rounds so far tell of a client, at most."
    return _figure("epsilon", "Epsilon by round", caption, quantities)


def gaussianity(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return how well a Gaussian of each class fits the features, where a method reports it."""
    surprise = _over_clients(records, "feature_surprise")
    kurtosis = _over_clients(records, "feature_kurtosis")
    caption = (
        "The negative log-likelihood of training features under a Gaussian of each class, as in "
        "FedLDA (2023), Figure 1; and their kurtosis (Mardia 1970): 1 is that of a Gaussian."
    )
    quantities = [
        Quantity("Surprise", "negative log-likelihood, nats", surprise),
        Quantity("Kurtosis", "1 for Gaussian features", kurtosis, include=1.0),
    ]

    return _figure(
        "gaussianity", "How Gaussian the features are, by round", caption, quantities, "clients"
    )


def costs(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return seconds and bytes of every round."""

    def cost(kind: str, part: str, scale: float = 1.0, needed: str = "round") -> Curves:
        def values(seed: SeedRecords) -> Values:
            for line in seed.run.rounds:
                if line.get(needed):
                    yield int(line["round"]), _part(line.get(kind), part, scale)

        return _over_seeds(records, values)

    evaluated = cost("seconds", "evaluate", needed="evaluations")
    seconds = [
        Quantity("Training", "seconds per round", cost("seconds", "train"), 0.0),
        Quantity("Evaluation, where there is one", "seconds per round", evaluated, 0.0),
    ]
    sent = [
        Quantity("From all clients", "MB per round", cost("bytes", "up", _MEGABYTE), 0.0),
        Quantity("To all clients", "MB per round", cost("bytes", "down", _MEGABYTE), 0.0),
    ]
    machine = "Seconds are those of this machine, which other work may have slowed down."
    memory = "Every number of a message counts with its size in memory; 1 MB is a million bytes."

    return [
        *_figure("seconds", "Seconds per round", machine, seconds),
        *_figure("bytes", "Bytes per round", memory, sent),
    ]


def _part(table: object, name: str, scale: float) -> float | None:
    value = number(table.get(name)) if isinstance(table, Mapping) else None
    return None if value is None else value / scale


def _over_seeds(
    records: Sequence[MethodRecords], values: Callable[[SeedRecords], Values]
) -> Curves:
    """Return curves by label, the mean over seeds, from the values of a seed by round."""
    return {
        method.label: _curve(item for seed in method.seeds.values() for item in values(seed))
        for method in records
    }


def _with_away(records: Sequence[MethodRecords], curves: Curves) -> Curves:
    """Return curves whose points say how many clients gave no answer in their round."""
    marked = {}
    for method in records:
        clients: dict[int, set[tuple[int, int]]] = {}
        for number_of_seed, seed in enumerate(method.seeds.values()):
            for event in seed.run.events:
                if event.get("kind") == "absent" and "round" in event:
                    client = (number_of_seed, int(event["client"]))
                    clients.setdefault(int(event["round"]), set()).add(client)

        marked[method.label] = [
            point._replace(away=len(clients.get(point.round, ()))) for point in curves[method.label]
        ]

    return marked


def _over_clients(records: Sequence[MethodRecords], metric: str) -> Curves:
    """Return curves by label of a training metric, the mean over clients and seeds."""

    def values(seed: SeedRecords) -> Values:
        for round, of_clients in seed.followed.get(metric, {}).items():
            yield from ((round, value) for value in of_clients)

    return _over_seeds(records, values)


def _curve(values: Values) -> list[CurvePoint]:
    """Return a curve through the means of the values of every round."""
    by_round: dict[int, list[float]] = {}
    for round, value in values:
        if value is not None:
            by_round.setdefault(round, []).append(value)

    curve = []
    for round, group in sorted(by_round.items()):
        curve.append(CurvePoint(round, mean(group), min(group), max(group)))

    return curve


def _figure(
    name: str, title: str, caption: str, quantities: Sequence[Quantity], spread: str = "seeds"
) -> list[Figure]:
    """Return a figure with a panel per quantity and a line per method; none without values."""
    if not any(quantities[0].curves.values()):
        return []

    # All quantities of a method are thinned alike, so that a row of the table has all of them.
    names = [label for label in quantities[0].curves if _rounds(quantities, label)]
    rounds = {label: evenly(_rounds(quantities, label), MOST_ROUNDS) for label in names}
    panels = []
    rows: dict[tuple[str, int], list[Cell]] = {
        (label, round): [label, round] for label in names for round in rounds[label]
    }
    columns = ["method", "round"]
    for quantity in quantities:
        columns += [f"{quantity.title}, {quantity.unit}", "smallest", "largest"]
        by_round = {
            (label, point.round): point for label in names for point in quantity.curves[label]
        }
        drawn: dict[str, list[CurvePoint]] = {label: [] for label in names}
        for (label, round), row in rows.items():
            point = by_round.get((label, round))
            if point is None:
                row += [None] * 3
            else:
                row += [point.mean, point.low, point.high]
                drawn[label].append(point)

        # A quantity that no method has gets no panel, but keeps its empty columns.
        if any(drawn.values()):
            chart = curves(drawn, names, quantity.unit, include=quantity.include)
            panels.append(Panel(chart=chart, title=quantity.title))

    points = [point for each in quantities for curve in each.curves.values() for point in curve]
    if any(point.low < point.high for point in points):
        caption += (
            f" Bands, or lines at bars, reach from the smallest to the largest value over {spread}."
        )

    # Bars have no rings.
    lengths = [len(curve) for each in quantities for curve in each.curves.values()]
    if max(lengths, default=0) >= FEWEST_OF_A_LINE and any(point.away for point in points):
        caption += (
            " A ring marks a round in which a client gave no answer: its mean is over the others."
        )

    if any(len(_rounds(quantities, label)) > MOST_ROUNDS for label in names):
        caption += f" Of the rounds, at most {MOST_ROUNDS} are drawn and listed, evenly."

    table = ReportTable(columns=columns, rows=list(rows.values()))
    return [Figure(name=name, title=title, caption=caption, panels=panels, table=table)]


def _rounds(quantities: Sequence[Quantity], label: str) -> list[int]:
    """Return the rounds in which a method has any of the quantities."""
    return sorted({point.round for each in quantities for point in each.curves[label]})
