"""Methods compared from their records: means over seeds, and tests over clients. No torch.

Clients and seeds are never pooled. A seed has one difference per client, and a test over them. Over
seeds there is the mean of the seeds' means with its standard error, and a count of the seeds in
which a test is significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast, get_args

from fedtailor.core.atomic import as_plain
from fedtailor.core.errors import DataError, find_name
from fedtailor.core.metrics import CLIENT_METRICS, ClientGroup, smallest_tenth, worst_tenth
from fedtailor.core.options import wrong_value
from fedtailor.experiment.config import flatten
from fedtailor.experiment.paired import holm
from fedtailor.experiment.site_rows import MEASURES, Measure
from fedtailor.report.cautions import find_notes, find_warnings
from fedtailor.report.methods import Method, in_words
from fedtailor.report.records import POINTS, MethodRecords, MetricScores, read_records
from fedtailor.report.statistics import (
    Interval,
    Wilcoxon,
    bootstrap_interval,
    differences,
    mean,
    outcomes,
    standard_error,
    wilcoxon,
)
from fedtailor.report.worth_it import choose_shown, judge_methods

SIGNIFICANT = 0.05
"""A corrected p-value below it is called significant."""
FIGURES = {
    "mean": "mean",
    "balanced_accuracy": "balanced",
    "auroc": "AUROC",
    "worst_tenth": "worst tenth",
    "smallest_tenth": "smallest tenth",
    "gain_over_local": "gain over Local",
    "harmed_versus_local": "harmed versus Local",
    "gain_over_global": "gain over global",
    "harmed_versus_global": "harmed versus global",
}
"""The figures of a method in one seed, and their names in tables."""
BESIDE_ACCURACY = ("balanced_accuracy", "auroc")
"""Metrics whose means stand beside that of the accuracy: a model that never finds the sick can have
a high accuracy."""
_DEFAULT_POINT = "personalized"
BySeed: TypeAlias = Mapping[int, MetricScores]


class Estimate(NamedTuple):
    """A figure over seeds."""

    mean: float
    standard_error: float | None
    """Of the mean over seeds; None for one seed."""
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
    clients: Mapping[int, int]
    """Clients with a score, by seed."""
    figures: Mapping[str, Estimate]
    """By the names of ``FIGURES``; a figure that the method does not have is left out."""
    global_model: str
    """Whose global model the gain over the global model is about: the label of a method; empty:
    there is none."""


@dataclass(frozen=True)
class PairedTest:
    """A method and the reference on the clients of one seed."""

    clients: int
    """Clients that both have a score of."""
    missing: int
    """Clients of which one or both have none."""
    difference: float
    """Mean over the clients; above 0 if the method is better."""
    interval: Interval | None
    """The bootstrap interval of the mean over clients; None for one client."""
    wins: int
    """Clients at which the method is better."""
    ties: int
    losses: int
    wilcoxon: Wilcoxon
    holm_p_value: float
    """Corrected for the number of methods that are tested against the reference in this seed."""


@dataclass(frozen=True)
class Difference:
    """A method compared with the reference."""

    label: str
    by_seed: Mapping[int, PairedTest]
    """The tests of the seeds that both methods have, with the same data and split."""
    over_seeds: Estimate | None
    """The mean differences of the seeds; None if there is no such seed."""
    significant_seeds: int
    """In how many seeds the corrected p-value is below ``SIGNIFICANT``."""


@dataclass(frozen=True)
class GroupComparison:
    """The comparison on the known clients, or on the new ones."""

    group: ClientGroup
    methods: tuple[Summary, ...]
    differences: tuple[Difference, ...]
    """One per method but the reference."""


@dataclass(frozen=True)
class Comparison:
    """What the records of some methods say about them at one evaluation point."""

    metric: str
    point: str
    about: str
    """The data, and the round after which the models were made, in words."""
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
    worth_it: Mapping[str, Mapping[str, Any]]
    """The verdicts for each site by the label of the method, for accuracies of personalized models,
    where single predictions are known."""
    judged: str
    """The label of the method whose sites are shown; empty: there is none."""
    why_judged: str
    """Why it is this one, in a sentence."""

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the metric is better. Gains are above 0 if it is better."""
        return CLIENT_METRICS[self.metric].higher_is_better

    def as_record(self) -> dict[str, Any]:
        """Return the comparison as a JSON-ready mapping."""
        record: dict[str, Any] = as_plain(self)
        groups = {group.pop("group"): group for group in record["groups"]}
        return record | {"groups": groups, "higher_is_better": self.higher_is_better}


@dataclass(frozen=True)
class _GroupScores:
    """The scores of all methods on one group of clients."""

    methods: Sequence[Method]
    group: ClientGroup
    is_higher_better: bool
    chosen: Mapping[str, BySeed]
    """At the evaluation point of the comparison, by label."""
    beside: Mapping[str, Mapping[str, BySeed]]
    """The metrics that stand beside the compared one, by their names, then by label."""
    of_global: Mapping[str, BySeed]
    """At ``global``, by label; empty where that is the point of the comparison."""
    of_local: Mapping[str, BySeed]
    """Of the method that is taken for Local, at ``personalized``, by its label."""

    def gaps(self, method: Method, other: Method, others: BySeed) -> dict[int, list[float]]:
        """Return by how much a method is better than another at every client, by seed.

        Clients count that both have a score of. Seeds in which the two have other data or another
        split are left out: their clients are not the same.
        """
        scores = self.chosen[method.label]
        gaps = {}
        for seed in sorted(scores.keys() & others.keys()):
            ours = scores[seed].values
            theirs = others[seed].values
            # Clients are paired by their ids, which only mean the same in the same split.
            both = [client for client in ours if client in theirs]
            split = method.split_of(seed)
            has_same_split = split != "" and split == other.split_of(seed)
            if both and has_same_split:
                of_seed = differences(
                    [ours[client] for client in both], [theirs[client] for client in both]
                )
                gaps[seed] = of_seed if self.is_higher_better else [-gap for gap in of_seed]

        return gaps

    def global_model_of(self, method: Method) -> str:
        """Return whose global model a method is compared with: its own, or else FedAvg's.

        Empty if there is none.
        """
        if self.of_global.get(method.label):
            return method.label

        for other in self.methods:
            if other.algorithm == "fedavg" and self.of_global.get(other.label):
                return other.label

        return ""


def compare(
    methods: Sequence[Method], *, metric: str = "accuracy", point: str = "", against: str = ""
) -> Comparison:
    """Compare methods by the scores of their clients.

    Args:
        methods: from :func:`fedtailor.report.read_methods`, at least two.
        metric: one that every client has, such as ``accuracy`` (see: ``fedtailor list metrics``).
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
        ...     sections = {"algorithm": {"name": name}, "data": {"clients": 3}}
        ...     sections["federation"] = {"rounds": 2}
        ...     result = fedtailor.run(fedtailor.make_config(sections), out=f"runs/{name}")
        >>> comparison = compare(read_methods(["runs/local", "runs/fedavg"]))
        >>> comparison.reference, [each.label for each in comparison.groups[0].differences]
        ('local', ['fedavg'])
    """
    if len(methods) < 2:
        raise wrong_value("what is compared", "at least two methods", len(methods))

    metric = find_name("metric", metric, CLIENT_METRICS, key="metric")
    point = find_name("evaluation point", point or _DEFAULT_POINT, POINTS, key="point")
    labels = [method.label for method in methods]
    first = next((method.label for method in methods if method.finished), labels[0])
    reference = find_name("method", against, labels, key="against") if against else first
    local = next((method.label for method in methods if method.algorithm == "local"), "")

    records = [read_records(method) for method in methods]
    groups = {
        group: _select(records, metric, point, group, local) for group in get_args(ClientGroup)
    }
    # The known clients decide what can be compared; new ones are an addition.
    scores = groups["known"].chosen
    _check_scores(scores, reference, metric, point, why=_why_missing(records, point))

    # Verdicts are about the models that a site would use; by accuracy, as their runs have them.
    worth_it: Mapping[str, Mapping[str, Any]] = {}
    if metric in MEASURES and point == _DEFAULT_POINT:
        worth_it = judge_methods(methods, None if metric == "accuracy" else cast(Measure, metric))
    judged = [method for method in methods if method.label in worth_it]
    shown = choose_shown(judged)

    return Comparison(
        metric=metric,
        point=point,
        about=_data_and_round(methods, scores),
        reference=reference,
        local=local,
        groups=tuple(
            _compare_group(group, reference, local)
            for name, group in groups.items()
            if name == "known" or any(group.chosen.values())
        ),
        warnings=find_warnings(methods, scores, metric=metric, point=point),
        notes=find_notes(methods, scores, metric=metric, point=point),
        worth_it=worth_it,
        judged=shown.label,
        why_judged=shown.reason,
    )


def _data_and_round(methods: Sequence[Method], scores: Mapping[str, BySeed]) -> str:
    """Return what the methods were trained on, and the round of their models, in words."""
    names = set()
    rounds = set()
    for method in methods:
        for seed, of_seed in scores[method.label].items():
            facts = flatten(method.runs[seed].provenance)
            names.add(in_words(facts.get("data.dataset", "unknown data")))
            rounds.add(of_seed.round)

    when = " or ".join(map(str, sorted(rounds)))
    return f"{' or '.join(sorted(names))}, round {when}"


def _select(
    records: Sequence[MethodRecords], metric: str, point: str, group: ClientGroup, local: str
) -> _GroupScores:
    """Select the scores of the finished runs that are compared."""

    def at(point: str, method: MethodRecords, metric: str = metric) -> BySeed:
        by_seed = {}
        for seed, of_seed in sorted(method.seeds.items()):
            scores = of_seed.metric(metric, point, group)
            if scores is not None:
                by_seed[seed] = scores

        return by_seed

    beside = {}
    if metric == "accuracy":
        for name in BESIDE_ACCURACY:
            beside[name] = {method.label: at(point, method, name) for method in records}

    return _GroupScores(
        methods=[method.method for method in records],
        group=group,
        is_higher_better=CLIENT_METRICS[metric].higher_is_better,
        chosen={method.label: at(point, method) for method in records},
        beside=beside,
        of_global={method.label: at("global", method) for method in records if point != "global"},
        of_local={
            method.label: at(_DEFAULT_POINT, method) for method in records if method.label == local
        },
    )


def _why_missing(records: Sequence[MethodRecords], point: str) -> str:
    """Return why runs lack the scores of clients, as a sentence; empty if none does."""
    for method in records:
        for seed in method.seeds.values():
            metrics = (seed.run.result or {}).get("metrics", {})
            if "missing" in metrics.get(point, {}):
                return (
                    " With secure sums, sites show scores of their own only if 'share' in "
                    "site.toml names 'single'."
                )

    return ""


def _check_scores(
    scores: Mapping[str, BySeed], reference: str, metric: str, point: str, *, why: str
) -> None:
    """Check that there is something to compare; ``why`` says what may be the reason if not.

    Raises:
        DataError: no method has a score, or the reference has none.
    """
    having = [label for label, by_seed in scores.items() if by_seed]
    if not having:
        raise DataError(
            f"no finished run has the {metric} of clients at the evaluation point '{point}'.{why}",
            key="point",
        )

    if reference not in having:
        raise DataError(
            f"the reference, {reference}, has no finished run with the {metric} of clients at the "
            f"evaluation point '{point}'.{why} Choose another one with --against: "
            f"{', '.join(having)}.",
            key="against",
            allowed=having,
            got=reference,
        )


def _compare_group(scores: _GroupScores, reference: str, local: str) -> GroupComparison:
    """Compare the methods on one group of clients."""
    summaries = []
    for method in scores.methods:
        figures = _figures_of_method(scores, method)
        global_model = scores.global_model_of(method)
        # Gains need a second method with the same split: Local, or whoever has a global model.
        for other in scores.methods:
            if other.label == local and method.label != local:
                gaps = scores.gaps(method, other, scores.of_local[local])
                figures["gain_over_local"] = _means(gaps)
                figures["harmed_versus_local"] = _harmed(gaps)

            if other.label == global_model:
                gaps = scores.gaps(method, other, scores.of_global[global_model])
                figures["gain_over_global"] = _means(gaps)
                figures["harmed_versus_global"] = _harmed(gaps)

        by_seed = scores.chosen[method.label]
        estimates = {name: Estimate.of(values) for name, values in figures.items()}
        summaries.append(
            Summary(
                label=method.label,
                seeds=tuple(by_seed),
                clients={seed: len(one.values) for seed, one in by_seed.items()},
                figures={name: one for name, one in estimates.items() if one is not None},
                global_model=global_model,
            )
        )

    return GroupComparison(scores.group, tuple(summaries), _compare_with(scores, reference))


def _figures_of_method(scores: _GroupScores, method: Method) -> dict[str, dict[int, float]]:
    """Return the figures that need no other method, by name and seed."""
    figures: dict[str, dict[int, float]] = {"mean": {}, "worst_tenth": {}, "smallest_tenth": {}}
    for seed, of_seed in scores.chosen[method.label].items():
        values = list(of_seed.values.values())
        sizes = [of_seed.num_train[client] for client in of_seed.values]
        worst = worst_tenth(values, higher_is_better=scores.is_higher_better)
        figures["mean"][seed] = mean(values)
        figures["worst_tenth"][seed] = worst
        figures["smallest_tenth"][seed] = smallest_tenth(values, sizes)

    # Means over some of the seeds cannot stand beside those over all.
    for name, by_label in scores.beside.items():
        beside = by_label[method.label]
        if beside.keys() >= figures["mean"].keys():
            figures[name] = {seed: mean(list(beside[seed].values.values())) for seed in beside}

    return figures


def _means(gaps: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the mean difference of every seed."""
    return {seed: mean(of_seed) for seed, of_seed in gaps.items()}


def _harmed(gaps: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the share of the clients of every seed at which the method is worse."""
    return {seed: outcomes(of_seed).losses / len(of_seed) for seed, of_seed in gaps.items()}


def _compare_with(scores: _GroupScores, reference: str) -> tuple[Difference, ...]:
    """Compare every method with the reference, one seed at a time."""
    (base,) = [method for method in scores.methods if method.label == reference]
    of_base = scores.chosen[reference]
    gaps = {
        method.label: scores.gaps(method, base, of_base)
        for method in scores.methods
        if method is not base
    }

    # All p-values of a seed are corrected together, before single tests are made.
    p_values = _correct_p_values(gaps)
    compared = []
    for label, by_seed in gaps.items():
        tests = {}
        for seed, of_seed in by_seed.items():
            expected = max(scores.chosen[label][seed].num_clients, of_base[seed].num_clients)
            tests[seed] = PairedTest(
                clients=len(of_seed),
                missing=expected - len(of_seed),
                difference=mean(of_seed),
                interval=bootstrap_interval(of_seed),
                **outcomes(of_seed)._asdict(),
                wilcoxon=wilcoxon(of_seed),
                holm_p_value=p_values[label, seed],
            )

        significant = sum(test.holm_p_value < SIGNIFICANT for test in tests.values())
        compared.append(Difference(label, tests, Estimate.of(_means(by_seed)), significant))

    return tuple(compared)


def _correct_p_values(
    gaps: Mapping[str, Mapping[int, Sequence[float]]],
) -> dict[tuple[str, int], float]:
    """Return p-values by method and seed, corrected for the number of methods in the seed."""
    corrected: dict[tuple[str, int], float] = {}
    for seed in sorted({seed for by_seed in gaps.values() for seed in by_seed}):
        labels = [label for label, by_seed in gaps.items() if seed in by_seed]
        p_values = holm([wilcoxon(gaps[label][seed]).p_value for label in labels])
        for label, p_value in zip(labels, p_values, strict=True):
            corrected[label, seed] = p_value

    return corrected
