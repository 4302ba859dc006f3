"""The audit of noise: does a run tell no more of a client than it claims?"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedtailor.core import rng
from fedtailor.core.devices import placed
from fedtailor.core.engine import one_thread
from fedtailor.core.errors import RunError, all_done
from fedtailor.core.options import wrong_value
from fedtailor.experiment.assembly import PreparedRun, assemble, make_algorithm
from fedtailor.experiment.config import Config, first_training
from fedtailor.experiment.methods import to_text
from fedtailor.experiment.tracking import RunProgress
from fedtailor.privacy.added_noise import AddedNoise
from fedtailor.privacy.audit import estimate_epsilon, guessed_epsilon, most_by_guessing
from fedtailor.privacy.canaries import AuditedMechanism, Canaries
from fedtailor.privacy.mechanism import ClientMechanism
from fedtailor.privacy.plan import rate_of
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.noisy_sums import Releases
from fedtailor.simulation.report import Absences
from fedtailor.simulation.rounds import run_rounds
from fedtailor.simulation.server import RunServer

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
    """Compare what a run claims to tell of a client with what an attacker finds; return the record.

    The run is made, and canaries contribute to its sums; see :mod:`fedtailor.privacy.canaries`.
    It contradicts its claim if the lower end of the estimate is above it, which happens in 5 % of
    the audits of a mechanism that keeps its claim; or if the noise that was added is less than is
    claimed in a part of the messages, or repeats, which happens in 0.01 %.

    Args:
        config: an experiment of one seed that protects clients by noise.
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
        server, mechanism = _audited_server(prepared, canaries, seed)
        told: dict[str, Any] = {}
        for report in run_rounds(server, prepared.device):
            progress.round({"round": report.round, "evaluations": []})
            told = report.privacy or told

    if not told:
        raise RunError("no round had a client that sent anything, so there is nothing to audit.")

    return {
        "audit": "noise",
        "dataset": config.data.title,
        "method": to_text(config.algorithm),
        "seed": seed,
        "rounds": schedule.rounds,
        "clients": prepared.federation.population,
        "canaries": canaries,
        "taking_part": int(mechanism.canaries.inside.sum()),
        "unit": config.privacy.unit,
        "noise": mechanism.noise,
        "delta": told["delta"],
        "claim": told["epsilon"],
        **_findings(mechanism, told["epsilon"], told["delta"]),
        "limits": LIMITS,
    }


def _prepare(config: Config, canaries: int) -> Config:
    """Return the configuration of the run of an audit: models are evaluated at the end only.

    Raises:
        ConfigError: it has several seeds, or does not protect clients.
    """
    if config.privacy.unit != "client":
        hint = "There is no noise on sums of clients to test."
        raise wrong_value(
            "privacy.unit", "'client' for an audit of noise", config.privacy.unit, hint
        )
    if len(config.seeds) > 1:
        raise wrong_value("seeds", "one seed for an audit", list(config.seeds))
    if canaries < FEWEST_CANARIES:
        hint = "Fewer tell too little."
        raise wrong_value("--canaries", f"{FEWEST_CANARIES} or more", canaries, hint)

    make_algorithm(config)
    schedule = dataclasses.replace(config.schedule, evaluate_every=0, personalized_every=0)
    return dataclasses.replace(first_training(config), schedule=schedule)


def _audited_server(
    prepared: PreparedRun, count: int, seed: int
) -> tuple[RunServer, AuditedMechanism]:
    """Return the server of a run, and its mechanism, to whose sums canaries contribute."""
    federation = prepared.federation
    schedule = prepared.config.schedule
    with one_thread(), placed(prepared.device):
        clients = LocalClients(
            prepared.algorithm,
            federation,
            prepared.engine,
            seed=seed,
            device=prepared.device,
        )
        server = RunServer(
            algorithm=prepared.algorithm,
            roster=federation.roster,
            clients=clients,
            schedule=schedule,
            seed=seed,
            resume=None,
            absences=Absences(),
            device=prepared.device,
            privacy=prepared.config.privacy,
            ledger=None,
        )

        roster = federation.roster
        mean_size = np.mean([roster.num_train[client] for client in roster.trainable_clients])
        canaries = Canaries(
            server.messages,
            count,
            num_train=round(_TIMES_THE_EXAMPLES * float(mean_size)),
            rates=[rate_of(schedule, round) for round in range(1, schedule.rounds + 1)],
            key=rng.new_key(seed, purpose="canaries"),
        )

    assert isinstance(server.releases, Releases), "clients are protected"
    plain = server.releases.mechanism
    assert isinstance(plain, ClientMechanism), "clients are protected, not examples"
    mechanism = AuditedMechanism(
        **vars(plain), canaries=canaries, added_noise=AddedNoise(plain.contributions)
    )
    server.releases.mechanism = mechanism
    return server, mechanism


def _findings(mechanism: AuditedMechanism, claim: float, delta: float) -> dict[str, Any]:
    """Return what the canaries and the noise tell, and whether it contradicts a claim."""
    canaries = mechanism.canaries
    inside = canaries.inside
    estimate = estimate_epsilon(inside, canaries.scores, delta)
    with_half = estimate_epsilon(inside, canaries.signal + canaries.noise / 2, delta)
    parts = mechanism.added_noise.parts()
    is_wrong = any(part.is_too_small or part.repeats for part in parts)
    return {
        "estimate": estimate._asdict(),
        "guesses": {
            "epsilon": guessed_epsilon(inside, canaries.scores, delta),
            "at_most": most_by_guessing(len(inside), delta),
        },
        "half_noise": {**with_half._asdict(), "would_be_found": with_half.low > claim},
        "added_noise": {
            "share": mechanism.added_noise.share,
            "parts": [part._asdict() for part in parts],
        },
        "contradiction": estimate.low > claim or is_wrong,
    }
