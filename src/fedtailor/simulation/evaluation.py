"""The evaluations of a round: the global model, and every client's personal model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Failure
from fedtailor.core.federation import Roster
from fedtailor.core.metrics import per_client
from fedtailor.core.scores import Scores
from fedtailor.simulation.clients import Clients
from fedtailor.simulation.programs import PersonalizeRequest, ScoreRequest
from fedtailor.simulation.quarantine import refuse_total_failure
from fedtailor.simulation.report import (
    Evaluation,
    RoundReport,
    Stage,
    add_event,
    add_failure,
    record,
    whole_sum,
)

R = TypeVar("R")


def evaluate_global(
    report: RoundReport, roster: Roster, clients: Clients, model: Any, *, rank: bool
) -> None:
    """Score a global model on every client's test examples.

    And on the complete test part, if there is one.
    """
    request = ScoreRequest(rank=rank)
    _score_global(report, request, clients, model, roster.known, new=False)
    if roster.num_new:
        _score_global(report, request, clients, model, roster.new, new=True)

    complete = clients.score_complete(request, model, report.round)
    if isinstance(complete, Failure):
        add_failure(report, -1, "evaluate on the complete test part", complete)
    elif complete is not None:
        report.evaluations.append(Evaluation("global", "none", "known", [], [complete], "complete"))


def _score_global(
    report: RoundReport,
    request: ScoreRequest,
    clients: Clients,
    model: Any,
    ids: Sequence[int],
    *,
    new: bool,
) -> None:
    """Score a global model on the test examples of the known clients, or of the new ones."""
    replies = clients.score(request, model, ids, report.round)
    scores = dict(_without_failures(report, replies, len(ids), "evaluate"))
    group: Literal["known", "new"] = "new" if new else "known"
    report.evaluations.append(
        Evaluation("global", "none", group, list(scores), list(scores.values()))
    )


def evaluate_personalized(
    report: RoundReport,
    algorithm: Algorithm[Any, Any, Any],
    roster: Roster,
    clients: Clients,
    shared: Any,
    *,
    new: bool,
    keep: bool,
    rank: bool,
) -> None:
    """Personalize and score the known clients, or the new ones.

    Args:
        report: of the round; evaluations and events are added, and gradient steps if the models are
            kept.
        algorithm: what is run.
        roster: who there is.
        clients: of the run.
        shared: what these clients receive.
        new: whether to take the clients that never take part in training, in place of the known
            ones.
        keep: whether clients keep their models.
        rank: whether the scores hold what AUROC needs.
    """
    ids = roster.new if new else roster.known
    request = PersonalizeRequest(new=new, validate=roster.validates, keep=keep, rank=rank)
    replies = clients.personalize(request, shared, ids, report.round)
    diagnostics: dict[str, dict[int, float]] = {}
    scored: dict[int, dict[str, Scores]] = {}
    num_required = 0 if new else len(ids)

    for client, reply in _without_failures(report, replies, num_required, "personalize"):
        record(diagnostics, client, reply.diagnostics)
        scored[client] = reply.scores
        if reply.problem:
            add_event(report, "failed", client, f"personalize: {reply.problem}")

    if keep:
        report.steps += whole_sum(diagnostics.get("steps", {}))

    test_sets: list[Literal["clients", "validation"]] = ["clients"]
    if roster.validates:
        test_sets.append("validation")

    for test_set in test_sets:
        scores = {
            client: each[test_set] for client, each in scored.items() if test_set in each
        }  # some share none
        evaluation = Evaluation(
            point="personalized",
            adaptation=algorithm.adaptation_summary(new=new),
            group="new" if new else "known",
            ids=list(scores),
            scores=list(scores.values()),
            test_set=test_set,
            diagnostics=diagnostics,
        )
        report.evaluations.append(evaluation)


def validation_accuracy(report: RoundReport) -> float | None:
    """Return the mean accuracy of personalized models on validation examples, or None.

    It is that of the known clients; None: there is no such model.

    Test examples are not used: this decides which round is selected, and when a run stops.
    """
    accuracies = [
        figures["accuracy"]
        for evaluation in report.evaluations
        if evaluation.test_set == "validation" and evaluation.group == "known"
        for figures in map(per_client, evaluation.scores)
        if figures
    ]
    return math.fsum(accuracies) / len(accuracies) if accuracies else None


def _without_failures(
    report: RoundReport, replies: Iterable[tuple[int, R | Failure]], num_required: int, stage: Stage
) -> Iterator[tuple[int, R]]:
    """Yield the replies of clients that did not fail. A failure becomes an event.

    If so many fail that none is left of a required number, the program is at fault. New clients are
    not required: they may be few, and a run without their scores is still of use.
    """
    failed = []
    for client, reply in replies:
        if isinstance(reply, Failure):
            add_failure(report, client, stage, reply)
            failed.append((client, reply))
        else:
            yield client, reply
    refuse_total_failure(failed, num_required, stage, report.round)
