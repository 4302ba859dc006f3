"""What reports read of runs: curves, and the scores of clients. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedtailor.core.errors import DataError
from fedtailor.core.metrics import CLIENT_METRICS, ClientGroup
from fedtailor.core.reading import content_of, damaged, read_object
from fedtailor.experiment.reader import RunRecords
from fedtailor.report.methods import Method
from fedtailor.report.statistics import mean

POINTS = {
    "personalized": "personalized models",
    "global": "the global model",
    "local": "models after local training",
}
"""Evaluation points in words; a method is judged by the first one that it has."""
FOLLOWED = ("feature_surprise", "feature_kurtosis")
"""Training metrics of which every round is kept."""
_LARGEST = 1e100
"""No loss of numbers in single precision is larger."""

_KEYS: Mapping[ClientGroup, str] = {"known": "metrics", "new": "new_clients"}
"""Where a result holds the evaluations of known and of new clients."""
Unit = tuple[str, int]
"""A client: what tells it apart from those of other runs, such as the digest of the split, and its
number. Runs with one split, or with the same sites, share their clients."""


@dataclass(frozen=True)
class FinalScores:
    """The scores of a client's model, in the round that gave the final models."""

    metrics: Mapping[str, float]
    """By the names of :data:`fedtailor.core.metrics.CLIENT_METRICS`. Empty without test examples or
    after a failed evaluation; an infinite loss is left out."""
    num_train: int
    condition: str
    """What was done to its examples, such as ``contrast-3``; empty if nothing is known."""
    bins: Sequence[Sequence[float]]
    """By bin of confidence: number of the bin, examples, sum of confidence, right ones."""
    diagnostics: Mapping[str, float]
    """Numbers that the method reports of the model."""


@dataclass(frozen=True)
class MetricScores:
    """One metric of the clients of one run, at one evaluation point of its final models."""

    round: int
    """After which the models were made."""
    adaptation: str
    """What was done to make them."""
    values: Mapping[int, float]
    """By the id of the client, in the order of ids."""
    num_train: Mapping[int, int]
    """Training examples, by the id of the client."""
    num_clients: int
    """Clients of the run that should have a score; some may have none."""


@dataclass(frozen=True)
class SeedRecords:
    """What reports show of one run."""

    run: RunRecords
    all_scores: dict[tuple[ClientGroup, str], dict[int, FinalScores]] = field(default_factory=dict)
    """By group of clients and evaluation point, then by client."""
    rounds: dict[tuple[ClientGroup, str], int] = field(default_factory=dict)
    """The round of these scores."""
    curves: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    """The accuracy over known clients, such as ``mean``, by evaluation point and round."""
    followed: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """Values over clients by training metric and round."""
    chosen: set[tuple[ClientGroup, str]] = field(default_factory=set)
    """Of which groups and points validation examples have chosen the models of the scores."""
    last_training: dict[str, dict[int, float]] = field(default_factory=dict)
    """Training metrics of the last round in which the client trained, by metric and client."""

    @property
    def split(self) -> str:
        """The digests of data and split; without them, a text that no other run has."""
        digests = [self.run.split.get(name) for name in ("data_sha256", "split_sha256")]
        return " ".join(map(str, digests)) if digests[1] else str(self.run.path)

    @cached_property
    def population(self) -> str:
        """What tells clients apart from those of other runs: the data and the names of the sites.

        Without names it is the split: client 3 of one split is not client 3 of another.
        """
        data = self.run.split.get("data_sha256")
        names = self.run.client_names
        return f"{data} {names}" if data and names else self.split

    def name_of(self, client: int) -> str:
        """Return the name of a client, or its number if it has none."""
        names = self.run.client_names
        return names[client] if 0 <= client < len(names) else str(client)

    def scores(self, point: str) -> dict[int, FinalScores]:
        """Return the scores of the known clients that have an accuracy at an evaluation point."""
        scores = self.all_scores.get(("known", point), {})
        return {client: one for client, one in scores.items() if "accuracy" in one.metrics}

    def metric(self, metric: str, point: str, group: ClientGroup = "known") -> MetricScores | None:
        """Return a metric of the final models; None if the run has not finished, or has it not."""
        scores = self.all_scores.get((group, point), {})
        final = (self.run.result or {}).get(_KEYS[group], {}).get(point)
        values = {
            client: one.metrics[metric]
            for client, one in sorted(scores.items())
            if metric in one.metrics
        }
        if final is None or not values:
            return None

        return MetricScores(
            round=self.rounds[group, point],
            adaptation=str(final.get("adaptation", "not recorded")),
            values=values,
            num_train={client: one.num_train for client, one in scores.items()},
            num_clients=max(len(scores), _size_of_group(self.run, group)),
        )


@dataclass(frozen=True)
class MethodRecords:
    """What reports show of one method."""

    method: Method
    seeds: dict[int, SeedRecords]

    @property
    def label(self) -> str:
        """The label of the method."""
        return self.method.label

    @cached_property
    def point(self) -> str:
        """The evaluation point that the method is judged by; empty before the first evaluation."""
        for point in POINTS:
            if any(seed.scores(point) for seed in self.seeds.values()):
                return point

        return ""

    def scores(self, point: str = "") -> Iterable[tuple[Unit, FinalScores]]:
        """Yield the scores of every client and seed, by default at the point of the method."""
        for seed in self.seeds.values():
            for client, scores in seed.scores(point or self.point).items():
                yield (seed.population, client), scores

    def accuracy(self, point: str = "") -> dict[Unit, float]:
        """Return the accuracy by client, the mean over seeds with the same split."""
        scores = self.scores(point)
        return mean_by_unit((unit, one.metrics["accuracy"]) for unit, one in scores)

    def num_train(self) -> dict[Unit, int]:
        """Return the number of training examples by client."""
        return {unit: scores.num_train for unit, scores in self.scores()}

    def training(self, metric: str) -> dict[Unit, float]:
        """Return a training metric by client, from the last round in which the client trained."""
        return mean_by_unit(
            ((seed.population, client), value)
            for seed in self.seeds.values()
            for client, value in seed.last_training.get(metric, {}).items()
        )


def mean_by_unit(values: Iterable[tuple[Unit, float]]) -> dict[Unit, float]:
    """Return the mean of the values that belong to one client."""
    by_unit: dict[Unit, list[float]] = {}
    for unit, value in values:
        by_unit.setdefault(unit, []).append(value)

    return {unit: mean(group) for unit, group in by_unit.items()}


def unit_names(records: Sequence[MethodRecords]) -> dict[Unit, str]:
    """Return the clients' names, or their numbers; with several splits, the split's number too.

    Sites have their names in all splits.
    """
    seeds = [seed for method in records for seed in method.seeds.values()]
    # Client 3 of one split is not client 3 of another.
    splits = list(dict.fromkeys(seed.population for seed in seeds))
    names: dict[Unit, str] = {}
    for seed in seeds:
        clients = set(range(len(seed.run.client_names)))
        clients.update(*seed.all_scores.values(), *seed.last_training.values())
        for client in clients:
            number = f" (split {splits.index(seed.population) + 1})" if len(splits) > 1 else ""
            names.setdefault((seed.population, client), f"{seed.name_of(client)}{number}")

    return names


def read_records(method: Method) -> MethodRecords:
    """Read what reports show of a method.

    Raises:
        DataError: a file is damaged.
    """
    return MethodRecords(method, {seed: _read_seed(run) for seed, run in method.runs.items()})


def _read_seed(run: RunRecords) -> SeedRecords:
    records = SeedRecords(run)
    with content_of(run.path / "rounds.jsonl"):
        for line in run.rounds:
            _add_round(records, line)

    with content_of(run.path / "result.json"):
        final_rounds = _rounds_of_final_models(run)

    with content_of(run.path / "clients.jsonl"):
        for line in run.iterate_clients():
            if line["point"] == "training":
                _add_training(records, line)
            elif line["test_set"] == "clients":
                _add_scores(records, line, final_rounds)

    _refuse_lost_lines(records, final_rounds)
    return records


def _refuse_lost_lines(
    records: SeedRecords, final_rounds: Mapping[tuple[ClientGroup, str], int]
) -> None:
    """Check that the files of a finished run have as many rounds and scores as its result says.

    Raises:
        DataError: lines were lost, such as in a copy.
    """
    run = records.run
    # Joint records of folds have no rounds, and sums of sites no single scores.
    if run.result is None or "folds" in run.result or run.is_across_sites:
        return

    rounds = int(run.result.get("rounds", 0))
    done = max((int(line["round"]) for line in run.rounds), default=0)
    if done < rounds:
        raise damaged(run.path / "rounds.jsonl", f"it has {done} of {rounds} rounds")

    for (group, point), round in final_rounds.items():
        evaluation = run.result[_KEYS[group]][point]
        scored = int(evaluation.get("clients", {}).get("evaluated", 0))
        found = len(records.all_scores.get((group, point), {}))
        if found < scored:
            reason = f"it has the scores of {found} of {scored} clients after round {round}"
            raise damaged(run.path / "clients.jsonl", reason)


def _rounds_of_final_models(run: RunRecords) -> dict[tuple[ClientGroup, str], int]:
    """Return the round of the final models by group and point; empty for an unfinished run."""
    rounds = {}
    for group, key in _KEYS.items():
        evaluations = (run.result or {}).get(key, {})
        for point in POINTS.keys() & evaluations.keys():
            rounds[group, point] = int(evaluations[point]["round"])

    return rounds


def _add_round(records: SeedRecords, line: Mapping[str, Any]) -> None:
    """Add the accuracies of a line of ``rounds.jsonl`` to the curves."""
    for evaluation in line.get("evaluations", ()):
        accuracy = evaluation["metrics"].get("accuracy", {})
        is_of_known = evaluation["test_set"] == "clients" and evaluation["group"] == "known"
        if is_of_known and number(accuracy.get("mean")) is not None:
            curve = records.curves.setdefault(str(evaluation["point"]), {})
            curve[int(line["round"])] = accuracy


def _add_scores(
    records: SeedRecords,
    line: Mapping[str, Any],
    final_rounds: Mapping[tuple[ClientGroup, str], int],
) -> None:
    """Add the scores of a line of ``clients.jsonl``, if they are those of the final models.

    As long as a run has not finished, the latest models count.
    """
    key = (line["group"], str(line["point"]))
    round_number = int(line["round"])
    is_chosen = line.get("final") is True
    if is_chosen and key not in final_rounds:  # left by a run that was killed at its end
        return

    if round_number != final_rounds.get(key, round_number):
        return

    # The first line of a later round: what earlier rounds left is of older models.
    if records.rounds.get(key, 0) < round_number:
        records.all_scores[key] = {}
        records.rounds[key] = round_number

    # What was evaluated when the round was made counts no more.
    if is_chosen and key not in records.chosen:
        records.all_scores[key] = {}
        records.chosen.add(key)

    client = _whole(line, "client")
    if client in records.all_scores[key]:
        raise ValueError(f"client {client} has two lines of '{key[1]}' after {round_number}")

    diagnostics = {name: number(value) for name, value in line.get("diagnostics", {}).items()}
    records.all_scores[key][client] = FinalScores(
        metrics={
            name: _metric(line, name) for name in CLIENT_METRICS if line.get(name) is not None
        },
        num_train=_whole(line, "num_train"),
        condition=str(line.get("condition", "")),
        bins=[[float(value) for value in row] for row in line.get("bins", ())],
        diagnostics={str(name): value for name, value in diagnostics.items() if value is not None},
    )


def _add_training(records: SeedRecords, line: Mapping[str, Any]) -> None:
    """Add the training metrics of a client in a round."""
    client = int(line["client"])
    for name, value in line.get("training_metrics", {}).items():
        measured = number(value)
        if measured is None:
            continue

        records.last_training.setdefault(str(name), {})[client] = measured
        if name in FOLLOWED:
            by_round = records.followed.setdefault(name, {})
            by_round.setdefault(int(line["round"]), []).append(measured)


def _whole(line: Mapping[str, Any], name: str) -> int:
    value = line[name]
    if type(value) is not int:
        raise ValueError(f"'{name}' is {value!r:.40}")

    return value


def _metric(line: Mapping[str, Any], name: str) -> float:
    value = line[name]

    # A comparison of a huge integer with a float is exact, and one with NaN is false.
    if type(value) not in (int, float) or not abs(value) <= _LARGEST:
        raise ValueError(f"'{name}' of client {line['client']} is {value!r:.40}")

    return float(value)


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)

    return None


def _size_of_group(run: RunRecords, group: ClientGroup) -> int:
    """Return the number of clients of a group in the split; 0 if it is not known."""
    clients = run.split.get("clients")
    num_new = run.split.get("new_clients", 0)
    if not isinstance(clients, list) or type(num_new) is not int:
        return 0
    if not 0 <= num_new <= len(clients):
        return 0

    return num_new if group == "new" else len(clients) - num_new


def training_counts(run: RunRecords) -> tuple[dict[int, dict[int, int]], list[str]]:
    """Return the training examples by client and class, and class names, from model cards."""
    counts: dict[int, dict[int, int]] = {}
    class_names: list[str] = []
    for path in sorted((run.path / "models").glob("*.json")):
        # Cards are an addition to a report: one that cannot be read is left out.
        try:
            card = read_object(path, within=run.path)
        except DataError:
            continue

        match card:
            case {"number": int(client), "class_counts": [*numbers]} if all(
                isinstance(one, int) for one in numbers
            ):
                counts[client] = {label: count for label, count in enumerate(numbers) if count > 0}
                class_names = [str(name) for name in card.get("class_names") or ()]

    return dict(sorted(counts.items())), class_names
