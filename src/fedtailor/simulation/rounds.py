"""The round loop: draw a cohort, train, check uploads, aggregate, evaluate; one report per
round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.codec import compact
from fedtailor.core.devices import HOST, placed
from fedtailor.core.engine import Engine, Failure, NoAnswer, one_thread
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Cohort, Federation
from fedtailor.core.message import (
    Each,
    FieldSum,
    Mean,
    Messages,
    Reduced,
    Sum,
    Upload,
    problem_with,
    reduce_field,
)
from fedtailor.core.message_bytes import download_bytes, upload_bytes
from fedtailor.core.robust import left_out_by_krum, needs_every_value, reduce_robustly, sent_values
from fedtailor.core.roster import Roster
from fedtailor.core.schedule import Schedule
from fedtailor.core.scores import Scores
from fedtailor.simulation.absences import RepeatedAbsences
from fedtailor.simulation.clients import Clients, LocalClients, Storage, TrainReply, in_memory
from fedtailor.simulation.evaluation import (
    evaluate_global,
    evaluate_personalized,
    validation_accuracy,
)
from fedtailor.simulation.programs import TrainRequest
from fedtailor.simulation.quarantine import refuse_too_few, refuse_total_failure
from fedtailor.simulation.report import (
    Evaluation,
    RoundReport,
    RunState,
    Selection,
    add_event,
    add_failure,
    add_problem,
    add_repetition,
    record,
    whole_sum,
)
from fedtailor.simulation.upload_sums import ReducedUpload, Reduction


def simulate(
    algorithm: Algorithm[Any, Any, Any],
    federation: Federation,
    engine: Engine,
    schedule: Schedule,
    *,
    seed: int,
    storage: Storage = in_memory,
    resume: RunState | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    device: torch.device = HOST,
) -> Iterator[RoundReport]:
    """Run an algorithm on a federation in this process; return an iterator with a report after
    every round.

    The engine begins a new run at this call, so finish one run before you start the next on the
    same engine.

    Args:
        algorithm: what is run.
        federation: data and clients.
        engine: runs the clients' programs.
        schedule: how long, who takes part, when models are evaluated.
        seed: of every random number but those of the data.
        storage: where clients' states, per-client values and personal models are kept.
        resume: the state of an earlier run after one of its rounds; ``storage`` gives what the
            clients had then.
        events: of the rounds of that run which are run again, for :func:`federate`.
        device: where programs run and the server computes; the engine must run programs in this
            thread.

    Raises:
        ConfigError: the schedule or the clients' tasks do not fit the algorithm.
        RunError: too few clients did usable work in every attempt at a round.
    """
    clients = LocalClients(algorithm, federation, engine, seed=seed, storage=storage, device=device)
    return federate(
        algorithm,
        federation.roster,
        clients,
        schedule,
        seed=seed,
        resume=resume,
        events=events,
        device=device,
    )


def federate(
    algorithm: Algorithm[Any, Any, Any],
    roster: Roster,
    clients: Clients,
    schedule: Schedule,
    *,
    seed: int,
    resume: RunState | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    device: torch.device = HOST,
) -> Iterator[RoundReport]:
    """Run an algorithm with given clients; yield a report after every round.

    Args:
        algorithm: what is run.
        roster: who there is.
        clients: answer the requests of every round, wherever they are.
        schedule: how long, who takes part, when models are evaluated.
        seed: of every random number but those of the data.
        resume: the state of an earlier run after one of its rounds; the clients must be as they
            were then.
        events: of the rounds of that run which are run again: who gave no answer in one of them
            gives none again.
        device: where the server computes, and where uploads come from.

    Raises:
        ConfigError: the schedule or the clients' tasks do not fit the algorithm.
        RunError: too few clients did usable work in every attempt at a round.
    """
    schedule.participation.check(roster.population)
    schedule.check(len(roster.trainable_clients))
    check_tasks(algorithm, roster)
    check_who_trains(algorithm, schedule)
    schedule.check_validation(roster.validates)
    if events:
        clients = RepeatedAbsences(clients, events)

    with (
        one_thread(),
        placed(device),
    ):  # the server's arithmetic, too, must not depend on the number of cores
        server = _Server(algorithm, roster, schedule, seed, resume, device)

    while server.goes_on(server.state.round):
        with one_thread(), placed(device):
            start = time.perf_counter()
            report = server.begin_round()
            done = False
            while not done:
                attempt = server.begin_attempt(report)
                replies = clients.train(
                    attempt.request,
                    attempt.shared,
                    attempt.clients,
                    report.round,
                    attempt.reduction,
                )

                for client, reply in replies:
                    usable = server.receive(report, attempt, client, reply)
                    if usable and not attempt.request.hold:
                        clients.accept(client)

                done = server.end_attempt(report, attempt)

            if attempt.request.hold:
                for client in attempt.replies:
                    clients.accept(client)

            server.end_training(report, attempt)
            report.seconds["train"] = time.perf_counter() - start

            start = time.perf_counter()
            clients.update_per_client(server.aggregate(report, attempt))
            report.seconds["aggregate"] = time.perf_counter() - start

            start = time.perf_counter()
            server.evaluate(report, clients)
            if server.select(report):
                clients.remember()

            server.end_round(report)
            if report.is_last and schedule.watches_validation:
                server.make_final(report, clients)

            report.seconds["evaluate"] = time.perf_counter() - start

        yield report


def check_tasks(algorithm: Algorithm[Any, Any, Any], roster: Roster) -> None:
    """Check that clients with different models send the same messages.

    Raises:
        ConfigError: they do not.
    """
    common = algorithm.messages(roster.common_task)
    for client, task in enumerate(roster.client_tasks):
        if algorithm.messages(task) != common:
            raise ConfigError(
                f"{type(algorithm).__name__} sends parts of the model, so all clients need the same model, but the "
                f"model of client {client} differs from the common one. Leave out model.others, or choose a method "
                "that shares no parameters.",
                key="model.others",
                allowed=[],
            )


def check_who_trains(algorithm: Algorithm[Any, Any, Any], schedule: Schedule) -> None:
    """Check that no client trains whose upload would be missing.

    Raises:
        ConfigError: the method needs an upload from every client that trains, and others are to
            train too.
    """
    if schedule.everybody_trains(algorithm) and algorithm.requires_upload:
        raise ConfigError(
            f"federation.train must be 'cohort' or 'auto' for {type(algorithm).__name__}, got 'all': the server keeps "
            "a mean of what the clients keep, which is wrong unless every client that trains uploads.",
            key="federation.train",
            allowed=["auto", "cohort"],
            got="all",
        )


_ATTEMPTS = 3
"""Attempts at a round in which too few uploads can be used, if every client was to train in one of
them.

Other batches may do better. A model that diverged does not."""
_MOST_ATTEMPTS = 20
"""Attempts at a round, whichever clients were to train in them."""


@dataclass
class _Attempt:
    """An attempt at a round, and what the server has received in it so far."""

    request: TrainRequest
    shared: tree.Tree
    """What all clients receive."""
    clients: Sequence[int]
    """The clients that train."""
    cohort: frozenset[int]
    """The clients that upload."""
    reduction: Reduction
    """What becomes of the uploads."""
    waiting: set[int]
    """The clients that have not answered yet."""
    sums: dict[str, FieldSum]
    """The fields of uploads of which the server needs no more than a mean or sum, reduced as far as
    they are here."""
    replies: dict[int, TrainReply] = field(default_factory=dict)
    """What can be used, in the order of the clients. Their uploads hold nothing but what ``sums``
    does not take, and nothing at all of clients outside the cohort."""
    failures: list[tuple[int, Failure]] = field(default_factory=list)
    bytes_up: int = 0
    """Of the uploads that can be used."""

    def add(self, client: int, reply: TrainReply) -> None:
        """Enter a reply that can be used; what was added up of its upload is not kept."""
        kept: Upload = {}
        if client in self.cohort and reply.reduced is None:
            kept = self._add(client, reply.upload)
        elif client in self.cohort and reply.reduced is not None:
            kept = self._add_reduced(client, reply.reduced)
        self.replies[client] = reply._replace(upload=kept, reduced=None)

    def _add(self, client: int, upload: Upload) -> Upload:
        """Add an upload to the sums; return the fields that are not summed."""
        kept: dict[str, Mean | Sum | Each] = {}
        for name, entry in upload.items():
            if name in self.sums:
                assert not isinstance(entry, Each)
                self.sums[name].add(client, entry)
            else:
                kept[name] = entry
        return kept

    def _add_reduced(self, client: int, upload: ReducedUpload) -> Upload:
        """Add the sums that came with a client, if it is not in those of a neighbor; return the
        other fields.
        """
        for name, total in self.sums.items():
            if name in upload.sums:
                total.add(client, upload.sums[name])
            else:
                total.skip(client)
        return upload.rest

    def skip(self, client: int) -> None:
        """Leave out a client of whom nothing can be used."""
        if client in self.cohort:
            for each in self.sums.values():
                each.skip(client)

    def uploads(self) -> dict[int, Upload]:
        """Return what is kept of the uploads of the cohort, by client."""
        return {
            client: reply.upload for client, reply in self.replies.items() if client in self.cohort
        }


def _bytes_of(reply: TrainReply, messages: Messages) -> int:
    """Return the bytes of the upload of a reply that can be used."""
    return (
        upload_bytes(reply.upload, messages) if reply.reduced is None else reply.reduced.num_bytes
    )


class _Server:
    """The server of a run."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        roster: Roster,
        schedule: Schedule,
        seed: int,
        resume: RunState | None,
        device: torch.device,
    ) -> None:
        self.algorithm = algorithm
        self.roster = roster
        self.schedule = schedule
        self.seed = seed
        self.task = algorithm.bind(roster.common_task)
        self.messages = algorithm.messages(self.task)
        self.num_trainable = len(roster.trainable_clients)
        self.everybody_trains = schedule.everybody_trains(algorithm)
        self.uploaded = [
            name for name, declared in self.messages.items() if declared.reduction != "none"
        ]
        self.summed = tuple(
            name
            for name in self.uploaded
            if not needs_every_value(schedule.robust, self.messages[name])
        )
        """The fields that are added up as they arrive, so that the memory does not grow with the
        cohort."""
        fewest = max(schedule.participation.min_clients, schedule.fewest_uploads)
        self.participation = replace(schedule.participation, min_clients=fewest)
        self.asked: set[int] = set()
        """The clients whose work was to count in one of the attempts at this round."""

        if resume is None:
            resume = RunState(
                compact(algorithm.init_server(self.task, rng.new_key(seed, purpose="init_server")))
            )

        self.state = resume.on(device)

    def goes_on(self, done: int) -> bool:
        """Return whether another round follows after ``done`` rounds."""
        patience = self.schedule.patience
        chosen = self.state.selection
        has_stopped = patience > 0 and chosen is not None and chosen.evaluations_since >= patience
        return done < self.schedule.rounds and not has_stopped

    def begin_round(self) -> RoundReport:
        """Begin the next round."""
        self.asked = set()
        report = RoundReport(self.state.round + 1, [], self.state)
        if report.round == 1:
            report.events += [
                {
                    "kind": "skipped",
                    "round": 1,
                    "client": client,
                    "reason": "no training examples: does not train",
                }
                for client in self.roster.known
                if not self.roster.num_train[client]
            ]

        return report

    def begin_attempt(self, report: RoundReport) -> _Attempt:
        """Draw a cohort."""
        schedule = self.schedule
        drawn = self.participation.cohort(
            self.seed, report.round, schedule.rounds, self.roster.population, report.attempt
        )
        report.cohort = [client for client in drawn.tolist() if self.roster.num_train[client]]
        clients = self.roster.trainable_clients if self.everybody_trains else report.cohort
        cohort = frozenset(report.cohort)
        request = TrainRequest(
            evaluate=schedule.evaluation_is_due(report.round, schedule.evaluate_every),
            attempt=report.attempt,
            # otherwise the first upload that can be used is enough, and no client is left out
            # afterwards
            hold=self.participation.min_clients > 1
            or (self.everybody_trains and bool(self.uploaded)),
            rank=report.round == schedule.rounds,
        )
        shared = self.broadcast(report.round, report.cohort)
        report.bytes_down += download_bytes(self.messages) * len(clients)
        reduction = Reduction(self.summed, tuple(sorted(cohort)))
        attempt = _Attempt(
            request, shared, clients, cohort, reduction, set(clients), reduction.begin()
        )
        self.asked.update(self._counting(attempt))

        return attempt

    def _counting(self, attempt: _Attempt) -> frozenset[int]:
        """Return the clients of whom enough must do usable work: the cohort, if it uploads
        anything.
        """
        return attempt.cohort if attempt.cohort and self.uploaded else frozenset(attempt.clients)

    def broadcast(self, round: int, ids: Sequence[int]) -> tree.Tree:
        """Return what some clients receive in a round."""
        return self.algorithm.broadcast(self.state.server, self._cohort(round, ids))

    def _cohort(self, round: int, ids: Sequence[int]) -> Cohort:
        return Cohort(
            ids=torch.tensor(ids, dtype=torch.int64, device=HOST),
            population=self.roster.population,
            round=round,
            rounds=self.schedule.rounds,
            rounds_trained=self.state.client_rounds / max(self.num_trainable, 1),
        )

    def receive(
        self, report: RoundReport, attempt: _Attempt, client: int, reply: TrainReply | Failure
    ) -> bool:
        """Enter a client's reply into the attempt; return whether it can be used."""
        if client not in attempt.waiting:
            add_event(
                report, "quarantine", client, "an answer that was not asked for, or a second one"
            )
            return False

        asked = (report.round, report.attempt)
        if not isinstance(reply, Failure) and (reply.round, reply.attempt) != asked:
            # late; the client's answer to this request may still come
            reason = f"the answer belongs to round {reply.round}, attempt {reply.attempt}"
            add_event(report, "quarantine", client, reason)
            return False

        attempt.waiting.remove(client)
        if isinstance(reply, Failure):
            attempt.failures.append((client, reply))
            attempt.skip(client)
            add_failure(report, client, "local_update", reply)
            return False

        problem = reply.problem
        if reply.reduced is None:
            problem = (
                problem_with(reply.upload, self.messages, self.roster.num_train[client]) or problem
            )

        if problem is not None:
            attempt.skip(client)
            add_problem(report, client, problem)
            return False

        if client in attempt.cohort:
            attempt.bytes_up += _bytes_of(reply, self.messages)

        attempt.add(client, reply)
        return True

    def end_attempt(self, report: RoundReport, attempt: _Attempt) -> bool:
        """Return whether enough clients did usable work; if not, the round is to be attempted
        again.

        Raises:
            RunError: there is no hope that another attempt will do better.
        """
        for client in sorted(attempt.waiting):
            failure = Failure(NoAnswer("no answer"))
            attempt.failures.append((client, failure))
            attempt.skip(client)
            add_failure(report, client, "local_update", failure)

        attempt.replies = dict(
            sorted(attempt.replies.items())
        )  # nothing depends on the order of arrival
        report.bytes_up += attempt.bytes_up
        counting = self._counting(attempt)
        usable = len(counting & attempt.replies.keys())
        needed = max(
            self.schedule.fewest_uploads,
            min(self.schedule.participation.min_clients, len(counting)),
        )

        if counting and usable < needed:
            self._refuse_hopeless(report, attempt, usable, needed)
            add_repetition(report, usable, len(counting), needed)
            return False

        if self.schedule.robust == "krum":
            self._leave_out_farthest(report, attempt, attempt.uploads())

        return True

    def _refuse_hopeless(
        self, report: RoundReport, attempt: _Attempt, usable: int, needed: int
    ) -> None:
        """Raise if another attempt is not worth it."""
        attempts = report.attempt + 1
        everybody_was_asked = len(self.asked) == self.num_trainable
        nobody_ever_succeeded = self.state.client_rounds == 0 and not attempt.replies
        hopeless = everybody_was_asked and (nobody_ever_succeeded or attempts >= _ATTEMPTS)
        if hopeless or attempts >= _MOST_ATTEMPTS:
            refuse_total_failure(
                attempt.failures, len(attempt.clients), "local_update", report.round
            )
            refuse_too_few(report, usable, len(self.asked), needed)

    def _leave_out_farthest(
        self, report: RoundReport, attempt: _Attempt, uploads: dict[int, Upload]
    ) -> None:
        """Leave out the clients whose uploads are farthest from those of others."""
        sent = sent_values(attempt.shared, self.messages)
        for client, distance in left_out_by_krum(uploads, sent, self.schedule.robust_share).items():
            del attempt.replies[client]
            add_event(
                report,
                "quarantine",
                client,
                f"krum: the upload is among the farthest from the others ({distance:.3g} times the median distance)",
            )

    def end_training(self, report: RoundReport, attempt: _Attempt) -> None:
        """Enter what can be used into the report, and sum it up."""
        scores = {}
        for client, reply in attempt.replies.items():
            report.trained.append(client)
            record(report.metrics, client, reply.metrics)
            if isinstance(reply.scores, Scores):
                scores[client] = reply.scores

        if scores:
            report.evaluations.append(
                Evaluation(
                    point="local",
                    adaptation="local training of the round",
                    group="known",
                    ids=list(scores),
                    scores=list(scores.values()),
                )
            )

        report.steps = whole_sum(report.metrics.get("steps", {}))
        self.state = replace(
            self.state,
            client_rounds=self.state.client_rounds + len(report.trained),
            participated=self.state.participated.union(report.trained),
        )

    def aggregate(self, report: RoundReport, attempt: _Attempt) -> dict[int, tree.Tree]:
        """Reduce the uploads and update the server state; return new per-client values."""
        ids = sorted(attempt.cohort & attempt.replies.keys())
        if not ids:
            return {}

        sent = sent_values(attempt.shared, self.messages)
        received = {name: self._reduce(name, attempt, sent[name]) for name in self.uploaded}
        cohort = self._cohort(report.round, ids)
        server, stacked = self.algorithm.aggregate(self.state.server, received, cohort)
        self.state = replace(
            self.state, server=compact(server)
        )  # as it would come back from a checkpoint
        if not tree.leaves(stacked):
            return {}

        return dict(zip(ids, tree.unstack(stacked, len(ids)), strict=True))

    def _reduce(self, name: str, attempt: _Attempt, sent: tree.Tree | None) -> Reduced:
        """Reduce a field over the cohort."""
        if name in attempt.sums:
            return attempt.sums[name].result()

        entries = {client: upload[name] for client, upload in attempt.uploads().items()}
        declared = self.messages[name]
        means = {client: entry for client, entry in entries.items() if isinstance(entry, Mean)}
        if declared.reduction == "mean":
            return reduce_robustly(
                self.schedule.robust, self.schedule.robust_share, means, declared, sent
            )

        return reduce_field(entries)

    def evaluate(self, report: RoundReport, clients: Clients) -> None:
        """Run the evaluations that are due."""
        schedule = self.schedule
        rank = report.round == schedule.rounds  # it takes some percent of an evaluation's time
        if schedule.evaluation_is_due(report.round, schedule.evaluate_every):
            self._evaluate_global(report, clients, rank=rank)
        if schedule.evaluation_is_due(report.round, schedule.personalized_every):
            # if validation examples decide, the final models are made when the decision is known
            keep = report.round == schedule.rounds and not schedule.watches_validation
            self._evaluate_personalized(report, clients, keep=keep, rank=rank)

    def _evaluate_global(self, report: RoundReport, clients: Clients, *, rank: bool) -> None:
        model = self.algorithm.global_model(self.task, self.state.server)
        if model is not None:
            evaluate_global(report, self.roster, clients, model, rank=rank)

    def _evaluate_personalized(
        self, report: RoundReport, clients: Clients, *, keep: bool, rank: bool
    ) -> None:
        """Make and test the personal models of the known clients and of the new ones."""
        for new in (False, True) if self.roster.num_new else (False,):
            shared = self.broadcast(report.round, self.roster.new if new else self.roster.known)
            evaluate_personalized(
                report,
                self.algorithm,
                self.roster,
                clients,
                shared,
                new=new,
                keep=keep,
                rank=rank,
            )

        if keep:
            report.personal = clients.personal

    def evaluate_final(self, report: RoundReport, clients: Clients) -> None:
        """Make and test the models that the run gives."""
        self._evaluate_global(report, clients, rank=True)
        self._evaluate_personalized(report, clients, keep=True, rank=True)

    def select(self, report: RoundReport) -> bool:
        """Compare the round with the best one so far; return whether the clients are to remember
        it.
        """
        schedule = self.schedule
        if not schedule.watches_validation or not schedule.evaluation_is_due(
            report.round, schedule.personalized_every
        ):
            return False

        chosen = self.state.selection
        accuracy = validation_accuracy(report)
        if accuracy is None or (chosen is not None and accuracy <= chosen.accuracy):
            if chosen is not None:
                chosen = replace(chosen, evaluations_since=chosen.evaluations_since + 1)
                self.state = replace(self.state, selection=chosen)

            return False

        is_to_return = schedule.select == "best"
        chosen = Selection(
            round=report.round,
            accuracy=accuracy,
            server=self.state.server if is_to_return else (),
            client_rounds=self.state.client_rounds,
            participated=self.state.participated,
        )
        self.state = replace(self.state, selection=chosen)

        return is_to_return

    def end_round(self, report: RoundReport) -> None:
        """Make the state after the round part of its report."""
        self.state = replace(self.state, round=report.round)
        report.state = self.state
        report.is_last = not self.goes_on(report.round)

    def make_final(self, report: RoundReport, clients: Clients) -> None:
        """Go back to the selected round, and make and test the models that the run gives."""
        chosen = self.state.selection
        round = report.round
        if self.schedule.select == "best" and chosen is not None:
            clients.go_back()
            round = chosen.round
            self.state = replace(
                self.state,
                server=chosen.server,
                client_rounds=chosen.client_rounds,
                participated=chosen.participated,
            )

        final = RoundReport(round, [], self.state, is_last=True)
        self.evaluate_final(final, clients)
        report.final = final
        report.personal = final.personal
        report.state = self.state
        report.steps += final.steps
        report.events += final.events
