"""The audit of noise: does a run tell no more of a client, or of an example, than it claims?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core import rng
from fedtailor.core.devices import placed
from fedtailor.core.engine import one_thread
from fedtailor.core.errors import RunError, all_done
from fedtailor.core.options import wrong_value
from fedtailor.experiment.assembly import PreparedRun, assemble
from fedtailor.experiment.audits import audited_training
from fedtailor.experiment.config import Config
from fedtailor.experiment.methods import to_text
from fedtailor.experiment.tracking import RunProgress
from fedtailor.privacy.added_noise import AddedNoise
from fedtailor.privacy.audit import estimate_epsilon, guessed_epsilon, most_by_guessing
from fedtailor.privacy.canaries import AuditedMechanism, Canaries, Sightings
from fedtailor.privacy.examples import ExamplePlan
from fedtailor.privacy.plan import rate_of
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.example_canaries import (
    AuditedSums,
    CanarySteps,
    CanarySums,
    auditing_steps,
)
from fedtailor.simulation.noisy_steps import NoisySteps
from fedtailor.simulation.noisy_sums import ExampleReleases, Releases
from fedtailor.simulation.report import Absences
from fedtailor.simulation.rounds import run_rounds
from fedtailor.simulation.server import RunServer, example_plan

DEFAULT_CANARIES = 200
FEWEST_CANARIES = 50
_TIMES_THE_EXAMPLES = 3
"""Examples of a canary, over those of a client: weights must not raise what it contributes."""
LIMITS = (
    "This tests the code, by one attack on made-up clients: it proves nothing about other attacks."
)


def audit_noise(
    config: Config,
    *,
    canaries: int = DEFAULT_CANARIES,
    progress: RunProgress | None = None,
) -> dict[str, Any]:
    """Compare what a run claims to tell with what an attacker finds, and return the record.

    The run is made, and canaries contribute to its sums; see :mod:`fedtailor.privacy.canaries` for
    clients, and :mod:`fedtailor.simulation.example_canaries` for examples.
    It contradicts its claim if the lower end of the estimate is above it, which happens in 5 % of
    the audits of a mechanism that keeps its claim; or if the noise that was added is less than is
    claimed in a part of the messages, or repeats, which happens in 0.01 %.

    Args:
        config: an experiment of one seed that protects clients or examples by noise.
        canaries: how many are made up.
        progress: is told about every round.

    Raises:
        ConfigError: an option is wrong.
        DataError: data is missing or damaged.
        RunError: the run could not continue.
    """
    config = _prepare(config, canaries)
    progress = progress or RunProgress()
    seed = config.seeds[0]
    prepared = assemble(config, seed, progress=progress)
    schedule = prepared.config.schedule
    with all_done([prepared.engine.close, progress.end]):
        for note in prepared.notes:
            progress.note(note)

        progress.begin(f"{to_text(config.algorithm)}, {config.data.title}", schedule.rounds)
        server = _server(prepared, seed)
        audited = _audited(prepared, server, canaries, seed)
        told: dict[str, Any] = {}
        reasons = []
        with audited.within:
            for report in run_rounds(server, prepared.device):
                progress.round({"round": report.round, "evaluations": []})
                told = report.privacy or told
                reasons += [event["reason"] for event in report.events if "reason" in event]

    seen = audited.sightings()
    if not told or not seen.added_noise:
        reason = next(iter(reasons), "no client that is watched has sent anything.")
        raise RunError(f"there is nothing to audit: {reason}")

    by_client = told.get("by_client", {})
    claim = by_client.get(str(audited.facts.get("client")), told["epsilon"])

    return {
        "audit": "noise",
        "dataset": config.data.title,
        "method": to_text(config.algorithm),
        "seed": seed,
        "rounds": schedule.rounds,
        "clients": prepared.federation.roster.population,
        "canaries": canaries,
        "taking_part": int(seen.inside.sum()),
        "unit": config.privacy.unit,
        **audited.facts,
        "delta": told["delta"],
        "claim": claim,
        **_findings(seen, claim, told["delta"]),
        "limits": LIMITS,
    }


def _prepare(config: Config, canaries: int) -> Config:
    """Return the configuration of the run of an audit: models are evaluated at the end only.

    Raises:
        ConfigError: it has several seeds, or protects nobody.
    """
    if config.privacy.unit == "none":
        hint = "There is no noise to test."
        allowed = "'client' or 'example' for an audit of noise"
        raise wrong_value("privacy.unit", allowed, config.privacy.unit, hint)
    if canaries < FEWEST_CANARIES:
        hint = "Fewer tell too little."
        raise wrong_value("--canaries", f"{FEWEST_CANARIES} or more", canaries, hint)

    config = audited_training(config)
    if config.privacy.unit == "client":
        return config

    # Steps are watched where they are taken: in this thread. No result depends on the engine.
    engine = dataclasses.replace(config.engine, name="reference", workers=0)
    return dataclasses.replace(config, engine=engine)


class _Audited(NamedTuple):
    """A run that is audited."""

    sightings: Callable[[], Sightings]
    facts: Mapping[str, Any]
    """For the record: what is claimed of whom."""
    within: AbstractContextManager[None] = nullcontext()
    """In which its rounds are made."""


def _server(prepared: PreparedRun, seed: int) -> RunServer:
    """Return the server of a run."""
    algorithm = prepared.algorithm
    federation = prepared.federation
    schedule = prepared.config.schedule
    privacy = prepared.config.privacy
    with one_thread(), placed(prepared.device):
        clients = LocalClients(
            algorithm,
            federation,
            prepared.engine,
            seed=seed,
            device=prepared.device,
            plan=example_plan(algorithm, federation.roster, schedule, privacy),
        )

        return RunServer(
            algorithm=algorithm,
            roster=federation.roster,
            clients=clients,
            schedule=schedule,
            seed=seed,
            resume=None,
            absences=Absences(),
            device=prepared.device,
            privacy=privacy,
            ledger=None,
        )


def _audited(prepared: PreparedRun, server: RunServer, count: int, seed: int) -> _Audited:
    """Let canaries add to what clients of a run send, and watch the noise.

    Raises:
        ConfigError: this cannot be audited.
    """
    key = rng.new_key(seed, purpose="canaries")
    if isinstance(server.releases, Releases):
        return _audited_clients(prepared, server, server.releases, count, key)
    if isinstance(server.releases, ExampleReleases):
        return _audited_sums(prepared, server, server.releases, count, key)

    assert isinstance(server.steps, NoisySteps), "noise hides something"
    return _audited_steps(prepared, server.steps.plan, count, key)


def _audited_clients(
    prepared: PreparedRun, server: RunServer, releases: Releases, count: int, key: rng.Key
) -> _Audited:
    """Let made-up clients contribute to sums."""
    schedule = prepared.config.schedule
    privacy = prepared.config.privacy
    roster = prepared.federation.roster
    rounds = range(1, schedule.rounds + 1)
    mean_size = np.mean([roster.num_train[client] for client in roster.trainable_clients])
    with placed(prepared.device):
        canaries = Canaries(
            server.messages,
            count,
            num_train=round(_TIMES_THE_EXAMPLES * float(mean_size)),
            rates=[rate_of(privacy, schedule, releases.drawn, round) for round in rounds],
            key=key,
        )

    plain = releases.mechanism
    mechanism = AuditedMechanism(
        **vars(plain), canaries=canaries, added_noise=AddedNoise(plain.contributions)
    )
    releases.mechanism = mechanism
    return _Audited(mechanism.sightings, {"noise": mechanism.noise})


def _audited_sums(
    prepared: PreparedRun, server: RunServer, releases: ExampleReleases, count: int, key: rng.Key
) -> _Audited:
    """Let a client have made-up examples, which add to its sums over features."""
    plain = releases.mechanism
    roster = prepared.federation.roster
    target = roster.trainable_clients[0]
    with one_thread(), placed(prepared.device):
        canaries = CanarySums(
            prepared.algorithm,
            prepared.federation.common_task,
            server.broadcast(1, [target]),
            plain,
            count,
            key,
        )

    adds_noise = prepared.config.privacy.noise_from == "sites"
    client = target if adds_noise else None
    releases.mechanism = AuditedSums(**vars(plain), watch=canaries, client=client)
    facts = {"noise": plain.noise, "bounds": "features", "client": target}
    return _Audited(canaries.sightings, facts)


def _audited_steps(prepared: PreparedRun, plan: ExamplePlan, count: int, key: rng.Key) -> _Audited:
    """Let a client have made-up examples, whose gradients add to those of its steps.

    Raises:
        ConfigError: clients also send sums over features.
    """
    if plan.radius:
        hint = "Of clients that send sums beside them, steps alone have another claim."
        allowed = "the preset of a method that sends no sums over features"
        raise wrong_value("algorithm.preset", allowed, prepared.config.algorithm.name, hint)

    # The rate of a step is largest for whoever has the fewest examples.
    num_train = prepared.federation.roster.num_train
    target = min(plan.releases, key=lambda client: num_train[client])
    canaries = CanarySteps(plan, target, num_train[target], count, key)
    facts = {"noise": plan.releases[target].noise, "bounds": "gradients", "client": target}
    return _Audited(canaries.sightings, facts, auditing_steps(canaries))


def _findings(seen: Sightings, claim: float, delta: float) -> dict[str, Any]:
    """Return what the canaries and the noise tell, and whether it contradicts a claim."""
    inside = seen.inside
    scores = seen.signal + seen.noise
    estimate = estimate_epsilon(inside, scores, delta)
    with_half = estimate_epsilon(inside, seen.signal + seen.noise / 2, delta)

    parts = [part for added in seen.added_noise for part in added.parts()]
    squares = [added.share**2 for added in seen.added_noise]
    is_wrong = any(part.is_too_small or part.repeats for part in parts)

    return {
        "estimate": estimate._asdict(),
        "guesses": {
            "epsilon": guessed_epsilon(inside, scores, delta),
            "at_most": most_by_guessing(len(inside), delta),
        },
        "half_noise": {**with_half._asdict(), "would_be_found": with_half.low > claim},
        "added_noise": {
            "share": float(np.sqrt(np.mean(squares))),
            "parts": [part._asdict() for part in parts],
        },
        "contradiction": estimate.low > claim or is_wrong,
    }
