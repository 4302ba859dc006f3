"""The round loop: draw a cohort, train, check uploads, aggregate, evaluate, report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.devices import HOST, placed
from fedtailor.core.engine import Engine, one_thread
from fedtailor.core.federation import Federation, Roster
from fedtailor.core.options import wrong_value
from fedtailor.core.schedule import Schedule
from fedtailor.core.server_optimizer import make_server_optimizer
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.clients import Clients, LocalClients, Storage, in_memory
from fedtailor.simulation.privacy_checks import check_privacy
from fedtailor.simulation.report import Absences, RoundReport, RunState
from fedtailor.simulation.server import RoundAttempt, RunServer, example_plan, history_of

if TYPE_CHECKING:
    from fedtailor.privacy.ledger import Ledger

NO_PRIVACY = PrivacyOptions()
"""Every upload is seen by the server."""


def simulate(
    algorithm: AnyAlgorithm,
    federation: Federation,
    engine: Engine,
    schedule: Schedule,
    *,
    seed: int,
    storage: Storage = in_memory,
    resume: RunState | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    device: torch.device = HOST,
    privacy: PrivacyOptions = NO_PRIVACY,
    ledger: Ledger | None = None,
) -> Iterator[RoundReport]:
    """Run an algorithm on a federation in this process; return an iterator over reports of rounds.

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
        privacy: what the server may see of uploads.
        ledger: where releases of noisy sums are counted; None: in memory.

    Raises:
        ConfigError: the schedule or the clients' tasks do not fit the algorithm.
        RunError: too few clients did usable work in every attempt at a round.
    """
    plan = None
    if privacy.unit == "example":
        check_run(algorithm, federation.roster, schedule, privacy)
        plan = example_plan(algorithm, federation.roster, schedule, privacy)

    clients = LocalClients(
        algorithm, federation, engine, seed=seed, storage=storage, device=device, plan=plan
    )
    return federate(
        algorithm,
        federation.roster,
        clients,
        schedule,
        seed=seed,
        resume=resume,
        events=events,
        device=device,
        privacy=privacy,
        ledger=ledger,
    )


def federate(
    algorithm: AnyAlgorithm,
    roster: Roster,
    clients: Clients,
    schedule: Schedule,
    *,
    seed: int,
    resume: RunState | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    device: torch.device = HOST,
    privacy: PrivacyOptions = NO_PRIVACY,
    ledger: Ledger | None = None,
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
        privacy: what the server may see of uploads.
        ledger: where releases of noisy sums are counted; None: in memory.

    Raises:
        ConfigError: the schedule or the clients' tasks do not fit the algorithm.
        RunError: too few clients did usable work in every attempt at a round.
    """
    check_run(algorithm, roster, schedule, privacy)

    # One thread: the server's arithmetic, too, must not depend on the number of cores.
    with one_thread(), placed(device):
        server = RunServer(
            algorithm,
            roster,
            clients,
            schedule,
            seed,
            resume,
            Absences(events),
            device,
            privacy,
            ledger,
        )

    yield from run_rounds(server, device)


def run_rounds(server: RunServer, device: torch.device) -> Iterator[RoundReport]:
    """Run the rounds that a server has left; yield a report after every round."""
    while server.has_more_rounds:
        with one_thread(), placed(device):
            report = _run_round(server)
        yield report


def _run_round(server: RunServer) -> RoundReport:
    start = time.perf_counter()
    report = server.begin_round()
    attempt = _train(server, report)
    server.end_training(report, attempt)
    report.seconds["train"] = time.perf_counter() - start

    start = time.perf_counter()
    server.clients.update_per_client(server.aggregate(report, attempt))
    report.seconds["aggregate"] = time.perf_counter() - start

    start = time.perf_counter()
    server.evaluate(report)
    server.select(report)
    server.end_round(report)
    report.seconds["evaluate"] = time.perf_counter() - start
    return report


def _train(server: RunServer, report: RoundReport) -> RoundAttempt:
    """Let clients train until enough of them did usable work; return the successful attempt."""
    clients = server.clients
    while True:
        attempt = server.begin_attempt(report)
        ask = partial(
            clients.train,
            attempt.request,
            attempt.shared,
            round=report.round,
            reduction=attempt.reduction,
        )

        # Where all must have replied first, no client's round counts before.
        hold = attempt.request.hold
        for client, reply in server.absences.ask(report, "local_update", attempt.clients, ask):
            usable = server.receive(report, attempt, client, reply)
            if usable and not hold:
                clients.accept(client)

        if server.end_attempt(report, attempt):
            if hold:
                for client in attempt.replies:
                    clients.accept(client)

            return attempt


def check_run(
    algorithm: AnyAlgorithm,
    roster: Roster,
    schedule: Schedule,
    privacy: PrivacyOptions = NO_PRIVACY,
) -> None:
    """Check that a method, the clients, a schedule and what is private fit together.

    Raises:
        ConfigError: they do not.
    """
    schedule.participation.check(roster.population)
    schedule.check(len(roster.trainable_clients))
    _check_tasks(algorithm, roster)
    _check_who_trains(algorithm, schedule)
    make_server_optimizer(algorithm, roster.common_task, schedule)
    history = history_of(schedule, roster)
    if history is not None and history.joins:
        refuse_joining(algorithm, privacy)
    schedule.check_validation(roster.validates, roster.classes)
    check_privacy(algorithm, roster, schedule, privacy)


def refuse_joining(algorithm: AnyAlgorithm, privacy: PrivacyOptions) -> None:
    """Check that clients can join during a run.

    Raises:
        ConfigError: noise or secure sums count on those who are there, or the method does.
    """
    why = ""
    if privacy.unit != "none" or privacy.secure_sums:
        why = "the clients of a run with noise or secure sums are fixed before its first round"
    elif not algorithm.admits:
        why = f"{type(algorithm).__name__} keeps something of every client from the first round on"

    if why:
        raise wrong_value(
            "federation.history", "without clients that join", "'join'", f"The reason: {why}."
        )


def _check_tasks(algorithm: AnyAlgorithm, roster: Roster) -> None:
    """Check that clients with different models send the same messages."""
    common = algorithm.messages(roster.common_task)
    for client, task in enumerate(roster.client_tasks):
        # The shapes of a model's parameters are part of the messages.
        if algorithm.messages(task) != common:
            allowed = f"empty for {type(algorithm).__name__}, which sends parts of the model"
            got = f"another model for client {roster.name_of(client)}"
            raise wrong_value("model.others", allowed, got)


def _check_who_trains(algorithm: AnyAlgorithm, schedule: Schedule) -> None:
    """Check that no client trains whose upload would be missing."""
    if schedule.everybody_trains(algorithm.trains) and algorithm.requires_upload:
        allowed = f"'cohort' or 'auto' for {type(algorithm).__name__}"
        hint = "Its server keeps a mean of what the clients that train keep, so all must upload."
        raise wrong_value("federation.train", allowed, "all", hint)
