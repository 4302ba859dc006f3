"""The round loop: draw a cohort, train, check uploads, aggregate, evaluate; one report per round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.codec import compact
from fedtailor.core.engine import Engine, Failure, one_thread
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Cohort, Federation
from fedtailor.core.message import Upload, download_bytes, problem_with, reduce_field, upload_bytes
from fedtailor.core.metrics import Scores
from fedtailor.core.roster import Roster
from fedtailor.core.schedule import Schedule
from fedtailor.simulation.absences import RepeatedAbsences
from fedtailor.simulation.clients import Clients, LocalClients, Storage, TrainReply, in_memory
from fedtailor.simulation.evaluation import evaluate_global, evaluate_personalized
from fedtailor.simulation.programs import TrainRequest
from fedtailor.simulation.quarantine import refuse_total_failure, refuse_total_quarantine
from fedtailor.simulation.report import Evaluation, RoundReport, RunState, add_event, add_failure, record, whole_sum


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
) -> Iterator[RoundReport]:
    """Run an algorithm on a federation in this process; return an iterator with a report after every round.

    The engine begins a new run at this call, so finish one run before you start the next on the same engine.

    Args:
        algorithm: what is run.
        federation: data and clients.
        engine: runs the clients' programs.
        schedule: how long, who takes part, when models are evaluated.
        seed: of every random number but those of the data.
        storage: where clients' states, per-client values and personal models are kept.
        resume: the state of an earlier run after one of its rounds; ``storage`` gives what the clients had then.
        events: of the rounds of that run which are run again, for :func:`federate`.

    Raises:
        ConfigError: the schedule or the clients' tasks do not fit the algorithm.
        RunError: the work of every client of a round failed.
    """
    clients = LocalClients(algorithm, federation, engine, seed=seed, storage=storage)
    return federate(algorithm, federation.roster, clients, schedule, seed=seed, resume=resume, events=events)


def federate(
    algorithm: Algorithm[Any, Any, Any],
    roster: Roster,
    clients: Clients,
    schedule: Schedule,
    *,
    seed: int,
    resume: RunState | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> Iterator[RoundReport]:
    """Run an algorithm with given clients; yield a report after every round.

    Args:
        algorithm: what is run.
        roster: who there is.
        clients: answer the requests of every round, wherever they are.
        schedule: how long, who takes part, when models are evaluated.
        seed: of every random number but those of the data.
        resume: the state of an earlier run after one of its rounds; the clients must be as they were then.
        events: of the rounds of that run which are run again: whoever gave no answer in one of them gives none again.

    Raises:
        ConfigError: the schedule or the clients' tasks do not fit the algorithm.
        RunError: the work of every client of a round failed.
    """
    schedule.participation.check(roster.population)
    check_tasks(algorithm, roster)
    check_who_trains(algorithm, schedule)
    if events:
        clients = RepeatedAbsences(clients, events)
    with one_thread():  # the server's arithmetic, too, must not depend on the number of cores
        server = _Server(algorithm, roster, schedule, seed, resume)
    while server.state.round < schedule.rounds:
        with one_thread():
            start = time.perf_counter()
            report = server.begin_round()
            request = TrainRequest(evaluate=schedule.due(report.round, schedule.evaluate_every))
            shared = server.broadcast(report.round, report.cohort)
            training = _Training(server.clients_to_train(report), frozenset(report.cohort))
            for client, reply in clients.train(request, shared, training.clients, report.round):
                if server.receive(report, training, client, reply):
                    clients.accept(client)
            server.end_training(report, training)
            report.seconds["train"] = time.perf_counter() - start

            start = time.perf_counter()
            clients.update_per_client(server.aggregate(report, training.uploads))
            report.seconds["aggregate"] = time.perf_counter() - start

            start = time.perf_counter()
            server.evaluate(report, clients)
            report.seconds["evaluate"] = time.perf_counter() - start
            server.end_round(report)
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
        ConfigError: the method needs an upload from every client that trains, and others are to train too.
    """
    if schedule.everybody_trains(algorithm) and algorithm.requires_upload:
        raise ConfigError(
            f"federation.train must be 'cohort' or 'auto' for {type(algorithm).__name__}, got 'all': the server keeps "
            "a mean of what the clients keep, which is wrong unless every client that trains uploads.",
            key="federation.train",
            allowed=["auto", "cohort"],
            got="all",
        )


_ROUNDS_WITHOUT_UPDATE = 3
"""A run stops after this many rounds without a usable result, if every client was to train in one of them.

Other batches may do better. A model that diverged does not."""
_MOST_ROUNDS_WITHOUT_UPDATE = 20
"""A run stops after this many rounds without a usable result, whoever was to train in them."""


@dataclass
class _Training:
    """What the server has received in a round so far."""

    clients: Sequence[int]
    """The clients that train."""
    cohort: frozenset[int]
    """The clients that upload."""
    uploads: dict[int, Upload] = field(default_factory=dict)
    scores: dict[int, Scores] = field(default_factory=dict)
    """At the evaluation point ``local``."""
    failures: list[tuple[int, Failure]] = field(default_factory=list)


class _Server:
    """The server of a run."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        roster: Roster,
        schedule: Schedule,
        seed: int,
        resume: RunState | None,
    ) -> None:
        self.algorithm = algorithm
        self.roster = roster
        self.schedule = schedule
        self.seed = seed
        self.task = algorithm.bind(roster.common_task)
        self.messages = algorithm.messages(self.task)
        self.trainable_clients = frozenset(roster.trainable_clients)
        self.everybody_trains = schedule.everybody_trains(algorithm)
        if resume is None:
            resume = RunState(compact(algorithm.init_server(self.task, rng.new_key(seed, purpose="init_server"))))
        self.state = resume

    def begin_round(self) -> RoundReport:
        """Draw the cohort of the next round."""
        round = self.state.round + 1
        schedule = self.schedule
        drawn = schedule.participation.cohort(self.seed, round, schedule.rounds, self.roster.population)
        cohort = [client for client in drawn.tolist() if client in self.trainable_clients]
        report = RoundReport(round, cohort, self.state)
        if round == 1:
            report.events += [
                {"kind": "skipped", "round": 1, "client": client, "reason": "no training examples: does not train"}
                for client in self.roster.known
                if client not in self.trainable_clients
            ]
        return report

    def clients_to_train(self, report: RoundReport) -> Sequence[int]:
        """Return the clients that train in a round."""
        return self.roster.trainable_clients if self.everybody_trains else report.cohort

    def broadcast(self, round: int, ids: Sequence[int]) -> tree.Tree:
        """Return what some clients receive in a round."""
        return self.algorithm.broadcast(self.state.server, self._cohort(round, ids))

    def _cohort(self, round: int, ids: Sequence[int]) -> Cohort:
        return Cohort(
            ids=torch.tensor(ids, dtype=torch.int64),
            population=self.roster.population,
            round=round,
            rounds=self.schedule.rounds,
            rounds_trained=self.state.client_rounds / max(len(self.trainable_clients), 1),
        )

    def receive(self, report: RoundReport, training: _Training, client: int, reply: TrainReply | Failure) -> bool:
        """Enter a client's reply into the report; return whether the client's round is accepted."""
        if isinstance(reply, Failure):
            training.failures.append((client, reply))
            add_failure(report, client, "local_update", reply)
            return False
        problem = problem_with(reply.upload, self.messages) or reply.problem
        if problem is not None:
            add_event(report, "quarantine", client, str(problem))
            return False
        report.trained.append(client)
        record(report.metrics, client, reply.metrics)
        if client in training.cohort:
            training.uploads[client] = reply.upload
        if isinstance(reply.scores, Scores):
            training.scores[client] = reply.scores
        return True

    def end_training(self, report: RoundReport, training: _Training) -> None:
        """Sum up the training of a round.

        Raises:
            RunError: the work of no client can be used, in this round or in too many rounds.
        """
        refuse_total_failure(training.failures, len(training.clients), "local_update", report.round)
        self._count(report, training.clients)
        if training.scores:
            report.evaluations.append(
                Evaluation(
                    point="local",
                    adaptation="local training of the round",
                    clients="known",
                    ids=list(training.scores),
                    scores=list(training.scores.values()),
                )
            )
        report.steps = whole_sum(report.metrics.get("steps", {}))
        report.bytes_down = download_bytes(self.messages) * len(training.clients)
        report.bytes_up = sum(upload_bytes(upload, self.messages) for upload in training.uploads.values())

    def _count(self, report: RoundReport, clients: Sequence[int]) -> None:
        """Count who trained, and rounds in which no client's work can be used.

        Raises:
            RunError: there were too many such rounds.
        """
        before = self.state
        if report.trained:
            self.state = replace(
                before,
                client_rounds=before.client_rounds + len(report.trained),
                participated=before.participated.union(report.trained),
                rounds_without_update=0,
                failing=frozenset(),
            )
            return
        if clients:
            self.state = replace(
                before,
                rounds_without_update=before.rounds_without_update + 1,
                failing=before.failing.union(clients),
            )
        if self._must_stop(report.round):
            refuse_total_quarantine(report.round, report.events, len(self.state.failing))

    def _must_stop(self, round: int) -> bool:
        """Return whether there is no hope that a client's work can ever be used."""
        state = self.state
        if not state.failing:
            return False
        everybody_failed = len(state.failing) == len(self.trainable_clients)
        if state.client_rounds == 0 and (everybody_failed or round == self.schedule.rounds):
            return True
        if everybody_failed and state.rounds_without_update >= _ROUNDS_WITHOUT_UPDATE:
            return True
        return state.rounds_without_update >= _MOST_ROUNDS_WITHOUT_UPDATE

    def aggregate(self, report: RoundReport, uploads: dict[int, Upload]) -> dict[int, tree.Tree]:
        """Reduce the uploads and update the server state; return new per-client values."""
        ids = sorted(uploads)
        if not ids:
            return {}
        names = [name for name, declared in self.messages.items() if declared.reduction != "none"]
        received = {name: reduce_field({client: uploads[client][name] for client in ids}) for name in names}
        cohort = self._cohort(report.round, ids)
        server, stacked = self.algorithm.aggregate(self.state.server, received, cohort)
        self.state = replace(self.state, server=compact(server))  # as it would come back from a checkpoint
        if not tree.leaves(stacked):
            return {}
        return dict(zip(ids, tree.unstack(stacked, len(ids)), strict=True))

    def evaluate(self, report: RoundReport, clients: Clients) -> None:
        """Run the evaluations that are due."""
        schedule = self.schedule
        if schedule.due(report.round, schedule.evaluate_every):
            model = self.algorithm.global_model(self.task, self.state.server)
            if model is not None:
                evaluate_global(report, self.roster, clients, model)
        if schedule.due(report.round, schedule.personalized_every):
            self._evaluate_personalized(report, clients, new=False)
            if self.roster.num_new:
                self._evaluate_personalized(report, clients, new=True)

    def _evaluate_personalized(self, report: RoundReport, clients: Clients, *, new: bool) -> None:
        shared = self.broadcast(report.round, self.roster.new if new else self.roster.known)
        is_last = report.round == self.schedule.rounds
        evaluate_personalized(report, self.algorithm, self.roster, clients, shared, new=new, keep=is_last)
        if is_last:
            report.personal = clients.personal

    def end_round(self, report: RoundReport) -> None:
        """Make the state after the round part of its report."""
        self.state = replace(self.state, round=report.round)
        report.state = self.state
