"""What a run will take: time, memory and disk, estimated from a trial with a few clients and a few
steps of each.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.core import tree
from fedtailor.core.atomic import to_json
from fedtailor.core.codec import encode
from fedtailor.core.devices import to_host
from fedtailor.core.federation import Federation, Split, Splits
from fedtailor.core.participation import Participation
from fedtailor.core.schedule import Schedule
from fedtailor.data.build import split_record
from fedtailor.experiment import summary
from fedtailor.experiment.assembly import PreparedRun, assemble
from fedtailor.experiment.config import Config
from fedtailor.experiment.personal_models import personal_models
from fedtailor.experiment.progress import Progress
from fedtailor.simulation.engines.store import IN_MEMORY
from fedtailor.simulation.engines.workers import physical_cores
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import simulate

_FEW_BATCHES = 1
_MORE_BATCHES = 3
"""Batches of training examples that clients have in the two trials; a line through both gives the
rest."""
_TEST_EXAMPLES = 200
"""Most test examples of a client in a trial."""
_ROUNDS = 6
"""Of a trial. Personal models are made after every second round, everything is tested after the
last one. The first two rounds are not timed: libraries are loaded, steps are recorded."""


class _Trial(NamedTuple):
    """What a few clients took."""

    train: float
    """Seconds of a client's round."""
    evaluate: float
    """Seconds of a test of the global model, by client."""
    personalize: float
    """Seconds to make and test a personal model."""
    aggregate: float
    """Seconds of the server in a round."""
    report: RoundReport
    """Of the last round, after which personal models were made."""
    federation: Federation
    kept: dict[str, dict[int, Any]]
    """What the clients keep, and their personal models, by name and client."""


def estimate(config: Config, progress: Progress | None = None) -> dict[str, Any]:
    """Estimate what a run will take. Nothing is written.

    A few clients of median size train on a few batches, with the method, the model and the engine
    of the run, on the machine as busy as it is now. So times are rough; other clients' data and
    stragglers are not known.

    Returns:
        ``seconds`` (of all seeds), ``memory`` and ``disk`` (bytes), each with its parts, and what
        the run is.

    Raises:
        ConfigError: an option is wrong.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the trial failed, as the run would.
    """
    parts = assemble(config, config.seeds[0], progress=progress)
    try:
        batch = parts.algorithm.training.batch_size or max(parts.federation.roster.num_train)
        few = _try(parts, _FEW_BATCHES * batch)
        more = _try(parts, _MORE_BATCHES * batch)
    finally:
        parts.engine.close()

    seeds = len(config.seeds)
    seconds = _seconds(parts, few, more, batch)
    disk = _disk(parts, more)
    return {
        "algorithm": parts.config.algorithm.name,
        "dataset": parts.divided.dataset.name,
        "clients": len(parts.divided.division.rows),
        "rounds": parts.config.schedule.rounds,
        "seeds": list(config.seeds),
        "engine": parts.engine.name,
        "seconds": _with_total({name: value * seeds for name, value in seconds.items()}),
        "memory": _with_total(_memory(parts, more)),
        "disk": _with_total({name: value * seeds for name, value in disk.items()}),
    }


def _with_total(parts: dict[str, Any]) -> dict[str, Any]:
    return {"total": sum(parts.values()), **parts}


def _try(parts: PreparedRun, most: int) -> _Trial:
    """Run some rounds with a few clients, who have at most ``most`` training examples."""
    federation = _few_clients(parts, most)
    clients = len(federation.splits)
    kept: dict[str, dict[int, Any]] = {}
    schedule = dataclasses.replace(
        parts.config.schedule,
        rounds=_ROUNDS,
        participation=Participation(),
        evaluate_every=0,
        personalized_every=2,
        robust="none",
        select="last",
        patience=0,
    )
    reports = list(
        simulate(
            parts.algorithm,
            federation,
            parts.engine,
            schedule,
            seed=parts.config.seeds[0],
            storage=lambda name: kept.setdefault(name, {}),
            device=parts.device,
        )
    )
    third, fourth, fifth, last = reports[2:]
    personalize = fourth.seconds["evaluate"]

    return _Trial(
        train=min(third.seconds["train"], fifth.seconds["train"]) / clients,
        evaluate=max(last.seconds["evaluate"] - personalize, 0.0) / clients,
        personalize=personalize / clients,
        aggregate=third.seconds["aggregate"] / clients,
        report=last,
        federation=federation,
        kept=to_host(kept, "the estimate of bytes on disk"),
    )


def _few_clients(parts: PreparedRun, most: int) -> Federation:
    """Return a federation of the clients whose size is nearest the median, with some of their
    examples.
    """
    federation = parts.federation
    sizes = federation.roster.num_train
    able = federation.roster.trainable_clients
    median = statistics.median(sizes[client] for client in able)
    at_once = (
        parts.config.engine.block if parts.engine.name == "batched" else parts.config.engine.workers
    )
    wanted = max(2, at_once or 2 * physical_cores())
    chosen = sorted(sorted(able, key=lambda client: abs(sizes[client] - median))[:wanted])
    splits = [federation.splits[client] for client in chosen]

    def of_chosen(values: Sequence[Any]) -> list[Any]:
        return [values[client] for client in chosen] if values else []

    return dataclasses.replace(
        federation,
        splits=Splits(
            Split(split.train[:most], split.val, split.test[:_TEST_EXAMPLES]) for split in splits
        ),
        num_new=0,
        client_names=of_chosen(federation.client_names),
        conditions=of_chosen(federation.conditions),
        client_tasks=of_chosen(federation.client_tasks),
        complete=federation.complete[:0],
    )


def _seconds(parts: PreparedRun, few: _Trial, more: _Trial, batch: int) -> dict[str, float]:
    """Return the seconds of the parts of a run."""
    federation = parts.federation
    schedule = parts.config.schedule
    batches = [math.ceil(size / batch) for size in federation.roster.num_train]
    mean = statistics.fmean(batches[client] for client in federation.roster.trainable_clients)
    in_few = statistics.fmean(math.ceil(size / batch) for size in few.federation.roster.num_train)
    in_more = statistics.fmean(math.ceil(size / batch) for size in more.federation.roster.num_train)

    def at_mean(small: float, large: float) -> float:
        """Return what a client with the mean number of batches takes, from the line through both
        trials.
        """
        if in_more <= in_few:
            return large
        return max(large + (large - small) / (in_more - in_few) * (mean - in_more), small)

    tested = sum(len(split.test) for split in more.federation.splits)
    examples = sum(len(split.test) for split in federation.splits)
    clients = len(federation.splits)
    per_test = examples / clients / max(tested / len(more.federation.splits), 1)
    complete = len(federation.complete) / max(examples, 1)
    client_rounds = _client_rounds(parts)
    globals_ = _times_due(schedule, schedule.evaluate_every)
    personals = _times_due(schedule, schedule.personalized_every)

    return {
        "train": client_rounds * at_mean(few.train, more.train),
        "aggregate": client_rounds * more.aggregate,
        "evaluate": clients * globals_ * more.evaluate * per_test * (1 + complete)
        + clients * personals * at_mean(few.personalize, more.personalize),
    }


def _client_rounds(parts: PreparedRun) -> float:
    """Return how many rounds of single clients a run has, on average."""
    schedule = parts.config.schedule
    population = len(parts.federation.roster.trainable_clients)
    plan = schedule.participation
    if plan.plan == "all" or schedule.everybody_trains(parts.algorithm):
        return float(schedule.rounds * population)
    cohort = plan.count if plan.plan == "fixed" else plan.probability * population
    last = population if plan.full_last_round else cohort
    return (schedule.rounds - 1) * cohort + last


def _times_due(schedule: Schedule, every: int) -> int:
    """Return how often something is evaluated."""
    return sum(schedule.evaluation_is_due(round, every) for round in range(1, schedule.rounds + 1))


def _memory(parts: PreparedRun, trial: _Trial) -> dict[str, int]:
    """Return the bytes of memory of a run at its largest: of this process now, and of what clients
    keep.
    """
    clients = len(parts.federation.splits)
    kept = {
        name: min(_bytes_by_client(values) * clients, IN_MEMORY // 3)
        for name, values in trial.kept.items()
    }
    processes = (
        (parts.config.engine.workers or physical_cores()) if parts.engine.name == "processes" else 0
    )
    now = _largest_memory()

    return {
        "process": now,
        "clients": round(sum(kept.values())),
        "worker_processes": now * processes,
    }


def _bytes_by_client(values: Mapping[int, Any]) -> float:
    """Return the mean number of bytes of trees."""
    sizes = [
        sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(value))
        for value in values.values()
    ]
    return statistics.fmean(sizes) if sizes else 0.0


def _largest_memory() -> int:
    """Return the largest number of bytes that this process has held; 0 where the system does not
    tell.
    """
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _disk(parts: PreparedRun, trial: _Trial) -> dict[str, int]:
    """Return the bytes of the parts of a run folder."""
    config = parts.config
    federation = parts.federation
    clients = len(federation.splits)
    tried = len(trial.federation.splits)
    small = parts._replace(federation=trial.federation)
    models = sum(
        len(data) + len(to_json(card, indent=2))
        for _, data, card in personal_models(small, trial.report)
    )
    stored = sum(
        _encoded(trial.kept.get(name, {})) / tried * min(clients, math.ceil(_client_rounds(parts)))
        for name in ("states", "per_client")
    )
    server = len(encode(trial.report.state.on_host().server)) + 32 * clients
    checkpoints = 2 * (stored + server) if config.checkpoint.every > 0 else 0
    split = len(to_json(split_record(parts.divided.division, parts.divided.conditions)))

    return {
        "models": round(models / tried * clients),
        "checkpoints": round(checkpoints),
        "records": round(_records(parts, trial)),
        "split": split,
    }


def _encoded(values: Mapping[int, Any]) -> int:
    return sum(len(encode(value)) for value in values.values())


def _records(parts: PreparedRun, trial: _Trial) -> float:
    """Return the bytes of ``rounds.jsonl`` and ``clients.jsonl``."""
    schedule = parts.config.schedule
    clients = len(parts.federation.splits)
    length: dict[str, float] = {}
    lines = summary.client_records(trial.report, trial.federation.roster)
    for point in {line["point"] for line in lines}:
        length[point] = statistics.fmean(
            len(to_json(line)) for line in lines if line["point"] == point
        )

    globals_ = _times_due(schedule, schedule.evaluate_every)
    personals = _times_due(schedule, schedule.personalized_every)
    client_rounds = _client_rounds(parts)
    times = {
        "training": client_rounds,
        "local": client_rounds / schedule.rounds * globals_,
        "global": clients * globals_,
        "personalized": clients * personals * (2 if parts.federation.roster.validates else 1),
    }
    record = summary.round_record(trial.report, trial.federation.roster)
    evaluations = len(to_json(record.pop("evaluations")))
    rounds = schedule.rounds * (len(to_json(record)) + 6 * client_rounds / schedule.rounds)

    return (
        sum(length.get(point, 0) * count for point, count in times.items())
        + rounds
        + evaluations * globals_
    )
