"""What figures show of methods: read once from the records of their runs, line by line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedtailor.core.reading import damaged
from fedtailor.experiment.reader import RunRecords
from fedtailor.report.methods import Method

POINTS = {
    "personalized": "personalized models",
    "global": "the global model",
    "local": "models after local training",
}
"""Evaluation points, the one that a method is judged by first."""
FOLLOWED = ("feature_surprise", "feature_kurtosis")
"""Training metrics of which every round is kept."""

Unit = tuple[str, int]
"""A client of a split: the digest of the split, and the client's number. Runs with one split share
their clients."""


@dataclass(frozen=True)
class ClientScores:
    """The scores of a client's model, in the round that gave the final models."""

    accuracy: float
    num_train: int
    num_test: int
    condition: str
    """What was done to its examples, such as ``contrast-3``; empty if nothing is known."""
    bins: Sequence[Sequence[float]]
    """By bin of confidence: number of the bin, examples, sum of confidence, right ones."""
    class_counts: Mapping[int, int]
    """Test examples by class."""
    diagnostics: Mapping[str, float]
    """Numbers that the method reports of the model."""


@dataclass(frozen=True)
class CurvePoint:
    """An evaluation of all known clients."""

    mean: float
    worst_tenth: float | None


@dataclass(frozen=True)
class SeedRecords:
    """What figures show of one run."""

    run: RunRecords
    scores: dict[str, dict[int, ClientScores]] = field(default_factory=dict)
    """By evaluation point and client."""
    rounds: dict[str, int] = field(default_factory=dict)
    """The round of these scores, by evaluation point."""
    curves: dict[str, dict[int, CurvePoint]] = field(default_factory=dict)
    """Accuracy by evaluation point and round."""
    followed: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """Values over clients by training metric and round."""
    last_training: dict[str, dict[int, float]] = field(default_factory=dict)
    """Training metrics of the last round in which the client trained, by metric and client."""

    @property
    def split(self) -> str:
        """The digests of data and split; without them, a text that no other run has."""
        digests = [self.run.split.get(name) for name in ("data_sha256", "split_sha256")]
        return " ".join(map(str, digests)) if digests[1] else str(self.run.path)

    @cached_property
    def client_names(self) -> list[str]:
        """The names of the clients; empty if they have none."""
        return _names(self.run.split.get("client_names"))

    def name_of(self, client: int) -> str:
        """Return the name of a client, or its number if it has none."""
        return self.client_names[client] if 0 <= client < len(self.client_names) else str(client)


@dataclass(frozen=True)
class MethodRecords:
    """What figures show of one method."""

    method: Method
    seeds: dict[int, SeedRecords]

    @property
    def label(self) -> str:
        """The label of the method."""
        return self.method.label

    @cached_property
    def point(self) -> str:
        """The evaluation point that the method is judged by; empty before the first evaluation."""
        return next(
            (
                point
                for point in POINTS
                if any(point in seed.scores for seed in self.seeds.values())
            ),
            "",
        )

    def scores(self, point: str = "") -> Iterable[tuple[Unit, ClientScores]]:
        """Yield the scores of every client and seed, at an evaluation point or that of the
        method.
        """
        for seed in self.seeds.values():
            for client, scores in seed.scores.get(point or self.point, {}).items():
                yield (seed.split, client), scores

    def accuracy(self, point: str = "") -> dict[Unit, float]:
        """Return the accuracy by client, the mean over seeds with the same split."""
        return mean_by_unit((unit, scores.accuracy) for unit, scores in self.scores(point))

    def num_train(self) -> dict[Unit, int]:
        """Return the number of training examples by client."""
        return {unit: scores.num_train for unit, scores in self.scores()}


def mean_by_unit(values: Iterable[tuple[Unit, float]]) -> dict[Unit, float]:
    """Return the mean of the values that belong to one client."""
    found: dict[Unit, list[float]] = {}
    for unit, value in values:
        found.setdefault(unit, []).append(value)
    return {unit: math.fsum(each) / len(each) for unit, each in found.items()}


def read_records(method: Method) -> MethodRecords:
    """Read what figures show of a method.

    Raises:
        DataError: a file is damaged.
    """
    return MethodRecords(method, {seed: _read_seed(run) for seed, run in method.runs.items()})


def unit_names(records: Sequence[MethodRecords]) -> dict[Unit, str]:
    """Return the clients' names, or their numbers; with several splits, the split's number too."""
    seeds = [seed for method in records for seed in method.seeds.values()]
    splits = list(dict.fromkeys(seed.split for seed in seeds))
    names: dict[Unit, str] = {}
    for seed in seeds:
        clients = {client for scores in seed.scores.values() for client in scores}
        for client in clients | set(range(len(seed.client_names))):
            name = seed.name_of(client)
            if len(splits) > 1:
                name = f"{name} (split {splits.index(seed.split) + 1})"

            names.setdefault((seed.split, client), name)

    return names


def _read_seed(run: RunRecords) -> SeedRecords:
    """Read what figures show of a run."""
    found = SeedRecords(run)
    place = run.path / "rounds.jsonl"
    try:
        for line in run.rounds:
            _add_round(found, line)

        wanted = _rounds_of_final_models(run)
        place = run.path / "clients.jsonl"
        for line in run.iterate_clients():
            _add_client(found, line, wanted)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as reason:
        raise damaged(
            place, f"a line has another form than expected ({type(reason).__name__})"
        ) from reason

    return found


def _rounds_of_final_models(run: RunRecords) -> dict[str, int]:
    """Return the round of the final models by evaluation point; empty for a run that has not
    finished.
    """
    metrics = (run.result or {}).get("metrics", {})
    return {
        point: int(metrics[point]["round"]) for point in POINTS if "round" in metrics.get(point, {})
    }


def _add_round(found: SeedRecords, line: Mapping[str, Any]) -> None:
    """Add the curves of a line of ``rounds.jsonl``."""
    for evaluation in line.get("evaluations", ()):
        point = evaluation["point"]
        accuracy = evaluation["metrics"].get("accuracy", {})
        mean = number(accuracy.get("mean"))
        if (
            evaluation.get("test_set") == "clients"
            and evaluation.get("group") == "known"
            and mean is not None
        ):
            worst = number(accuracy.get("worst10"))
            found.curves.setdefault(str(point), {})[int(line["round"])] = CurvePoint(mean, worst)


def _add_client(found: SeedRecords, line: Mapping[str, Any], wanted: Mapping[str, int]) -> None:
    """Add a line of ``clients.jsonl``: training metrics, or scores that no later ones replace."""
    round_number = int(line["round"])
    client = int(line["client"])
    point = str(line["point"])
    if point == "training":
        for name, value in line.get("training_metrics", {}).items():
            measured = number(value)
            if measured is not None:
                found.last_training.setdefault(str(name), {})[client] = measured
                if name in FOLLOWED:
                    found.followed.setdefault(name, {}).setdefault(round_number, []).append(
                        measured
                    )

        return

    if line.get("test_set") != "clients" or line.get("group") != "known":
        return
    if round_number > wanted.get(point, round_number):
        return

    accuracy = number(line.get("accuracy"))
    if accuracy is None:
        return

    if found.rounds.get(point, 0) < round_number:
        found.scores[point] = {}
        found.rounds[point] = round_number

    found.scores[point][client] = ClientScores(
        accuracy=accuracy,
        num_train=int(line.get("num_train", 0)),
        num_test=int(line.get("num_test", 0)),
        condition=str(line.get("condition", "")),
        bins=[[float(value) for value in row] for row in line.get("bins", ())],
        class_counts=_class_counts(line.get("confusion", ())),
        diagnostics=_numbers(line.get("diagnostics", {})),
    )


def _class_counts(confusion: Iterable[Sequence[float]]) -> dict[int, int]:
    """Return the examples by class from pairs of class and prediction."""
    counts: dict[int, int] = {}
    for label, _, examples in confusion:
        counts[int(label)] = counts.get(int(label), 0) + round(examples)
    return counts


def _numbers(table: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a table that are numbers."""
    found = {str(name): number(value) for name, value in table.items()}
    return {name: value for name, value in found.items() if value is not None}


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _names(value: Any) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []
