"""A cross-validation at each client: a run per fold, and all test examples put together.

The folder of a seed holds ``fold-1``, ``fold-2`` and so on, each the folder of an ordinary run, and
reads as a run itself: its predictions are those of all folds, its scores are computed from them,
and every example was tested once. It has no models, because no fold has seen all examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor.core.federation import Roster
from fedtailor.core.metrics import ClientGroup, Point
from fedtailor.core.scores import Scores, score, total
from fedtailor.data.build import split_record
from fedtailor.data.division import divide
from fedtailor.data.split import SplitRecord
from fedtailor.experiment import summary
from fedtailor.experiment.assembly import PreparedRun
from fedtailor.experiment.config import Config, with_fold
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.predictions import (
    PREDICTIONS_FILE,
    ClientPredictions,
    read_predictions,
    write_predictions,
)
from fedtailor.experiment.reader import read_result
from fedtailor.privacy import claims
from fedtailor.simulation.report import Evaluation, RoundReport, RunState

_POINTS: tuple[Point, ...] = ("global", "personalized")
"""Of which there are predictions."""
_FACTS = ("algorithm", "dataset", "clients", "seeds", "engine", "device")
"""What the result says of a run as those of its folds do."""


class FinishedFold(NamedTuple):
    """What is read of the run of a fold."""

    result: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    """The lines of ``rounds.jsonl``."""
    roster: Roster
    predictions: Mapping[int, ClientPredictions]


def split_of_all_folds(first: PreparedRun) -> SplitRecord:
    """Return the split in which every example is a test example, fold by fold.

    Args:
        first: the run of any fold.
    """
    division = divide(
        with_fold(first.config, 0).data,
        run_seed=first.config.seeds[0],
        dataset=first.divided.division.dataset,
        late=first.config.schedule.late,
    )
    return split_record(division, first.divided.conditions)


def read_fold(path: Path, roster: Roster) -> FinishedFold:
    """Return the finished run of a fold, as it was written: a loss that is not finite is null."""
    return FinishedFold(
        result=read_result(path) or {},
        rounds=list(RunFolder(path).rounds()),
        roster=roster,
        predictions=read_predictions(path / PREDICTIONS_FILE),
    )


def join_folds(
    folds: Sequence[FinishedFold], config: Config, split: SplitRecord, folder: RunFolder
) -> dict[str, Any]:
    """Write predictions and scores of all folds together, and return the result."""
    predictions = join_predictions([fold.predictions for fold in folds])
    write_predictions(folder.path / PREDICTIONS_FILE, predictions)

    # Rounds as they were on average, but for the scores after the last one.
    roster = _roster_of_all(folds)
    *lines, last = _mean_rounds([fold.rounds for fold in folds])
    for line in lines:
        folder.add_round(line)

    # Scores of all test examples of a client, by the models that the folds give.
    results = [fold.result for fold in folds]
    selected = None
    final_round = last["round"]
    if "selected" in results[0]:
        selected = summary.selected_rounds(results)
        final_round = max(selected["rounds"])

    report = RoundReport(
        round=final_round,
        cohort=last["cohort"],
        state=RunState(server=()),
        evaluations=_evaluations(folds, predictions, roster),
        is_last=True,
    )
    if config.schedule.select == "last":
        last["evaluations"] = summary.round_record(report, roster)["evaluations"]

    folder.add_round(last, clients=summary.client_records(report, roster))

    schedule = dataclasses.replace(config.schedule, select="last", patience=0)
    facts = {name: folds[0].result[name] for name in _FACTS}
    facts |= {"split_sha256": split["split_sha256"], "folds": len(folds)}
    joint = summary.result(report, roster, schedule)
    result = {"run": str(folder.path), **facts, **joint, **_totals(folds)}
    result["rounds"] = last["round"]
    if selected is not None:
        result["selected"] = selected
    if all("validation" in fold.result["metrics"] for fold in folds):
        result["metrics"]["validation"] = _mean_validation(folds)
    if "majority_accuracy" in result:
        result["majority_accuracy"] = _majority_accuracy(folds)
    result |= claims.promises_of([fold.result for fold in folds])
    points = operating_points(folds)
    if points:
        result["operating_points"] = points
    return result


def _mean_rounds(folds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a line for every round: means of what was measured, sums of what it took.

    A fold that stopped early has no part in later rounds.
    """
    rounds = []
    for number in range(max(map(len, folds))):
        lines = [fold[number] for fold in folds if number < len(fold)]
        totals = summary.Totals()
        for line in lines:
            totals.add_round(line)

        metrics = [{"training_metrics": line["training_metrics"]} for line in lines]
        rounds.append(
            {
                "round": number + 1,
                "cohort": lines[0]["cohort"],
                **summary.average(metrics),
                **{name: totals.record[name] for name in ("steps", "bytes", "seconds")},
                "evaluations": _mean_evaluations(lines),
            }
        )

    return rounds


def _mean_evaluations(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean of every evaluation over the folds that have it, in one round."""
    by_labels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        for evaluation in line["evaluations"]:
            labels = (summary.evaluation_name(evaluation), evaluation["group"])
            by_labels.setdefault(labels, []).append(evaluation)

    return [summary.average(same) for same in by_labels.values()]


def _mean_validation(folds: Sequence[FinishedFold]) -> dict[str, Any]:
    """Return the mean over folds of the scores on validation examples."""
    scores = [{"validation": fold.result["metrics"]["validation"]} for fold in folds]
    means: dict[str, Any] = summary.average(scores)["validation"]
    for figures in means.values():
        # Folds share most of their training examples, so this is no standard error.
        if isinstance(figures, dict):
            figures.pop("sem", None)

    return means


def operating_points(folds: Sequence[FinishedFold]) -> dict[str, Any]:
    """Return what the thresholds of all folds reach together on test examples, by client.

    Every fold has a threshold of its own, so there is no threshold of all.
    """
    joint: dict[str, Any] = {}
    for fold in folds:
        for name, point in fold.result.get("operating_points", {}).items():
            start = {**point, "probability": None, "log_odds": None, "test": None, "folds": 0}
            record = joint.setdefault(name, start)
            record["positives"] = min(record["positives"], point["positives"])
            record["problem"] = record["problem"] or point["problem"]
            if point["probability"] is None:
                continue

            record["folds"] += 1
            if point["test"] is not None:
                sums = record["test"] or dict.fromkeys(point["test"], 0)
                record["test"] = {key: sums[key] + count for key, count in point["test"].items()}

    return joint


def _majority_accuracy(folds: Sequence[FinishedFold]) -> float:
    """Return the mean accuracy of always predicting the most frequent training class of the fold.

    It is over the known clients with test examples.
    """
    accuracies = []
    for client in folds[0].roster.known:
        right = []
        for fold in folds:
            if client in fold.predictions:
                right.append(fold.predictions[client].labels == fold.roster.majority[client])
        if right:
            accuracies.append(float(np.concatenate(right).mean()))

    return float(np.mean(accuracies))


def _totals(folds: Sequence[FinishedFold]) -> dict[str, Any]:
    """Return what all folds together took, and what happened in them."""
    totals = summary.Totals()
    for fold in folds:
        totals.add_round(fold.result)

    record = totals.record
    record["seconds"]["total"] = sum(fold.result["seconds"]["total"] for fold in folds)
    for kind in record["events"]:
        record["events"][kind] = sum(fold.result["events"][kind] for fold in folds)

    return record


def join_predictions(
    folds: Iterable[Mapping[int, ClientPredictions]],
) -> dict[int, ClientPredictions]:
    """Return the predictions of all folds together, of the models that every fold has.

    Args:
        folds: predictions by client; a client without test examples in a fold is left out there.
    """
    parts_of: dict[int, list[ClientPredictions]] = {}
    for fold in folds:
        for client, predictions in fold.items():
            parts_of.setdefault(client, []).append(predictions)

    joint = {}
    for client, parts in sorted(parts_of.items()):
        models = set.intersection(*(set(part.probabilities) for part in parts))
        groups = [part.groups for part in parts if part.groups is not None]
        joint[client] = ClientPredictions(
            positions=np.concatenate([part.positions for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            probabilities={
                model: np.concatenate([part.probabilities[model] for part in parts])
                for model in sorted(models)
            },
            groups=np.concatenate(groups) if groups else None,
        )

    return joint


def score_folds(folds: Sequence[FinishedFold], client: int, model: str) -> Scores:
    """Return the scores of the models of all folds: pairs of examples are those within a fold.

    Two models may call other probabilities high, so what one says of an example ranks above
    nothing that another one says.
    """
    parts = [fold.predictions[client] for fold in folds if client in fold.predictions]
    return total([_score_predictions(part, model) for part in parts])


def _score_predictions(predictions: ClientPredictions, model: str) -> Scores:
    """Return the scores of what a model says about the test examples of a client."""
    probabilities = torch.from_numpy(predictions.probabilities[model])
    # One that is too small for 32 bits was written as 0, and its logarithm is finite.
    probabilities = probabilities.clamp_min(torch.finfo(torch.float32).tiny).double()
    labels = torch.from_numpy(predictions.labels)
    # Log-probabilities are logits; all examples count.
    count = torch.ones(len(labels))
    return score(probabilities.log(), labels, count, probabilities.shape[1])


def _evaluations(
    folds: Sequence[FinishedFold],
    predictions: Mapping[int, ClientPredictions],
    roster: Roster,
) -> list[Evaluation]:
    """Return the scores of all points and groups of clients that have predictions.

    Args:
        folds: the first one says how models were adapted.
        predictions: of all folds together.
        roster: the clients.
    """
    result = folds[0].result
    groups: dict[ClientGroup, tuple[range, Mapping[str, Any]]] = {
        "known": (roster.known, result["metrics"]),
        "new": (roster.new, result.get("new_clients", {})),
    }
    evaluations = []
    for group, (members, metrics) in groups.items():
        for point in _POINTS:
            clients = [
                client
                for client in members
                if client in predictions and point in predictions[client].probabilities
            ]
            if clients and point in metrics:
                scores = {client: score_folds(folds, client, point) for client in clients}
                adaptation = str(metrics[point]["adaptation"])
                evaluations.append(Evaluation(point, adaptation, group, scores))

    return evaluations


def _roster_of_all(folds: Sequence[FinishedFold]) -> Roster:
    """Return the clients with all their test examples, and training examples of a mean fold."""
    rosters = [fold.roster for fold in folds]
    num_train = np.mean([roster.num_train for roster in rosters], axis=0)
    num_test = np.sum([roster.num_test for roster in rosters], axis=0)

    # No fold divides a group.
    test_groups: list[int] = []
    if rosters[0].test_groups:
        test_groups = np.sum([roster.test_groups for roster in rosters], axis=0).tolist()

    return dataclasses.replace(
        rosters[0],
        num_train=np.rint(num_train).astype(int).tolist(),
        num_test=num_test.tolist(),
        test_groups=test_groups,
    )
