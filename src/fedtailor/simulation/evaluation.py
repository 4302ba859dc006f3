"""The evaluations of a round: the global model, and every client's personal model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.engine import Failure
from fedtailor.core.federation import Roster
from fedtailor.core.metrics import ClientGroup, per_client
from fedtailor.core.scores import ReportSums, Scores
from fedtailor.simulation.clients import Clients
from fedtailor.simulation.programs import PersonalizeRequest, ScoreRequest
from fedtailor.simulation.quarantine import refuse_total_failure
from fedtailor.simulation.report import (
    NOBODY,
    Absences,
    Evaluation,
    RoundReport,
    Selection,
    Stage,
    add_event,
    add_failure,
    add_sum_problem,
    all_steps,
    record,
)

R = TypeVar("R")


class Evaluator:
    """Has the clients of a run score models, and enters the scores into reports."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        roster: Roster,
        clients: Clients,
        absences: Absences,
    ) -> None:
        self.algorithm = algorithm
        self.roster = roster
        self.clients = clients
        self.absences = absences
        self.members: frozenset[int] | None = None
        """The clients that take part at the moment; None: all."""
        self.groups: dict[ClientGroup, range] = {"known": roster.known}
        if roster.num_new:
            self.groups["new"] = roster.new

    def present(self, group: ClientGroup) -> list[int]:
        """Return the clients of a group that take part at the moment."""
        members = self.members
        return [client for client in self.groups[group] if members is None or client in members]

    def score_global(self, report: RoundReport, model: Any, *, rank: bool, final: bool) -> None:
        """Score a global model on every client's test examples, and on the complete test part.

        Args:
            report: of the round; evaluations and events are added.
            model: the global model.
            rank: whether the scores hold what AUROC needs.
            final: whether it is the model that the run gives.
        """
        request = ScoreRequest(rank=rank, final=final)
        for group in self.groups:
            ask = partial(self.clients.score, request, model, round=report.round)
            scores: dict[int, Scores] = {}
            sums = ReportSums()
            answers: Iterator[tuple[int, Scores | ReportSums]] = self._answers(
                report, "evaluate", group, ask
            )
            for client, reply in answers:
                if isinstance(reply, ReportSums):
                    sums = reply
                else:
                    scores[client] = reply

            add_sum_problem(report, "evaluate", sums)
            summed = sums.scores.get("clients")
            report.evaluations.append(Evaluation("global", "none", group, scores, sums=summed))

        self._score_complete(report, request, model)

    def _score_complete(self, report: RoundReport, request: ScoreRequest, model: Any) -> None:
        """Score a global model on the complete test part, if there is one."""

        def ask(present: Sequence[int]) -> Iterator[tuple[int, Scores | Failure]]:
            scores = self.clients.score_complete(request, model, report.round) if present else None
            if scores is not None:
                yield NOBODY, scores

        stage: Stage = "evaluate on the complete test part"
        for client, scores in self.absences.ask(report, stage, [NOBODY], ask):
            if isinstance(scores, Failure):
                add_failure(report, client, stage, scores)
            else:
                evaluation = Evaluation("global", "none", "known", {client: scores}, "complete")
                report.evaluations.append(evaluation)

    def score_personalized(
        self, report: RoundReport, group: ClientGroup, shared: Any, *, keep: bool, rank: bool
    ) -> None:
        """Have the clients of a group make and score their personal models.

        Args:
            report: of the round; evaluations and events are added, and gradient steps if the models
                are kept.
            group: of clients.
            shared: what they receive.
            keep: whether they keep their models.
            rank: whether the scores hold what AUROC needs.
        """
        new = group == "new"
        request = PersonalizeRequest(new=new, validate=self.roster.validates, keep=keep, rank=rank)
        diagnostics: dict[str, dict[int, float]] = {}

        test_sets: dict[Literal["clients", "validation"], dict[int, Scores]] = {"clients": {}}
        if self.roster.validates:
            test_sets["validation"] = {}

        sums = ReportSums()
        ask = partial(self.clients.personalize, request, shared, round=report.round)
        for client, reply in self._answers(report, "personalize", group, ask):
            sums = reply.sums or sums
            record(diagnostics, client, reply.diagnostics)
            if reply.problem:
                add_event(report, "failed", client, f"personalize: {reply.problem}")

            # Some sites do not share scores.
            for test_set, scores in test_sets.items():
                if test_set in reply.scores:
                    scores[client] = reply.scores[test_set]

        # Only the models that are kept are part of the run's work.
        add_sum_problem(report, "personalize", sums)
        if keep:
            report.steps += all_steps(diagnostics, sums.numbers)

        for test_set, scores in test_sets.items():
            evaluation = Evaluation(
                point="personalized",
                adaptation=self.algorithm.adaptation_summary(new=new),
                group=group,
                scores=scores,
                test_set=test_set,
                diagnostics=diagnostics,
                sums=sums.scores.get(test_set),
            )
            report.evaluations.append(evaluation)

    def _answers(
        self,
        report: RoundReport,
        stage: Stage,
        group: ClientGroup,
        ask: Callable[[Sequence[int]], Iterable[tuple[int, R | Failure]]],
    ) -> Iterator[tuple[int, R]]:
        """Yield the answers of clients that did not fail. A failure becomes an event.

        If all known clients fail, the program is at fault. New ones may be few, and a run without
        their scores is still of use.
        """
        ids = self.present(group)
        failed = []
        for client, reply in self.absences.ask(report, stage, ids, ask):
            if isinstance(reply, Failure):
                add_failure(report, client, stage, reply)
                failed.append((client, reply))
            else:
                yield client, reply

        if group == "known":
            refuse_total_failure(failed, len(ids), stage, report.round, self.roster)


class ValidationAccuracy(NamedTuple):
    """How well the personalized models of the known clients do on validation examples."""

    mean: float
    by_client: Mapping[int, float]
    """Empty if only the mean is known."""

    def is_above(self, best: Selection) -> bool:
        """Return whether it is above that of the best round so far.

        Only clients that were scored in both rounds count: a mean also rises if a client with a low
        accuracy is away.
        """
        if not self.by_client or not best.by_client:
            return self.mean > best.accuracy

        common = self.by_client.keys() & best.by_client.keys()
        gains = [self.by_client[client] - best.by_client[client] for client in common]
        return math.fsum(gains) > 0


def validation_accuracy(report: RoundReport) -> ValidationAccuracy | None:
    """Return the accuracy of personalized models on validation examples, or None.

    It is that of the known clients; None: there is no such model.

    Test examples are not used: this decides which round is selected, and when a run stops.
    """
    accuracies = {}
    for evaluation in report.evaluations:
        if evaluation.test_set != "validation" or evaluation.group != "known":
            continue

        summed = evaluation.only_sums
        if summed is not None:
            accuracy = summed.figures["accuracy"]
            return ValidationAccuracy(accuracy.mean, {}) if accuracy.clients else None

        for client, scores in evaluation.scores.items():
            figures = per_client(scores)
            if figures:
                accuracies[client] = figures["accuracy"]

    if not accuracies:
        return None
    return ValidationAccuracy(math.fsum(accuracies.values()) / len(accuracies), accuracies)
