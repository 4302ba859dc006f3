"""Methods compared from their records: means over seeds, and tests over the clients of each seed.
No torch.

Clients and seeds are never pooled. A seed has one difference per client, and a test over them. Over
seeds there is the mean of the seeds' means with its standard error, and a count of the seeds in
which a test is significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedtailor.core.errors import ConfigError, DataError, find_name
from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.report.cautions import find_notes, find_warnings
from fedtailor.report.methods import Method
from fedtailor.report.scores import POINTS, ClientScores, Group, read_scores
from fedtailor.report.statistics import (
    Interval,
    Outcomes,
    Wilcoxon,
    bootstrap_interval,
    differences,
    holm,
    mean,
    outcomes,
    smallest_tenth,
    standard_error,
    wilcoxon,
    worst_tenth,
)

SIGNIFICANT = 0.05
"""A corrected p-value below it is called significant."""
FIGURES = {
    "mean": "mean",
    "worst_tenth": "worst tenth",
    "smallest_tenth": "smallest tenth",
    "gain_over_local": "gain over Local",
    "harmed_versus_local": "harmed versus Local",
    "gain_over_global": "gain over global",
    "harmed_versus_global": "harmed versus global",
}
"""The figures of a method in one seed, and their names in tables."""
_GROUPS: tuple[Group, ...] = ("known", "new")


class Estimate(NamedTuple):
    """A figure over seeds."""

    mean: float
    error: float | None
    """The standard error of the mean over seeds; None for one seed."""
    by_seed: Mapping[int, float]

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> Estimate | None:
        """Return the estimate from the figures of the seeds; None if there are none."""
        values = list(by_seed.values())
        return cls(mean(values), standard_error(values), by_seed) if values else None


@dataclass(frozen=True)
class Summary:
    """The figures of one method."""

    label: str
    seeds: tuple[int, ...]
    """The finished runs that have the evaluation."""
    num_clients: Mapping[int, int]
    """Clients with a score, by seed."""
    figures: Mapping[str, Estimate]
    """By the names of ``FIGURES``; a figure that the method does not have is left out."""
    global_model: str
    """Whose global model the gain over the global model is about: the label of a method; empty:
    there is none."""


@dataclass(frozen=True)
class PairedTest:
    """A method and the reference on the clients of one seed."""

    num_clients: int
    """Clients that both have a score of."""
    num_missing: int
    """Clients of which one or both have none."""
    difference: float
    """Mean over the clients; above 0 if the method is better."""
    interval: Interval | None
    """The bootstrap interval of the mean over clients; None for one client."""
    outcomes: Outcomes
    """Clients at which the method is better, equal, worse."""
    wilcoxon: Wilcoxon
    holm_p_value: float
    """Corrected for the number of methods that are tested against the reference in this seed."""

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p-value is below ``SIGNIFICANT``."""
        return self.holm_p_value < SIGNIFICANT


@dataclass(frozen=True)
class Difference:
    """A method compared with the reference."""

    label: str
    tests: Mapping[int, PairedTest]
    """By seed: those that both methods have, with the same data and split."""
    over_seeds: Estimate | None
    """The mean differences of the seeds; None if there is no such seed."""

    @property
    def significant_seeds(self) -> int:
        """In how many seeds the test is significant."""
        return sum(test.is_significant for test in self.tests.values())


@dataclass(frozen=True)
class GroupComparison:
    """The comparison on the known clients, or on the new ones."""

    group: Group
    summaries: tuple[Summary, ...]
    """One per method."""
    differences: tuple[Difference, ...]
    """One per method but the reference."""


@dataclass(frozen=True)
class Comparison:
    """What the records of some methods say about them at one evaluation point."""

    metric: str
    point: str
    reference: str
    """The label of the method that the others are compared with."""
    local: str
    """The label of the method that is taken for Local; empty: there is none."""
    groups: tuple[GroupComparison, ...]
    """The known clients, then the new ones if the runs have any."""
    warnings: tuple[str, ...]
    """What makes the methods hard to compare."""
    notes: tuple[str, ...]
    """What the figures are about."""

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the metric is better. Gains and differences are above 0 if it
        is better.
        """
        return CLIENT_METRICS[self.metric].higher_is_better

    def as_record(self) -> dict[str, Any]:
        """Return the comparison as a JSON-ready mapping."""
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "point": self.point,
            "reference": self.reference,
            "local": self.local,
            "groups": {each.group: _group_record(each) for each in self.groups},
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


class _Table(NamedTuple):
    """The scores of all methods on one group of clients, by label and seed."""

    chosen: Mapping[str, Mapping[int, ClientScores]]
    """At the evaluation point of the comparison."""
    of_global: Mapping[str, Mapping[int, ClientScores]]
    """At ``global``."""
    of_local: Mapping[int, ClientScores]
    """Of the method that is taken for Local, by seed, at ``personalized``."""


def compare(
    methods: Sequence[Method], *, metric: str = "accuracy", point: str = "", against: str = ""
) -> Comparison:
    """Compare methods by the scores of their clients.

    Args:
        methods: from :func:`fedtailor.report.read_methods`, at least two.
        metric: ``accuracy``, ``balanced_accuracy``, ``auroc``, ``loss`` or ``ece``.
        point: the evaluation point: ``personalized``, ``global`` or ``local``; empty:
            ``personalized``, which every method has. Where all clients share one model, it is that
            model on every client's own test examples.
        against: the label of the reference; empty: the first method that has finished. It is not
            the best one, because a reference that is chosen by test scores makes the tests wrong.

    Raises:
        ConfigError: there are fewer than two methods, or a name is unknown.
        DataError: a record is damaged, or no finished run has an evaluation at the point.

    Example:
        >>> import fedtailor
        >>> from fedtailor.report import read_methods
        >>> for name in ("local", "fedavg"):
        ...     sections = {"algorithm": {"name": name}, "data": {"clients": 3}, "federation": {"rounds": 2}}
        ...     result = fedtailor.run(fedtailor.make_config(sections), out=f"runs/{name}")
        >>> comparison = compare(read_methods(["runs/local", "runs/fedavg"]))
        >>> comparison.reference, [each.label for each in comparison.groups[0].differences]
        ('local', ['fedavg'])
    """
    if len(methods) < 2:
        message = f"a comparison needs at least two methods, got {len(methods)}."
        raise ConfigError(message, key="runs", allowed="at least two methods", got=len(methods))

    metric = find_name("metric", metric, CLIENT_METRICS, key="metric")
    point = find_name("evaluation point", point or POINTS[0], POINTS, key="point")
    labels = [method.label for method in methods]
    first = next((method.label for method in methods if method.finished), labels[0])
    reference = find_name("method", against, labels, key="against") if against else first
    local = next((method.label for method in methods if method.algorithm == "local"), "")
    tables = {group: _read(methods, metric, point, group, local) for group in _GROUPS}
    _check_scores(tables["known"], reference, metric, point)
    groups = tuple(
        _compare_group(
            methods,
            table,
            group=group,
            metric=metric,
            point=point,
            reference=reference,
            local=local,
        )
        for group, table in tables.items()
        if group == "known" or any(table.chosen.values())
    )

    return Comparison(
        metric=metric,
        point=point,
        reference=reference,
        local=local,
        groups=groups,
        warnings=find_warnings(methods, tables["known"].chosen, metric=metric, point=point),
        notes=find_notes(methods, tables["known"].chosen, metric=metric, point=point),
    )


def _read(methods: Sequence[Method], metric: str, point: str, group: Group, local: str) -> _Table:
    """Read the scores of the finished runs."""
    of_local = [
        _scores(method, metric, POINTS[0], group) for method in methods if method.label == local
    ]
    return _Table(
        of_local=next(iter(of_local), {}),
        chosen={method.label: _scores(method, metric, point, group) for method in methods},
        of_global={method.label: _scores(method, metric, "global", group) for method in methods},
    )


def _scores(method: Method, metric: str, point: str, group: Group) -> dict[int, ClientScores]:
    """Return the scores of a method by seed, of the runs in which a client has one."""
    found = {
        seed: read_scores(run, point=point, metric=metric, group=group)
        for seed, run in sorted(method.finished.items())
    }
    return {seed: scores for seed, scores in found.items() if scores is not None and scores.values}


def _check_scores(table: _Table, reference: str, metric: str, point: str) -> None:
    """Check that there is something to compare.

    Raises:
        DataError: no method has a score, or the reference has none.
    """
    having = [label for label, by_seed in table.chosen.items() if by_seed]
    if not having:
        raise DataError(
            f"no finished run has the {metric} of clients at the evaluation point '{point}'.",
            key="point",
        )

    if reference not in having:
        raise DataError(
            f"the reference, {reference}, has no finished run with the {metric} of clients at the evaluation point "
            f"'{point}'. Choose another one with --against: {', '.join(having)}.",
            key="against",
            allowed=having,
            got=reference,
        )


def _compare_group(
    methods: Sequence[Method],
    table: _Table,
    *,
    group: Group,
    metric: str,
    point: str,
    reference: str,
    local: str,
) -> GroupComparison:
    """Compare the methods on one group of clients."""
    is_higher = CLIENT_METRICS[metric].higher_is_better
    summaries = []
    for method in methods:
        global_model = "" if point == "global" else _global_model(method, methods, table)
        figures = _own_figures(table.chosen[method.label], higher_is_better=is_higher)
        for other in methods:
            if other.label == local != method.label:
                pairs = _pairs(
                    method,
                    other,
                    table.chosen[method.label],
                    table.of_local,
                    higher_is_better=is_higher,
                )
                figures["gain_over_local"] = _means(pairs)
                figures["harmed_versus_local"] = _harmed(pairs)

            if other.label == global_model:
                baseline = table.of_global[global_model]
                pairs = _pairs(
                    method, other, table.chosen[method.label], baseline, higher_is_better=is_higher
                )
                figures["gain_over_global"] = _means(pairs)
                figures["harmed_versus_global"] = _harmed(pairs)

        summaries.append(_summary(method.label, table.chosen[method.label], figures, global_model))

    return GroupComparison(
        group, tuple(summaries), _differences(methods, table, reference, higher_is_better=is_higher)
    )


def _summary(
    label: str,
    scores: Mapping[int, ClientScores],
    figures: Mapping[str, Mapping[int, float]],
    global_model: str,
) -> Summary:
    """Return the figures of a method over seeds."""
    estimates = {name: Estimate.of(by_seed) for name, by_seed in figures.items()}
    return Summary(
        label=label,
        seeds=tuple(scores),
        num_clients={seed: len(each.values) for seed, each in scores.items()},
        figures={name: estimate for name, estimate in estimates.items() if estimate is not None},
        global_model=global_model,
    )


def _global_model(method: Method, methods: Sequence[Method], table: _Table) -> str:
    """Return whose global model a method is compared with: its own, or that of FedAvg; empty if
    there is none.
    """
    if table.of_global[method.label]:
        return method.label

    return next(
        (
            other.label
            for other in methods
            if other.algorithm == "fedavg" and table.of_global[other.label]
        ),
        "",
    )


def _own_figures(
    scores: Mapping[int, ClientScores], *, higher_is_better: bool
) -> dict[str, dict[int, float]]:
    """Return the figures that need no other method, by name and seed."""
    found: dict[str, dict[int, float]] = {"mean": {}, "worst_tenth": {}, "smallest_tenth": {}}
    for seed, each in scores.items():
        values = list(each.values.values())
        found["mean"][seed] = mean(values)
        found["worst_tenth"][seed] = worst_tenth(values, higher_is_better=higher_is_better)
        found["smallest_tenth"][seed] = smallest_tenth(
            values, [each.num_train[client] for client in each.values]
        )

    return found


def _pairs(
    method: Method,
    other: Method,
    scores: Mapping[int, ClientScores],
    other_scores: Mapping[int, ClientScores],
    *,
    higher_is_better: bool,
) -> dict[int, list[float]]:
    """Return how much better a method is than another one at every client that both have a score
    of, by seed.

    Seeds in which they have other data, or another split, are left out: their clients are not the
    same.
    """
    found = {}
    for seed in scores.keys() & other_scores.keys():
        ours = scores[seed].values
        theirs = other_scores[seed].values
        both = [client for client in ours if client in theirs]
        if both and method.split_of(seed) == other.split_of(seed) != "":
            gaps = differences(
                [ours[client] for client in both], [theirs[client] for client in both]
            )
            found[seed] = gaps if higher_is_better else [-gap for gap in gaps]

    return dict(sorted(found.items()))


def _means(pairs: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the mean difference of every seed."""
    return {seed: mean(gaps) for seed, gaps in pairs.items()}


def _harmed(pairs: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the share of the clients of every seed at which the method is worse."""
    return {seed: outcomes(gaps).losses / len(gaps) for seed, gaps in pairs.items()}


def _differences(
    methods: Sequence[Method], table: _Table, reference: str, *, higher_is_better: bool
) -> tuple[Difference, ...]:
    """Compare every method with the reference, one seed at a time."""
    chosen = table.chosen
    (base,) = [method for method in methods if method.label == reference]
    others = [method for method in methods if method is not base]
    pairs = {
        method.label: _pairs(
            method, base, chosen[method.label], chosen[reference], higher_is_better=higher_is_better
        )
        for method in others
    }
    p_values = _corrected(pairs)
    found = []

    for label, by_seed in pairs.items():
        tests = {}
        for seed, gaps in by_seed.items():
            expected = max(chosen[label][seed].num_clients, chosen[reference][seed].num_clients)
            tests[seed] = _paired_test(
                gaps, num_missing=expected - len(gaps), holm_p_value=p_values[label, seed]
            )

        found.append(Difference(label, tests, Estimate.of(_means(by_seed))))

    return tuple(found)


def _corrected(pairs: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[tuple[str, int], float]:
    """Return the p-values by method and seed, corrected for the number of methods within the
    seed.
    """
    found = {}
    for seed in sorted({seed for by_seed in pairs.values() for seed in by_seed}):
        labels = [label for label, by_seed in pairs.items() if seed in by_seed]
        corrected = holm([wilcoxon(pairs[label][seed]).p_value for label in labels])
        found.update(
            {(label, seed): p_value for label, p_value in zip(labels, corrected, strict=True)}
        )
    return found


def _paired_test(gaps: Sequence[float], *, num_missing: int, holm_p_value: float) -> PairedTest:
    """Return the test of a method against the reference in one seed."""
    return PairedTest(
        num_clients=len(gaps),
        num_missing=num_missing,
        difference=mean(gaps),
        interval=bootstrap_interval(gaps),
        outcomes=outcomes(gaps),
        wilcoxon=wilcoxon(gaps),
        holm_p_value=holm_p_value,
    )


def _group_record(comparison: GroupComparison) -> dict[str, Any]:
    """Return the comparison of a group, ready for JSON."""
    return {
        "methods": [
            {
                "label": each.label,
                "seeds": list(each.seeds),
                "clients": _by_seed(each.num_clients),
                "global_model": each.global_model,
                "figures": {
                    name: _estimate_record(figure) for name, figure in each.figures.items()
                },
            }
            for each in comparison.summaries
        ],
        "differences": [
            {
                "label": each.label,
                "over_seeds": None
                if each.over_seeds is None
                else _estimate_record(each.over_seeds),
                "significant_seeds": each.significant_seeds,
                "by_seed": {str(seed): _test_record(test) for seed, test in each.tests.items()},
            }
            for each in comparison.differences
        ],
    }


def _estimate_record(estimate: Estimate) -> dict[str, Any]:
    return {
        "mean": estimate.mean,
        "standard_error": estimate.error,
        "by_seed": _by_seed(estimate.by_seed),
    }


def _test_record(test: PairedTest) -> dict[str, Any]:
    """Return a test, ready for JSON."""
    return {
        "clients": test.num_clients,
        "missing": test.num_missing,
        "difference": test.difference,
        "interval": None if test.interval is None else test.interval._asdict(),
        **test.outcomes._asdict(),
        "wilcoxon": test.wilcoxon._asdict(),
        "holm_p_value": test.holm_p_value,
    }


def _by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(seed): value for seed, value in values.items()}
