"""The round loop: draw a cohort, train, check uploads, aggregate, evaluate; one report per round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Engine, Failure, one_thread
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Cohort, Federation
from fedtailor.core.message import Upload, download_bytes, reduce_field, upload_bytes
from fedtailor.core.metrics import Scores
from fedtailor.core.schedule import Schedule
from fedtailor.simulation.clients import Clients, Storage, in_memory
from fedtailor.simulation.evaluation import evaluate_global, evaluate_personalized
from fedtailor.simulation.programs import train_program
from fedtailor.simulation.quarantine import problem_with_output, refuse_total_failure, refuse_total_quarantine
from fedtailor.simulation.report import Evaluation, RoundReport, record, whole_sum


def federate(
    algorithm: Algorithm[Any, Any, Any],
    federation: Federation,
    engine: Engine,
    schedule: Schedule,
    *,
    seed: int,
    storage: Storage = in_memory,
) -> Iterator[RoundReport]:
    """Run an algorithm on a federation; yield a report after every round.

    Args:
        algorithm: what is run.
        federation: data and clients.
        engine: runs the clients' programs.
        schedule: how long, who takes part, when what is evaluated.
        seed: of every random number but those of the data.
        storage: where clients' states, rows and personal models are kept.

    Raises:
        RunError: the work of every client of a round failed.
    """
    schedule.participation.check(federation.population)
    engine.begin_run()
    with one_thread():  # the server's arithmetic, too, must not depend on the number of cores
        loop = _Loop(algorithm, federation, engine, schedule, seed, storage)
    for round in range(1, schedule.rounds + 1):
        with one_thread():
            report = loop.run_round(round)
        yield report


def check_tasks(algorithm: Algorithm[Any, Any, Any], federation: Federation) -> None:
    """Check that clients of different models send the same.

    Raises:
        ConfigError: they do not.
    """
    common = algorithm.messages(federation.common_task)
    for client, task in enumerate(federation.own_tasks):
        if algorithm.messages(task) != common:
            raise ConfigError(
                f"{type(algorithm).__name__} sends parts of the model, so that all clients need the same one, but the "
                f"model of client {client} is another than the common one. Leave out model.others, or take a method "
                "that shares no parameters.",
                key="model.others",
                allowed=[],
            )


_FRUITLESS, _MOST_FRUITLESS = 3, 20
"""Rounds on end without a result that can be used, after which a run stops: if every client was in one of them, and
whoever was. Other batches may do better; a model that diverged does not."""


def check_who_trains(algorithm: Algorithm[Any, Any, Any], schedule: Schedule) -> None:
    """Check that nobody trains whose upload would be missing.

    Raises:
        ConfigError: the method needs the upload of everybody who trains, and more are to train.
    """
    if schedule.everybody_trains(algorithm) and algorithm.requires_upload:
        raise ConfigError(
            f"federation.train must be 'cohort' or 'auto' for {type(algorithm).__name__}, got 'all': what a client "
            "keeps is part of a mean that the server keeps, which is wrong unless everybody who trains uploads.",
            key="federation.train",
            allowed=["auto", "cohort"],
            got="all",
        )


class _Loop:
    """The state of a run between rounds."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        federation: Federation,
        engine: Engine,
        schedule: Schedule,
        seed: int,
        storage: Storage,
    ) -> None:
        self.algorithm, self.federation, self.schedule = algorithm, federation, schedule
        self.seed, self.storage, self.task = seed, storage, federation.common_task
        check_tasks(algorithm, federation)
        check_who_trains(algorithm, schedule)
        self.messages = algorithm.messages(self.task)
        self.server = algorithm.init_server(self.task, rng.new_key(seed, purpose="init_server"))
        self.clients = Clients(algorithm, federation, engine, storage, seed)
        self.trainable_clients, self.is_able = federation.trainable_clients, set(federation.trainable_clients)
        self.everybody_trains = schedule.everybody_trains(algorithm)
        self.client_rounds = 0
        self.failing: set[int] = set()
        self.fruitless = 0

    def run_round(self, round: int) -> RoundReport:
        """Run one round and the evaluations that are due after it."""
        drawn = self.schedule.participation.cohort(self.seed, round, self.schedule.rounds, self.federation.population)
        report = RoundReport(round, [client for client in drawn.tolist() if client in self.is_able])
        if round == 1:
            report.events += [
                {"kind": "skipped", "round": 1, "client": client, "reason": "no training examples: does not train"}
                for client in self.federation.known
                if client not in self.is_able
            ]
        uploads = self._train(report)
        self._aggregate(report, uploads)
        self._evaluate(report)
        return report

    def _cohort(self, report: RoundReport, ids: Sequence[int]) -> Cohort:
        trained = self.client_rounds / max(len(self.trainable_clients), 1)
        where = self.federation.population, report.round, self.schedule.rounds
        return Cohort(torch.tensor(ids, dtype=torch.int64), *where, trained)

    def _train(self, report: RoundReport) -> dict[int, Upload]:
        """Train the clients of a round; keep the states of sound clients, return the sound uploads."""
        start = time.perf_counter()
        clients, cohort = (self.trainable_clients if self.everybody_trains else report.cohort), set(report.cohort)
        shared = self.algorithm.broadcast(self.server, self._cohort(report, report.cohort))
        evaluate = self.schedule.due(report.round, self.schedule.evaluate_every)
        program = partial(train_program, algorithm=self.algorithm, evaluate=evaluate)
        failed: list[tuple[int, Failure]] = []
        uploads: dict[int, Upload] = {}
        scored: dict[int, Scores] = {}
        for client, output in self.clients.run(program, shared, clients, report.round):
            problem = problem_with_output(output, self.messages)
            if problem is not None:
                event = {"kind": "quarantine", "round": report.round, "client": client, "reason": str(problem)}
                report.events.append(event)
                failed += [(client, output)] if isinstance(output, Failure) else []
                continue
            self.clients.states[client], upload, metrics, scores = output
            report.trained.append(client)
            record(report.metrics, client, metrics)
            if client in cohort:
                uploads[client] = upload
            if isinstance(scores, Scores):
                scored[client] = scores
        refuse_total_failure(failed, len(clients), "local_update", report.round)
        self._count(report, clients)
        if scored:
            point = Evaluation("local", "local training of the round", "known", list(scored), list(scored.values()))
            report.evaluations.append(point)
        report.steps = whole_sum(report.metrics.get("steps", {}))
        report.bytes_down = download_bytes(self.messages) * len(clients)
        report.bytes_up = sum(upload_bytes(upload, self.messages) for upload in uploads.values())
        report.seconds["train"] = time.perf_counter() - start
        return uploads

    def _count(self, report: RoundReport, clients: Sequence[int]) -> None:
        """Count who trained; a run in which nobody's work can be used, from the start or any more, stops."""
        self.client_rounds += len(report.trained)
        self.failing, self.fruitless = (
            (set(), 0) if report.trained else (self.failing | set(clients), self.fruitless + bool(clients))
        )
        if not self.failing:
            return
        first, last = not self.client_rounds, report.round == self.schedule.rounds
        everybody = len(self.failing) == len(self.trainable_clients)
        in_vain = (everybody and self.fruitless >= _FRUITLESS) or self.fruitless >= _MOST_FRUITLESS
        if in_vain or (first and (everybody or last)):
            refuse_total_quarantine(report.round, report.events, len(self.failing))

    def _aggregate(self, report: RoundReport, uploads: dict[int, Upload]) -> None:
        """Reduce the uploads in the order of client ids and update the server."""
        start = time.perf_counter()
        ids = sorted(uploads)
        if ids:
            names = [name for name, declared in self.messages.items() if declared.reduction != "none"]
            received = {name: reduce_field([uploads[client][name] for client in ids]) for name in names}
            self.server, rows = self.algorithm.aggregate(self.server, received, self._cohort(report, ids))
            if tree.leaves(rows):
                self.clients.own.update(zip(ids, tree.unstack(rows, len(ids)), strict=True))
        report.seconds["aggregate"] = time.perf_counter() - start

    def _evaluate(self, report: RoundReport) -> None:
        """Run the evaluations that are due."""
        start = time.perf_counter()
        if self.schedule.due(report.round, self.schedule.evaluate_every):
            model = self.algorithm.global_model(self.task, self.server)
            if model is not None:
                evaluate_global(report, self.clients, model)
        if self.schedule.due(report.round, self.schedule.personalized_every):
            if report.round == self.schedule.rounds:
                report.personal = self.storage("personal")
            self._personalized(report, new=False)
            if self.federation.num_new:
                self._personalized(report, new=True)
        report.seconds["evaluate"] = time.perf_counter() - start

    def _personalized(self, report: RoundReport, *, new: bool) -> None:
        ids = self.federation.new if new else self.federation.known
        shared = self.algorithm.broadcast(self.server, self._cohort(report, ids))
        models = report.personal if report.round == self.schedule.rounds else None
        evaluate_personalized(report, self.clients, shared, new=new, models=models)
