"""What reports read of runs: curves, and the scores of clients. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fedtailor.core.errors import DataError
from fedtailor.core.reading import damaged, read_object
from fedtailor.experiment.reader import RunRecords
from fedtailor.report.methods import Method

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

Group = Literal["known", "new"]
_PLACES: Mapping[Group, str] = {"known": "metrics", "new": "new_clients"}
"""Where a result holds the evaluations of known and of new clients."""
Unit = tuple[str, int]
"""A client of a split: the digest of the split, and the client's number. Runs with one split share
their clients."""


@dataclass(frozen=True)
class FinalScores:
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
class Evaluation:
    """An evaluation of all known clients."""

    mean: float
    worst_tenth: float | None


@dataclass(frozen=True)
class SeedRecords:
    """What figures show of one run."""

    run: RunRecords
    scores: dict[str, dict[int, FinalScores]] = field(default_factory=dict)
    """By evaluation point and client."""
    rounds: dict[str, int] = field(default_factory=dict)
    """The round of these scores, by evaluation point."""
    curves: dict[str, dict[int, Evaluation]] = field(default_factory=dict)
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
        names = self.run.split.get("client_names")
        return [str(name) for name in names] if isinstance(names, list) else []

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
        for point in POINTS:
            if any(point in seed.scores for seed in self.seeds.values()):
                return point

        return ""

    def scores(self, point: str = "") -> Iterable[tuple[Unit, FinalScores]]:
        """Yield the scores of every client and seed, by default at the point of the method."""
        for seed in self.seeds.values():
            for client, scores in seed.scores.get(point or self.point, {}).items():
                yield (seed.split, client), scores

    def accuracy(self, point: str = "") -> dict[Unit, float]:
        """Return the accuracy by client, the mean over seeds with the same split."""
        return mean_by_unit((unit, scores.accuracy) for unit, scores in self.scores(point))

    def num_train(self) -> dict[Unit, int]:
        """Return the number of training examples by client."""
        return {unit: scores.num_train for unit, scores in self.scores()}

    def training(self, metric: str) -> dict[Unit, float]:
        """Return a training metric by client, from the last round in which the client trained."""
        return mean_by_unit(
            ((seed.split, client), value)
            for seed in self.seeds.values()
            for client, value in seed.last_training.get(metric, {}).items()
        )


def mean_by_unit(values: Iterable[tuple[Unit, float]]) -> dict[Unit, float]:
    """Return the mean of the values that belong to one client."""
    by_unit: dict[Unit, list[float]] = {}
    for unit, value in values:
        by_unit.setdefault(unit, []).append(value)

    return {unit: math.fsum(group) / len(group) for unit, group in by_unit.items()}


def unit_names(records: Sequence[MethodRecords]) -> dict[Unit, str]:
    """Return the clients' names, or their numbers; with several splits, the split's number too."""
    seeds = [seed for method in records for seed in method.seeds.values()]
    splits = list(dict.fromkeys(seed.split for seed in seeds))
    names: dict[Unit, str] = {}
    for seed in seeds:
        clients = set(range(len(seed.client_names)))
        clients.update(*seed.scores.values(), *seed.last_training.values())
        for client in clients:
            number = f" (split {splits.index(seed.split) + 1})" if len(splits) > 1 else ""
            names.setdefault((seed.split, client), f"{seed.name_of(client)}{number}")

    return names


def read_records(method: Method) -> MethodRecords:
    """Read what figures show of a method.

    Raises:
        DataError: a file is damaged.
    """
    return MethodRecords(method, {seed: _read_seed(run) for seed, run in method.runs.items()})


def _read_seed(run: RunRecords) -> SeedRecords:
    records = SeedRecords(run)
    place = run.path / "rounds.jsonl"
    try:
        for line in run.rounds:
            _add_round(records, line)

        place = run.path / "clients.jsonl"
        last_rounds = _rounds_of_final_models(run)
        for line in run.iterate_clients():
            _add_client(records, line, last_rounds)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as reason:
        message = f"a line has another form than expected ({type(reason).__name__})"
        raise damaged(place, message) from reason

    return records


def _rounds_of_final_models(run: RunRecords) -> dict[str, int]:
    """Return the round of the final models by evaluation point; empty for an unfinished run."""
    metrics = (run.result or {}).get("metrics", {})

    return {
        point: int(metrics[point]["round"]) for point in POINTS if "round" in metrics.get(point, {})
    }


def _add_round(records: SeedRecords, line: Mapping[str, Any]) -> None:
    """Add the curves of a line of ``rounds.jsonl``."""
    for evaluation in line.get("evaluations", ()):
        accuracy = evaluation["metrics"].get("accuracy", {})
        mean = number(accuracy.get("mean"))
        if _is_of_known_clients(evaluation) and mean is not None:
            curve = records.curves.setdefault(str(evaluation["point"]), {})
            curve[int(line["round"])] = Evaluation(mean, number(accuracy.get("worst10")))


def _add_client(
    records: SeedRecords, line: Mapping[str, Any], last_rounds: Mapping[str, int]
) -> None:
    """Add a line of ``clients.jsonl``: training metrics, or scores that no later ones replace."""
    point = str(line["point"])
    if point == "training":
        _add_training(records, line)
        return

    # Scores after the round that gave the final models do not count, nor do those of new clients.
    round_number = int(line["round"])
    accuracy = number(line.get("accuracy"))
    is_too_late = round_number > last_rounds.get(point, round_number)
    if is_too_late or accuracy is None or not _is_of_known_clients(line):
        return

    if records.rounds.get(point, 0) < round_number:
        records.scores[point] = {}
        records.rounds[point] = round_number

    diagnostics = {name: number(value) for name, value in line.get("diagnostics", {}).items()}
    records.scores[point][int(line["client"])] = FinalScores(
        accuracy=accuracy,
        num_train=int(line.get("num_train", 0)),
        num_test=int(line.get("num_test", 0)),
        condition=str(line.get("condition", "")),
        bins=[[float(value) for value in row] for row in line.get("bins", ())],
        class_counts=_class_counts(line.get("confusion", ())),
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


def _is_of_known_clients(line: Mapping[str, Any]) -> bool:
    return line.get("test_set") == "clients" and line.get("group") == "known"


def _class_counts(confusion: Iterable[Sequence[float]]) -> dict[int, int]:
    """Return the examples by class from triples of class, prediction and examples."""
    counts: dict[int, int] = {}
    for label, _, examples in confusion:
        counts[int(label)] = counts.get(int(label), 0) + round(examples)

    return counts


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)

    return None


def training_counts(run: RunRecords) -> tuple[dict[int, dict[int, int]], list[str]]:
    """Return the training examples by client and class, and class names, from model cards."""
    counts: dict[int, dict[int, int]] = {}
    class_names: list[str] = []
    for path in sorted((run.path / "models").glob("*.json")):
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


def read_scores(
    run: RunRecords, *, point: str, metric: str, group: Group = "known"
) -> MetricScores | None:
    """Return the scores of the clients of a finished run; None if it has none at the point.

    A client has no value if it has no test examples, if its evaluation failed, or if its loss is
    infinite.

    Args:
        run: of one seed.
        point: one of ``POINTS``.
        metric: a name of :data:`fedtailor.core.metrics.CLIENT_METRICS`.
        group: known clients, or those that never took part in training.

    Raises:
        DataError: the records are damaged.
    """
    final = _final_evaluation(run, point, group)
    if final is None:
        return None

    round_number = final.get("round")
    if type(round_number) is not int:
        raise damaged(run.path / "result.json", f"the evaluation '{point}' has no round")

    # The lines of the clients, one each.
    place = {"point": point, "test_set": "clients", "group": group}
    lines: dict[int, Mapping[str, Any]] = {}
    for line in run.clients_of_round(round_number):
        if not place.items() <= line.items():
            continue

        client = _whole(line, "client", run)
        if client in lines:
            message = f"a client has two lines of '{point}' after round {round_number}"
            raise damaged(run.path / "clients.jsonl", message)

        lines[client] = line

    values = {client: _value(line, metric, run) for client, line in sorted(lines.items())}
    return MetricScores(
        round=round_number,
        adaptation=str(final.get("adaptation", "not recorded")),
        values={client: value for client, value in values.items() if value is not None},
        num_train={client: _whole(line, "num_train", run) for client, line in lines.items()},
        num_clients=max(len(lines), _size_of_group(run, group)),
    )


def _final_evaluation(run: RunRecords, point: str, group: Group) -> Mapping[str, Any] | None:
    """Return the record of an evaluation in the result; None if there is none."""
    evaluations = (run.result or {}).get(_PLACES[group], {})
    final = evaluations.get(point) if isinstance(evaluations, Mapping) else None
    if final is not None and not isinstance(final, Mapping):
        raise damaged(run.path / "result.json", f"the evaluation '{point}' is no table")

    return final


def _size_of_group(run: RunRecords, group: Group) -> int:
    """Return the number of clients of a group in the split; 0 if it is not known."""
    clients = run.split.get("clients")
    num_new = run.split.get("new_clients", 0)
    if not isinstance(clients, list) or type(num_new) is not int:
        return 0

    if not 0 <= num_new <= len(clients):
        return 0

    return num_new if group == "new" else len(clients) - num_new


def _whole(line: Mapping[str, Any], name: str, run: RunRecords) -> int:
    """Return a whole number of a line."""
    value = line.get(name)
    if type(value) is not int:
        raise _not_a_number(run, line, name)

    return value


def _value(line: Mapping[str, Any], metric: str, run: RunRecords) -> float | None:
    """Return the value of a metric; None if the client has none."""
    value = line.get(metric)
    if value is None:
        return None

    # A comparison of a huge integer with a float is exact, and one with NaN is false.
    if type(value) not in (int, float) or not abs(value) <= _LARGEST:
        raise _not_a_number(run, line, metric)

    return float(value)


def _not_a_number(run: RunRecords, line: Mapping[str, Any], name: str) -> DataError:
    where = (
        f"in the line of client {line.get('client')!r:.40} after round {line.get('round')!r:.40}"
    )
    return damaged(run.path / "clients.jsonl", f"'{name}' is {line.get(name)!r:.40} {where}")
