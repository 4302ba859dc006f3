"""The server of a run: what it asks of clients, what it accepts of their answers, and its state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.codec import compact
from fedtailor.core.devices import HOST
from fedtailor.core.engine import Failure, NoAnswer
from fedtailor.core.federation import Cohort, Roster
from fedtailor.core.history import KEY, ChangeKind, History
from fedtailor.core.message import (
    Field,
    Mean,
    Messages,
    Received,
    Reduced,
    download_bytes,
    sent_values,
)
from fedtailor.core.options import wrong_value
from fedtailor.core.reduction import Bounds, FieldSum, Reduction, reduce_field
from fedtailor.core.robust import RULES
from fedtailor.core.schedule import Schedule
from fedtailor.core.scores import ReportSums, Scores
from fedtailor.core.server_optimizer import make_server_optimizer
from fedtailor.core.upload_checks import problem_with
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.clients import Clients, TrainReply
from fedtailor.simulation.evaluation import Evaluator, validation_accuracy
from fedtailor.simulation.programs import TrainRequest
from fedtailor.simulation.quarantine import refuse_too_few, refuse_total_failure
from fedtailor.simulation.report import (
    Absences,
    Evaluation,
    EventKind,
    RoundReport,
    RunState,
    Selection,
    add_event,
    add_failure,
    add_problem,
    add_repetition,
    all_steps,
    record,
)

if TYPE_CHECKING:
    from fedtailor.core.fixed_point import FixedPoint
    from fedtailor.privacy.examples import ExamplePlan
    from fedtailor.privacy.ledger import Ledger
    from fedtailor.simulation.noise_elsewhere import NoiseElsewhere
    from fedtailor.simulation.noisy_steps import NoisySteps
    from fedtailor.simulation.noisy_sums import ExampleReleases, Releases

_ATTEMPTS = 3
"""Attempts at a round in which too few uploads can be used, if every client was to train in one of
them. Other batches may do better. A model that diverged does not."""
_MOST_ATTEMPTS = 20
"""Attempts at a round, whichever clients were to train in them."""
_COMING_AND_GOING: Mapping[ChangeKind, tuple[EventKind, str]] = {
    "join": ("joined", "it takes part from now on"),
    "pause": ("paused", "nothing is asked of it until it is resumed"),
    "resume": ("resumed", "it takes part again"),
    "leave": ("left", "it takes no part any more"),
}
"""The event of each change, and its reason."""


@dataclass
class RoundAttempt:
    """An attempt at a round, and what the server has received in it so far."""

    request: TrainRequest
    shared: tree.Tree
    """What all clients receive."""
    clients: Sequence[int]
    """The clients that train."""
    cohort: frozenset[int]
    """The clients that upload."""
    counting: frozenset[int]
    """The clients of whom enough must do usable work."""
    reduction: Reduction
    """What becomes of the uploads."""
    waiting: set[int]
    """The clients that have not answered yet."""
    sums: dict[str, FieldSum]
    """The fields of uploads of which the server needs no more than a mean or sum."""
    replies: dict[int, TrainReply] = field(default_factory=dict)
    """What can be used, in the order of the clients; of uploads, the fields that are not summed."""
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """What clients measured in training, as numbers: small tensors that outlive the uploads would
    lie between them, and the C library could not use the memory of uploads again."""
    failures: list[tuple[int, Failure]] = field(default_factory=list)
    bytes_up: int = 0
    """Of the uploads that can be used."""

    def add(self, client: int, reply: TrainReply) -> None:
        """Enter a reply that can be used; what was added up of its upload is not kept."""
        rest: dict[str, Any] = {}
        if client in self.cohort:
            rest = dict(reply.upload)

            # A client whose upload was added to that of a neighbor sends no such field of its own.
            for name, total in self.sums.items():
                if name in rest:
                    total.add(client, rest.pop(name))
                else:
                    total.skip(client)

        self.replies[client] = reply._replace(upload=rest, metrics={})
        self.metrics[client] = {name: float(value) for name, value in reply.metrics.items()}

    def skip(self, client: int) -> None:
        """Leave out a client of whom nothing can be used."""
        if client in self.cohort:
            for total in self.sums.values():
                total.skip(client)

    @property
    def senders(self) -> list[int]:
        """The clients whose uploads count."""
        return [client for client in self.replies if client in self.cohort]


def example_plan(
    algorithm: AnyAlgorithm, roster: Roster, schedule: Schedule, privacy: PrivacyOptions
) -> ExamplePlan | None:
    """Return the noise of every client in steps of training; None: no noise hides examples there.

    Raises:
        ConfigError: a round has too few clients for shares of noise.
    """
    if privacy.unit != "example" or not algorithm.bounds_examples:
        return None

    # Few runs have noise, and others do not import this.
    from fedtailor.privacy.examples import plan_examples

    return plan_examples(privacy, schedule, algorithm, roster)


def rare_classes(roster: Roster, privacy: PrivacyOptions) -> tuple[int, ...]:
    """Return the classes of too few clients for a mean over those who have them."""
    if privacy.rare_classes == "keep":
        return ()
    return tuple(
        label
        for label, holders in enumerate(roster.class_holders)
        if holders < privacy.smallest_sum
    )


def values_per_client(
    algorithm: AnyAlgorithm, server: Any, cohort: Cohort, seed: int
) -> dict[int, tree.Tree]:
    """Return what the server makes for single clients when it asks them, by client."""
    key = rng.new_key(seed, round=cohort.round, purpose="per_client")
    stacked = algorithm.per_client(server, cohort, key)
    if not tree.leaves(stacked):
        return {}

    ids = cohort.ids.tolist()
    return dict(zip(ids, tree.unstack(stacked, len(ids)), strict=True))


def history_of(schedule: Schedule, roster: Roster) -> History | None:
    """Return who takes part in which round of a run; None: everybody in all rounds.

    Raises:
        ConfigError: the changes do not fit together, or leave too few clients for a round.
    """
    if not schedule.history:
        return None

    names = [roster.name_of(client) for client in range(len(roster.num_train))]
    history = History(schedule.history, names, roster.num_new)
    trainable = frozenset(roster.trainable_clients)
    for round in sorted({1, *history.rounds}):
        training = [client for client in history.members(round) if client in trainable]
        if len(training) < schedule.fewest_members:
            allowed = f"such that {schedule.fewest_members} or more clients train in every round"
            raise wrong_value(KEY, allowed, f"{len(training)} in round {round}")

    if history.rounds[-1] > schedule.rounds:
        allowed = f"of rounds up to {schedule.rounds}, the last one (federation.rounds)"
        raise wrong_value(KEY, allowed, history.rounds[-1])

    if history.joins and schedule.select == "best":
        allowed = "'last' where clients join: an earlier round has no state of them"
        raise wrong_value("evaluation.select", allowed, "best")

    return history


class RunServer:
    """The server of a run."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        roster: Roster,
        clients: Clients,
        schedule: Schedule,
        seed: int,
        resume: RunState | None,
        absences: Absences,
        device: torch.device,
        privacy: PrivacyOptions,
        ledger: Ledger | None,
    ) -> None:
        self.algorithm = algorithm
        self.roster = roster
        self.clients = clients
        self.schedule = schedule
        self.seed = seed
        self.task = algorithm.bind(roster.common_task)
        self.messages = algorithm.messages(self.task)
        self.num_trainable = len(roster.trainable_clients)
        self.everybody_trains = schedule.everybody_trains(algorithm.trains)
        self.absences = absences
        self.history = history_of(schedule, roster)
        self.population = roster.population
        """How many clients have joined by this round, of those that can train."""
        self.drawable: list[int] | None = None
        """Those of them that take part in this round; None: all."""
        self.training = roster.trainable_clients
        """The clients that can train in this round."""
        if self.history is not None:
            self.population = self.history.population(1)

        self.evaluator = Evaluator(algorithm, roster, clients, absences)
        self.robust = RULES.get(schedule.robust)
        self.optimizer = make_server_optimizer(algorithm, roster.common_task, schedule)

        # Uploads are added up as they arrive, so that the memory does not grow with the cohort.
        self.uploaded = [
            name for name, declared in self.messages.items() if declared.reduction != "none"
        ]
        self.summed = tuple(
            name for name in self.uploaded if not self._needs_every_value(self.messages[name])
        )

        self.fixed: FixedPoint | None = None
        self.fewest_uploads = schedule.fewest_uploads
        self.releases: Releases | ExampleReleases | NoiseElsewhere | None = None
        self.hides_clients: Releases | None = None
        """The same, if it hides clients as wholes."""
        self.steps: NoisySteps | NoiseElsewhere | None = None
        """Steps with noise that clients take; None: there are none."""
        contributed = self.messages
        if privacy.unit != "none":
            contributed = self._hide(privacy, ledger)

        if privacy.secure_sums:
            # Most runs have no secure sums, and do not import this.
            from fedtailor.core.fixed_point import make_fixed_point

            self.fixed = make_fixed_point(
                contributed,
                population=roster.population,
                most_examples=privacy.most_examples,
                rare_classes=rare_classes(roster, privacy),
            )
            self.fewest_uploads = max(self.fewest_uploads, privacy.smallest_sum)

        # A draw of fewer clients could not succeed.
        fewest = max(schedule.participation.min_clients, self.fewest_uploads)
        self.participation = replace(schedule.participation, min_clients=fewest)
        self.asked: set[int] = set()
        """The clients whose work was to count in one of the attempts at this round."""

        if resume is None:
            key = rng.new_key(seed, purpose="init_server")
            server = algorithm.init_federation(self.task, self.population, key)
            resume = RunState(compact(server))

        self.state = resume.on(device)

    def _hide(self, privacy: PrivacyOptions, ledger: Ledger | None) -> Messages:
        """Find the noise that hides clients or examples; return what clients add to sums."""
        own_noise = self.clients.own_noise
        if own_noise is not None:
            self.steps = own_noise
            self.releases = own_noise if own_noise.releases_sums else None
            return self.messages

        # Few runs have noise, and others do not import this.
        from fedtailor.privacy.plan import drawn_from
        from fedtailor.simulation.noisy_steps import NoisySteps
        from fedtailor.simulation.noisy_sums import ExampleReleases, Releases

        schedule = self.schedule
        plan = example_plan(self.algorithm, self.roster, schedule, privacy)
        if plan is not None:
            self.steps = NoisySteps(plan, self.algorithm, self.roster.num_train, ledger)
            self.fewest_uploads = max(self.fewest_uploads, plan.fewest)
            return self.messages
        if privacy.unit == "example":
            self.releases = ExampleReleases(privacy, schedule, self.roster, self.algorithm, ledger)
            return self.messages

        drawn = drawn_from(
            privacy,
            schedule,
            population=self.roster.population,
            trainable=self.num_trainable,
        )
        releases = Releases(privacy, schedule, self.messages, drawn, ledger)
        self.releases = releases
        self.hides_clients = releases
        contributed = releases.mechanism.contributions
        self.summed = tuple(contributed)
        return contributed

    @property
    def has_more_rounds(self) -> bool:
        """Whether another round follows."""
        patience = self.schedule.patience
        best = self.state.selection
        has_stopped = patience > 0 and best is not None and best.evaluations_since >= patience
        return self.state.round < self.schedule.rounds and not has_stopped

    # Training

    def begin_round(self) -> RoundReport:
        """Begin the next round."""
        self.asked = set()
        report = RoundReport(self.state.round + 1, [], self.state)
        self._let_come_and_go(report)
        return report

    def _let_come_and_go(self, report: RoundReport) -> None:
        """Note who takes part in a round, and who has come or gone."""
        before = self.population if report.round > 1 else 0
        if self.history is not None:
            before = self.history.population(report.round - 1) if report.round > 1 else 0
            for kind, client in self.history.changes(report.round):
                event, reason = _COMING_AND_GOING[kind]
                add_event(report, event, client, reason)

            self._note_members(self.history, report.round)

        # Once, in the first round of each.
        for client in range(before, self.population):
            if not self.roster.num_train[client]:
                add_event(report, "skipped", client, "no training examples: does not train")

        if 0 < before < self.population:
            key = rng.new_key(self.seed, purpose="init_server")
            server = self.algorithm.admit(
                self.task, self.state.server, before, self.population, key
            )
            self.state = replace(self.state, server=compact(server))

    def _note_members(self, history: History, round: int) -> None:
        """Find who takes part in a round."""
        members = frozenset(history.members(round))
        trainable = self.roster.trainable_clients
        self.population = history.population(round)
        self.num_trainable = bisect_left(trainable, self.population)
        self.drawable = [client for client in range(self.population) if client in members]
        self.training = [client for client in trainable if client in members]
        self.evaluator.members = members

    def begin_attempt(self, report: RoundReport) -> RoundAttempt:
        """Draw a cohort, and say what is asked of it."""
        schedule = self.schedule
        trainable = None
        if self.num_trainable < self.roster.population:
            trainable = self.roster.trainable_clients

        drawn = self.participation.cohort(
            self.seed,
            report.round,
            schedule.rounds,
            self.population,
            report.attempt,
            members=self.drawable,
            trainable=trainable,
        )
        report.cohort = [client for client in drawn.tolist() if self.roster.num_train[client]]
        cohort = frozenset(report.cohort)
        clients = self.training if self.everybody_trains else report.cohort
        report.bytes_down += download_bytes(self.messages) * len(clients)

        # If nobody uploads anything, the work of all who train counts.
        counting = cohort if cohort and self.uploaded else frozenset(clients)
        self.asked |= counting

        # Without this, the first upload that can be used is enough, and no client is left out
        # afterwards.
        hold = self.participation.min_clients > 1 or (self.everybody_trains and bool(self.uploaded))
        shared = self.broadcast(report.round, report.cohort)
        bounds: Bounds | None = None
        if self.releases is not None:
            sent = sent_values(shared, self.messages)
            bounds = self.releases.bounds(report, sent, self.seed)
        if self.steps is not None:
            self.steps.enter(report, clients, shared, self.seed)
            bounds = self.steps.bounds(report, self.seed)
        reduction = Reduction(self.summed, tuple(report.cohort), self.fixed, bounds)
        self.send_per_client(report.round, clients)
        request = TrainRequest(
            evaluate=schedule.evaluation_is_due(report.round, schedule.evaluate_every),
            attempt=report.attempt,
            hold=hold,
            rank=report.round == schedule.rounds,
        )
        return RoundAttempt(
            request=request,
            shared=shared,
            clients=clients,
            cohort=cohort,
            counting=counting,
            reduction=reduction,
            waiting=set(clients),
            sums=reduction.sums(cohort),
        )

    def broadcast(self, round: int, ids: Sequence[int]) -> tree.Tree:
        """Return what some clients receive in a round."""
        return self.algorithm.broadcast(self.state.server, self._cohort(round, ids))

    def send_per_client(self, round: int, ids: Sequence[int]) -> None:
        """Give clients the values of their own that the server makes when it asks them."""
        if ids:
            values = values_per_client(
                self.algorithm, self.state.server, self._cohort(round, ids), self.seed
            )
            self.clients.update_per_client(values)

    def _cohort(self, round: int, ids: Sequence[int]) -> Cohort:
        rounds_trained = self.state.client_rounds / max(self.num_trainable, 1)
        if self.hides_clients is not None:
            rounds_trained = self.hides_clients.rounds_trained(self.state.round)

        return Cohort(
            ids=torch.tensor(ids, dtype=torch.int64, device=HOST),
            population=self.population,
            round=round,
            rounds=self.schedule.rounds,
            rounds_trained=rounds_trained,
        )

    def receive(
        self, report: RoundReport, attempt: RoundAttempt, client: int, reply: TrainReply | Failure
    ) -> bool:
        """Enter a client's reply into the attempt; return whether it can be used."""
        if client not in attempt.waiting:
            reason = "an answer that was not asked for, or a second one"
            add_event(report, "quarantine", client, reason)
            return False

        # A late answer: the client's answer to this request may still come.
        asked = (report.round, report.attempt)
        if not isinstance(reply, Failure) and (reply.round, reply.attempt) != asked:
            reason = f"the answer belongs to round {reply.round}, attempt {reply.attempt}"
            add_event(report, "quarantine", client, reason)
            return False

        attempt.waiting.remove(client)
        if isinstance(reply, Failure):
            self._add_failure(report, attempt, client, reply)
            return False

        # Answers of sites, and uploads that were reduced on their way, were checked there.
        problem = reply.problem
        num_bytes = reply.num_bytes
        if num_bytes is None:
            num_train = self.roster.num_train[client]
            problem = (
                problem_with(reply.upload, self.messages, num_train)
                or attempt.reduction.problem_with(reply.upload, client)
                or problem
            )

        if problem is not None:
            attempt.skip(client)
            add_problem(report, client, problem)
            return False

        if client in attempt.cohort:
            if num_bytes is None:
                num_bytes = attempt.reduction.bytes_of(reply.upload, self.messages)
                bounded = attempt.reduction.bounded(reply.upload, client)
                reply = reply._replace(upload=bounded)
            attempt.bytes_up += num_bytes

        attempt.add(client, reply)
        return True

    def _add_failure(
        self, report: RoundReport, attempt: RoundAttempt, client: int, failure: Failure
    ) -> None:
        attempt.failures.append((client, failure))
        attempt.skip(client)
        add_failure(report, client, "local_update", failure)

    def end_attempt(self, report: RoundReport, attempt: RoundAttempt) -> bool:
        """Return whether enough clients did usable work; if not, the round is attempted again.

        Raises:
            RunError: another attempt would fail too.
        """
        for client in sorted(attempt.waiting):
            self._add_failure(report, attempt, client, Failure(NoAnswer("no answer")))

        # Nothing depends on the order of arrival.
        attempt.replies = dict(sorted(attempt.replies.items()))
        report.bytes_up += attempt.bytes_up

        # The robust rule and the user both say how many are needed.
        counting = attempt.counting
        usable = len(counting & attempt.replies.keys())
        min_clients = min(self.schedule.participation.min_clients, len(counting))
        needed = max(self.fewest_uploads, min_clients)
        if counting and usable < needed:
            self._refuse_hopeless(report, attempt, usable, needed)
            add_repetition(report, usable, len(counting), needed)
            return False

        self._leave_out_suspects(report, attempt)
        return True

    def _refuse_hopeless(
        self, report: RoundReport, attempt: RoundAttempt, usable: int, needed: int
    ) -> None:
        """Raise if another attempt is not worth it."""
        # A cohort may have been unlucky, and another one may do better.
        attempts = report.attempt + 1
        everybody_was_asked = len(self.asked) == len(self.training)
        nobody_ever_succeeded = self.state.client_rounds == 0 and not attempt.replies
        hopeless = everybody_was_asked and (nobody_ever_succeeded or attempts >= _ATTEMPTS)
        if hopeless or attempts >= _MOST_ATTEMPTS:
            refuse_total_failure(
                attempt.failures, len(attempt.clients), "local_update", report.round, self.roster
            )
            refuse_too_few(report, usable, len(self.asked), needed, self.roster)

    def _needs_every_value(self, declared: Field) -> bool:
        """Return whether single uploads of a field are needed, and not only their sum."""
        if declared.reduction == "each":
            return True
        return self.robust is not None and self.robust.needs_every_value(declared)

    def _leave_out_suspects(self, report: RoundReport, attempt: RoundAttempt) -> None:
        """Leave out the clients that the robust rule does, if it is one that does."""
        if self.robust is None or self.robust.leave_out is None:
            return

        sent = sent_values(attempt.shared, self.messages)
        uploads = {client: attempt.replies[client].upload for client in attempt.senders}
        distances = self.robust.leave_out(uploads, sent, self.schedule.robust_share)
        for client, distance in distances.items():
            # Nothing of the client is in a sum: such a rule needs every value.
            del attempt.replies[client]
            reason = (
                f"{self.schedule.robust}: the upload is among the farthest from the others "
                f"({distance:.3g} times the median distance)"
            )
            add_event(report, "quarantine", client, reason)

    def end_training(self, report: RoundReport, attempt: RoundAttempt) -> None:
        """Enter what can be used into the report, and sum it up."""
        scores = {}
        sums = ReportSums()
        for client, reply in attempt.replies.items():
            sums = reply.sums or sums
            report.trained.append(client)
            record(report.metrics, client, attempt.metrics[client])
            if isinstance(reply.scores, Scores):
                scores[client] = reply.scores

        summed = sums.scores.get("clients")
        if scores or summed is not None:
            adaptation = "local training of the round"
            evaluation = Evaluation("local", adaptation, "known", scores, sums=summed)
            report.evaluations.append(evaluation)

        report.metric_sums = sums.numbers
        report.steps = all_steps(report.metrics, sums.numbers)
        self.state = replace(
            self.state,
            client_rounds=self.state.client_rounds + len(report.trained),
            participated=self.state.participated.union(report.trained),
        )

    # Aggregation

    def aggregate(self, report: RoundReport, attempt: RoundAttempt) -> dict[int, tree.Tree]:
        """Reduce the uploads and update the server state; return new per-client values."""
        ids = attempt.senders
        if not ids:
            return {}

        sent = sent_values(attempt.shared, self.messages)
        received: Received
        if self.releases is None:
            received = {name: self._reduce(name, attempt, sent[name]) for name in self.uploaded}
            if self.steps is not None:
                received = self.steps.repaired(received, ids)
        else:
            # Weights of their own are summed beside the fields.
            totals = {name: attempt.sums[name].total() for name in self.summed}
            received = self.releases.release(report, totals, sent, self.seed)
        if self.optimizer is not None:
            received, moments = self.optimizer.step(self.state.server, received, self.state.moments)
            self.state = replace(self.state, moments=compact(moments))

        cohort = self._cohort(report.round, ids)
        server, stacked = self.algorithm.aggregate(self.state.server, received, cohort)

        # As it would come back from a checkpoint.
        self.state = replace(self.state, server=compact(server))
        if not tree.leaves(stacked):
            return {}

        return dict(zip(ids, tree.unstack(stacked, len(ids)), strict=True))

    def _reduce(self, name: str, attempt: RoundAttempt, sent: tree.Tree | None) -> Reduced:
        """Reduce a field over the cohort."""
        if name in attempt.sums:
            return attempt.sums[name].reduced()

        entries = {client: attempt.replies[client].upload[name] for client in attempt.senders}
        reduce = self.robust.reduce if self.robust else None
        declared = self.messages[name]
        if reduce is None or declared.reduction != "mean":
            return reduce_field(entries)

        means = {client: entry for client, entry in entries.items() if isinstance(entry, Mean)}
        return reduce(means, declared, sent, self.schedule.robust_share)

    # Evaluation

    def evaluate(self, report: RoundReport) -> None:
        """Run the evaluations that are due."""
        schedule = self.schedule
        is_last = report.round == schedule.rounds

        # Ranks, for AUROC, take some percent of an evaluation's time.
        if schedule.evaluation_is_due(report.round, schedule.evaluate_every):
            final = is_last and not schedule.watches_validation
            self._evaluate_global(report, rank=is_last, final=final)

        # If validation examples decide, the final models are made when the decision is known.
        if schedule.evaluation_is_due(report.round, schedule.personalized_every):
            keep = is_last and not schedule.watches_validation
            self._evaluate_personalized(report, keep=keep, rank=is_last)

    def _evaluate_global(self, report: RoundReport, *, rank: bool, final: bool) -> None:
        model = self.algorithm.global_model(self.task, self.state.server)
        if model is not None:
            self.evaluator.score_global(report, model, rank=rank, final=final)

    def _evaluate_personalized(self, report: RoundReport, *, keep: bool, rank: bool) -> None:
        """Make and test the personal models of the known clients and of the new ones."""
        for group in self.evaluator.groups:
            ids = self.evaluator.present(group)
            shared = self.broadcast(report.round, ids)
            self.send_per_client(report.round, ids)
            self.evaluator.score_personalized(report, group, shared, keep=keep, rank=rank)

        if keep:
            report.personal = self.clients.personal

    def select(self, report: RoundReport) -> None:
        """Compare the round with the best one so far, and remember it if it is better."""
        schedule = self.schedule
        if not schedule.watches_validation or not schedule.evaluation_is_due(
            report.round, schedule.personalized_every
        ):
            return

        # Of equal rounds, the first is the best.
        best = self.state.selection
        accuracy = validation_accuracy(report)
        if accuracy is None or (best is not None and not accuracy.is_above(best)):
            if best is not None:
                best = replace(best, evaluations_since=best.evaluations_since + 1)
                self.state = replace(self.state, selection=best)
            return

        # If only the end of the run depends on it, nothing has to be remembered.
        is_to_return = schedule.select == "best"
        state = RunState(
            server=self.state.server if is_to_return else (),
            round=report.round,
            client_rounds=self.state.client_rounds,
            participated=self.state.participated,
        )
        self.state = replace(self.state, selection=Selection(state, *accuracy))
        if is_to_return:
            self.clients.remember()

    def end_round(self, report: RoundReport) -> None:
        """Make the state after the round part of its report; after the last, make the models."""
        self.state = replace(self.state, round=report.round)
        report.is_last = not self.has_more_rounds
        if report.is_last and self.schedule.watches_validation:
            self._make_final(report)

        report.state = self.state

    def _make_final(self, report: RoundReport) -> None:
        """Go back to the selected round, and make and test the models that the run gives."""
        best = self.state.selection
        round = report.round
        if self.schedule.select == "best" and best is not None:
            self.clients.go_back()
            round = best.state.round
            last = self.state
            self.state = replace(best.state, round=last.round, selection=best, moments=last.moments)

        # The evaluations before were of other models, and without ranks.
        final = RoundReport(round, [], self.state, is_last=True, made_in=report.round)
        self._evaluate_global(final, rank=True, final=True)
        self._evaluate_personalized(final, keep=True, rank=True)

        report.final = final
        report.personal = final.personal
        report.steps += final.steps
        report.events += final.events
