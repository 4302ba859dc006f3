"""Reuse of training: a run begins with what another run has trained, if nothing that decides
training is different.

Every run records the digest of what decides its training: method, options, data, split, seed, who
takes part, the order of addition, the software and the processor. Options that matter for
personalization only are left out. So FedAvg, FedAvg-FT and kNN-Per share one training, and a run of
more rounds continues one of fewer rounds. What comes out is, bit for bit, what the run would have
trained itself.

A run takes over checkpoint and records of another, and then resumes as any interrupted run does. If
nothing is left to train, only the evaluation of the last round is made again, by the own method.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.atomic import to_json
from fedtailor.core.errors import DataError, FedtailorError
from fedtailor.core.reading import read_lines
from fedtailor.core.reduction import REDUCTION_VERSION
from fedtailor.core.schedule import Schedule
from fedtailor.data.build import split_record
from fedtailor.experiment.assembly import PreparedRun
from fedtailor.experiment.config import Config, load_config
from fedtailor.experiment.provenance import machine, versions
from fedtailor.experiment.records import RunFolder, holds_run, is_running
from fedtailor.simulation.checkpoint import Checkpoints

Record = dict[str, Any]
CHECKPOINTS = "checkpoints"
"""Folder in a run folder for checkpoints, and for what clients keep from round to round."""
_WITHOUT_INFLUENCE = frozenset({"dir", "path", "split"})
"""Keys of ``[data]`` that say where data is; the digests of data and split say what it is."""
_SAME_BITS = frozenset({"reference", "workers", "processes", "ray"})
"""Engines that give the same bits."""
_STAGES = {"evaluate": "global", "personalize": "personalized"}
"""What the reason of an event begins with -> the evaluation point at which it happened."""
_RANKED = ("auroc", "auroc_by_class", "score_bins")
"""Figures that only the last round of a run has."""


class Training(NamedTuple):
    """What another run has trained."""

    path: Path
    """The run folder."""
    config: Config


class LastRound(NamedTuple):
    """The last round of a training that is complete, before the models of the own method are made
    and tested.
    """

    record: Record
    """Its line in ``rounds.jsonl``."""
    clients: list[Record]
    """Its lines in ``clients.jsonl``."""
    events: list[Record]
    local: Record
    """The metrics at the evaluation point ``local``; empty if there are none."""


class Taken(NamedTuple):
    """What a run has taken over from another."""

    path: str
    """The run folder."""
    rounds: int
    seconds: float
    """What the rounds took there."""
    last: LastRound | None
    """None if rounds are left to train."""


def training_digest(parts: PreparedRun) -> str:
    """Return the SHA-256 of all that decides a training but its number of rounds; empty if the code
    of a user does.
    """
    algorithm = parts.algorithm
    cls = type(algorithm)
    if ":" in parts.config.algorithm.name or ":" in "".join(
        [parts.config.model.name, *parts.config.model.others]
    ):
        return ""

    data = dataclasses.asdict(parts.config.data)
    schedule = parts.config.schedule
    here = machine()
    deciding = {
        "method": cls.trains_as or parts.config.algorithm.name,
        "options": _deciding_options(algorithm),
        "training": dataclasses.asdict(algorithm.training),
        "model": dataclasses.asdict(parts.config.model),
        "data": {key: value for key, value in data.items() if key not in _WITHOUT_INFLUENCE},
        "data_sha256": parts.divided.division.dataset.digest,
        "split_sha256": split_record(parts.divided.division, parts.divided.conditions)[
            "split_sha256"
        ],
        "seed": parts.config.seeds[0],
        "federation": {
            key: value
            for key, value in schedule.sections()["federation"].items()
            if key != "rounds"
        },
        "engine": "exact" if _has_same_bits(parts) else dataclasses.asdict(parts.config.engine),
        "reduction": REDUCTION_VERSION,
        "versions": versions(),
        "code": _digest_of_code(),
        "processor": [here["torch"], here["torch_cpu_capability"]],
    }

    return hashlib.sha256(to_json(deciding).encode()).hexdigest()


def _has_same_bits(parts: PreparedRun) -> bool:
    """Return whether a run has the bits of the engine ``reference`` on the CPU."""
    return parts.engine.name in _SAME_BITS and parts.device.type == "cpu"


@cache
def _digest_of_code() -> str:
    """Return the SHA-256 of the source files of the package: a version, or a commit, may have been
    changed since.
    """
    digest = hashlib.sha256()
    folder = Path(__file__).resolve().parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(
            path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()


def _deciding_options(algorithm: Algorithm[Any, Any, Any]) -> dict[str, Any]:
    """Return the options of an algorithm that matter for its training."""
    cls = type(algorithm)
    return {
        name: getattr(algorithm, name)
        for name in cls.option_names()
        if name not in cls.only_for_personalization
    }


def find_training(parts: PreparedRun, digest: str, paths: Iterable[Path]) -> list[Training]:
    """Return the runs whose training a new run can begin with, those with the most rounds first.

    Args:
        parts: of the new run.
        digest: of its training.
        paths: folders of runs, of one or several seeds; others are passed over.
    """
    if not digest or parts.config.schedule.watches_validation or parts.config.checkpoint.every == 0:
        return []

    found = []
    for path in _single_runs(paths):
        try:
            if RunFolder(path).provenance().get("training_sha256") != digest or is_running(path):
                continue

            training = Training(path, load_config(path / "experiment.toml"))
            done = RunFolder(path).count_rounds()
        except FedtailorError:  # a damaged run is no help
            continue

        if _fits(training.config, parts.config, done):
            found.append((done, training))

    return [training for _, training in sorted(found, key=itemgetter(0), reverse=True)]


def _single_runs(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders of single seeds."""
    for path in paths:
        seeds = sorted(path.glob("seed-*"))
        yield from (each for each in seeds or [path] if holds_run(each))


def _fits(theirs: Config, own: Config, done: int) -> bool:
    """Return whether the records of another run hold what an own run would have recorded in its
    first rounds.
    """
    schedule = own.schedule
    if theirs.schedule.watches_validation or not 0 < done <= schedule.rounds:
        return False
    if done == schedule.rounds and theirs.schedule.rounds != done:
        return False  # its round was not the last one

    if (
        done < schedule.rounds
        and theirs.schedule.rounds == done
        and differs_at_the_end(theirs.schedule)
    ):
        return False

    needed = range(
        1, min(done + 1, schedule.rounds)
    )  # what belongs to the last round is made again
    return all(_recorded(theirs, own, round) for round in needed)


def differs_at_the_end(schedule: Schedule) -> bool:
    """Return whether other clients take part in the last round than if it were not the last one."""
    return schedule.participation.full_last_round and schedule.participation.plan != "all"


def _recorded(theirs: Config, own: Config, round: int) -> bool:
    """Return whether another run has made the evaluations of a round that an own run would make."""
    wanted = own.schedule
    made = theirs.schedule
    if wanted.evaluation_is_due(round, wanted.personalized_every):
        same_models = theirs.algorithm == own.algorithm
        if not same_models or not made.evaluation_is_due(round, made.personalized_every):
            return False
    is_wanted = wanted.evaluation_is_due(round, wanted.evaluate_every)
    return not is_wanted or made.evaluation_is_due(round, made.evaluate_every)


def take_over(
    training: Training, parts: PreparedRun, folder: RunFolder, checkpoints: Checkpoints
) -> tuple[Any, Taken] | None:
    """Put checkpoint and records of another run into the folder of a new one, and fill the stores
    of the checkpoints.

    Returns:
        The state of the run after the rounds that were taken over, and what was taken. None if the
        other run is of no use; then nothing of it is left in the folder and the stores.

    Raises:
        RunError: a file cannot be written.
    """
    try:
        taken = _take_over(training, parts, folder, checkpoints)
    except DataError:  # the other run is damaged
        taken = None
    if taken is None:
        folder.clear()
        checkpoints.forget()
    return taken


def _take_over(
    training: Training, parts: PreparedRun, folder: RunFolder, checkpoints: Checkpoints
) -> tuple[Any, Taken] | None:
    """Do the work of :func:`take_over`; what fails leaves its traces.

    Raises:
        DataError: the other run is damaged.
        RunError: a file cannot be written.
    """
    source = training.path / CHECKPOINTS
    if not source.is_dir():
        return None

    shutil.copytree(source, folder.path / CHECKPOINTS, dirs_exist_ok=True)
    restored, _ = checkpoints.restore(
        lambda notes: RunFolder(training.path).objection(notes.get("records"))
    )
    if restored is None:
        return None

    done = restored.state.round
    is_complete = done == parts.config.schedule.rounds
    last: LastRound | None = None
    seconds = 0.0
    for record, clients, events, local in _recorded_rounds(training.path, done, restored.notes):
        if any(event.get("kind") == "absent" for event in events):
            return None  # no answer came, for a reason that the own run would not have

        own = _as_own(record, clients, events, training.config, parts.config.schedule)
        if is_complete and record["round"] == done:
            last = LastRound(*own, local)
        else:
            folder.add_round(own[0], clients=own[1], events=own[2])

        seconds += math.fsum(own[0]["seconds"].values())

    if is_complete and last is None:
        raise DataError(
            f"'{training.path}' has no record of round {done}.", path=str(training.path)
        )

    return restored.state, Taken(str(training.path), done, seconds, last)


def _recorded_rounds(
    path: Path, done: int, notes: Mapping[str, Any]
) -> Iterator[tuple[Record, list[Record], list[Record], Record]]:
    """Yield every round up to a number: its record, those of its clients, its events, and its
    metrics at ``local``.

    Only the last round has the latter. It may be in the notes of the checkpoint alone: then the
    other run has taken it over itself, and not made its own models yet.
    """
    local = notes.get("result", {}).get("metrics", {}).get("local", {})
    for record, clients, events in _lines_by_round(path, done):
        yield record, clients, events, local
    waiting = from_notes(notes)
    if waiting is not None and waiting.last is not None:
        yield waiting.last


def _lines_by_round(path: Path, done: int) -> Iterator[tuple[Record, list[Record], list[Record]]]:
    """Yield the lines of every round up to a number."""
    by_round = groupby(read_lines(path / "clients.jsonl", within=path), key=itemgetter("round"))
    events = [
        event
        for event in read_lines(path / "events.jsonl", within=path)
        if event.get("kind") != "note"
    ]
    clients = next(by_round, None)

    for record in read_lines(path / "rounds.jsonl", within=path):
        number = record["round"]
        if number > done:
            return

        lines: list[Record] = []
        if clients is not None and clients[0] == number:
            lines = list(clients[1])
            clients = next(by_round, None)

        yield record, lines, [event for event in events if event.get("round") == number]


def _as_own(
    record: Record,
    clients: Sequence[Record],
    events: Sequence[Record],
    theirs: Config,
    schedule: Schedule,
) -> tuple[Record, list[Record], list[Record]]:
    """Return a round as the own run would have recorded it; the last one without the models that it
    makes itself.
    """
    number = record["round"]
    is_last = number == schedule.rounds
    was_last = number == theirs.schedule.rounds
    points = {"training"}
    if schedule.evaluation_is_due(number, schedule.evaluate_every):
        points |= {"local"} if is_last else {"local", "global"}
    if schedule.evaluation_is_due(number, schedule.personalized_every) and not is_last:
        points.add("personalized")

    left_out = frozenset(_RANKED if was_last and not is_last else ())
    own = dict(record)
    own["evaluations"] = [
        {**each, "metrics": _without(each["metrics"], left_out)}
        for each in record["evaluations"]
        if each["point"] in points
    ]
    if was_last:  # the steps of the personalization are those of the other method
        own["steps"] = _training_steps(clients)
    if is_last:
        own["seconds"] = {**record["seconds"], "evaluate": 0.0}

    lines = [_without(line, left_out) for line in clients if line["point"] in points]
    foreign = tuple(stage for stage, point in _STAGES.items() if point not in points)
    kept = [
        event for event in events if not foreign or not str(event.get("reason")).startswith(foreign)
    ]

    return own, lines, kept


def _training_steps(clients: Iterable[Record]) -> int:
    """Return the gradient steps of a round's training."""
    steps = (
        line["training_metrics"].get("steps", 0) for line in clients if line["point"] == "training"
    )
    return round(math.fsum(steps))


def _without(figures: Record, names: frozenset[str]) -> Record:
    """Return figures without those of some names."""
    return {name: value for name, value in figures.items() if name not in names}


def with_own_models(
    last: LastRound, record: Record, clients: Sequence[Record]
) -> tuple[Record, list[Record]]:
    """Return the lines of the last round, with the evaluations of the models that the run has made
    itself.

    Args:
        last: the training of the round.
        record: what the own evaluation would record of the round.
        clients: what it would record of clients.
    """
    merged = {
        **last.record,
        "steps": last.record["steps"] + record["steps"],
        "seconds": {**last.record["seconds"], "evaluate": record["seconds"]["evaluate"]},
        "evaluations": [*last.record["evaluations"], *record["evaluations"]],
    }
    training = [line for line in last.clients if line["point"] == "training"]
    local = [line for line in last.clients if line["point"] != "training"]

    return merged, [*local, *clients, *training]


def to_notes(taken: Taken) -> Record:
    """Return what was taken over, as notes of a checkpoint."""
    # the lines of many clients go through JSON once, as one text
    return {
        **taken._asdict(),
        "last": None if taken.last is None else to_json(taken.last._asdict()),
    }


def from_notes(notes: Mapping[str, Any]) -> Taken | None:
    """Read what :func:`to_notes` returned; None if nothing was taken over."""
    found = notes.get("reused")
    if found is None:
        return None
    last = found["last"]
    return Taken(**{**found, "last": None if last is None else LastRound(**json.loads(last))})


def is_taken(notes: Mapping[str, Any]) -> bool:
    """Return whether notes say what was taken over from another run, or nothing of it."""
    try:
        taken = from_notes(notes)
    except (TypeError, KeyError, ValueError, RecursionError):
        return False
    return taken is None or (isinstance(taken.path, str) and isinstance(taken.rounds, int))
