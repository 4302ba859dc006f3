"""Audits: runs that measure what models tell about the examples that they were trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtailor.core.atomic import make_folder, write_json, write_whole
from fedtailor.core.devices import to_host
from fedtailor.core.engine import one_thread
from fedtailor.core.errors import DataError, all_done
from fedtailor.core.federation import Federation, Split
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import content_of, damaged, parse_toml, read_file, read_object
from fedtailor.experiment.assembly import PreparedRun, assemble, make_algorithm
from fedtailor.experiment.config import (
    Config,
    first_training,
    make_config,
    to_toml,
    without_result_free,
)
from fedtailor.experiment.folder import exclusive, refuse_existing
from fedtailor.experiment.methods import to_text
from fedtailor.experiment.reader import MEMBERS_FILE
from fedtailor.experiment.resume import refuse_other_inputs
from fedtailor.experiment.run import provenance_of_inputs, unused_folder
from fedtailor.experiment.runner import RunJob, make_jobs
from fedtailor.experiment.tracking import RunProgress
from fedtailor.privacy.audit import detect, likelihood_ratios
from fedtailor.simulation.programs import log_odds
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import simulate

RESULT_FILE = "result.json"
_INPUTS_FILE = "inputs.json"
POINTS = ("personalized", "global")
"""The models that are attacked."""
LIMITS = (
    "This is a lower bound on what the models tell, and no proof of privacy: a better attack may "
    "tell more. A site's own model file is not protected against its own data."
)
DEFAULT_TRAININGS = 16
FEWEST_TRAININGS = 4
_VERSION = 1
_LARGEST = 2**31
_MOST_LOG_ODDS = 30.0
"""Beyond it, a model is as sure as it can be."""


class AuditedTraining(NamedTuple):
    """What one training of an audit has shown."""

    inside: np.ndarray  # (n,), bool
    """Which training examples were in, client by client."""
    signals: Mapping[str, np.ndarray]  # each (n,)
    """Log-odds of the true class under a model, by evaluation point."""
    accuracies: Mapping[str, np.ndarray]  # each (clients,)
    """On the clients' test examples, by evaluation point; NaN where there are none."""


def audit_members(
    configs: Sequence[Config],
    *,
    trainings: int = DEFAULT_TRAININGS,
    out: str | Path | None = None,
    progress: RunProgress | None = None,
) -> dict[str, Any]:
    """Measure what models tell about who was in their training, and return the record.

    Every method is trained several times. In each training, every training example of every client
    is in with probability 1/2, and the seed is another one. The log-odds that a client's personal
    model gives to its own examples, and those of the global model, are the signals of a
    likelihood-ratio attack; see :func:`fedtailor.privacy.audit.likelihood_ratios`. Inputs are
    normalized as in a run with all examples.

    A folder that holds the same audit is continued; methods and trainings can be added.

    Args:
        configs: an experiment of one seed, once per method. Models after its last round are
            attacked.
        trainings: of every method.
        out: the folder; default: a new one under ``runs``.
        progress: is told about every round of every training.

    Raises:
        ConfigError: an option is wrong, or the folder holds something else.
        DataError: data is missing or damaged.
        RunError: a training could not continue.
    """
    configs = [audited_training(config) for config in configs]
    if trainings < FEWEST_TRAININGS:
        hint = "Each training is attacked with what the others show."
        raise wrong_value("--trainings", f"{FEWEST_TRAININGS} or more", trainings, hint)

    data = configs[0].data
    folder = default_members_folder(configs[0]) if out is None else Path(out)
    jobs = make_jobs(configs, folder)
    _refuse_other_audit(folder, jobs)
    make_folder(folder)
    with exclusive(folder):
        _write_plan(folder, jobs, trainings)
        records = []
        for job in jobs:
            records.append(_audit_method(job, trainings, progress or RunProgress()))

        record = {
            "audit": "members",
            "folder": str(folder),
            "dataset": data.title,
            "seed": configs[0].seeds[0],
            "trainings": trainings,
            "methods": records,
            "limits": LIMITS,
        }
        write_json(folder / RESULT_FILE, record, indent=2)

    return record


def default_members_folder(config: Config) -> Path:
    """Return a folder that does not exist yet: ``runs/members-DATASET-TIME``."""
    return unused_folder(f"members-{config.data.title}")


def read_members_plan(folder: Path) -> tuple[list[Config], int]:
    """Return the configurations of the audit in a folder, and its number of trainings.

    Raises:
        DataError: the folder is damaged.
    """
    path = folder / MEMBERS_FILE
    plan = read_object(path, within=folder)
    with content_of(path):
        configs = [make_config(parse_toml(text.encode(), path)) for text in plan["configs"]]
        trainings = int(plan["trainings"])

    if plan.get("version") != _VERSION or not configs:
        raise damaged(path, "its version is not known, or it names no method")
    return configs, trainings


def count_trainings(folder: Path, configs: Sequence[Config], trainings: int) -> int:
    """Return how many trainings of an audit are left to do."""
    jobs = make_jobs([audited_training(config) for config in configs], folder)
    paths = [_training_path(job.folder, number) for job in jobs for number in range(trainings)]
    return sum(not path.is_file() for path in paths)


def audited_training(config: Config) -> Config:
    """Return the configuration of a training of an audit: models are evaluated at the end only.

    Raises:
        ConfigError: it has several seeds, chooses a round by scores, or an option of the algorithm
            is wrong.
    """
    if config.schedule.watches_validation:
        hint = "An audit looks at the models after the last round."
        raise wrong_value("evaluation.select", "'last', and evaluation.patience 0", "others", hint)
    if len(config.seeds) > 1:
        raise wrong_value("seeds", "one seed for an audit", list(config.seeds))

    make_algorithm(config)
    schedule = dataclasses.replace(config.schedule, evaluate_every=0, personalized_every=0)
    return dataclasses.replace(first_training(config), schedule=schedule)


def _refuse_other_audit(folder: Path, jobs: Sequence[RunJob]) -> None:
    """Refuse a folder that holds anything but an audit of members of the same data.

    Raises:
        ConfigError: it does.
    """
    if not (folder / MEMBERS_FILE).is_file():
        refuse_existing(folder)
        return

    # Where the data lie changes no result.
    begun = [without_result_free(config) for config in read_members_plan(folder)[0]]
    wanted = without_result_free(jobs[0].config)
    if (begun[0].data, begun[0].seeds) != (wanted.data, wanted.seeds):
        got = f"'{folder}', which holds an audit of {begun[0].data.title} with other options"
        raise wrong_value("--out", "the folder of an audit of the same data, or a new one", got)


def _write_plan(folder: Path, jobs: Sequence[RunJob], trainings: int) -> None:
    configs = [to_toml(job.config) for job in jobs]
    plan = {"version": _VERSION, "trainings": trainings, "configs": configs}
    write_json(folder / MEMBERS_FILE, plan, indent=2)


def _training_path(folder: Path, number: int) -> Path:
    return folder / f"training-{number}.safetensors"


def _audit_method(job: RunJob, trainings: int, progress: RunProgress) -> dict[str, Any]:
    """Train a method as often as is missing, and return what its models tell."""
    name = to_text(job.config.algorithm)
    seed = job.config.seeds[0]
    prepared = assemble(job.config, seed, progress=progress)
    make_folder(job.folder)
    with all_done([prepared.engine.close, progress.end]):
        for note in prepared.notes:
            progress.note(note)

        _keep_inputs(job.folder, provenance_of_inputs(prepared, prepared.split))
        for number in range(trainings):
            path = _training_path(job.folder, number)
            if not path.is_file():
                title = f"{name}, {job.config.data.title}, training {number + 1} of {trainings}"
                progress.begin(title, prepared.config.schedule.rounds)
                _write_training(path, _train(prepared, seed, number, progress))
                progress.end()

    # What was just trained is read again too: an interrupted audit ends with the same record.
    paths = [_training_path(job.folder, number) for number in range(trainings)]
    shown = [_read_training(path) for path in paths]
    return {"method": name, "points": _points(shown, prepared.federation)}


def _keep_inputs(folder: Path, now: Mapping[str, Any]) -> None:
    """Note what trainings are made from, or check that it is what it was.

    Args:
        folder: of the trainings of a method.
        now: digests of data, split and own code.

    Raises:
        DataError: the trainings that are there are of something else.
    """
    path = folder / _INPUTS_FILE
    if path.is_file():
        refuse_other_inputs(read_object(path, within=folder), now, folder)
    elif any(folder.glob("training-*.safetensors")):
        message = f"'{folder}' does not say what its trainings were made from."
        raise DataError(message, path=folder)
    else:
        write_json(path, now)


def _train(prepared: PreparedRun, seed: int, number: int, progress: RunProgress) -> AuditedTraining:
    """Train with half of the examples, and return what the models say about all of them."""
    random = np.random.default_rng([seed, number])
    federation = prepared.federation
    chosen = []
    splits = []
    for client, split in enumerate(federation.splits):
        inside = random.random(len(split.train)) < 0.5
        if client not in federation.roster.known:
            inside[:] = True
        else:
            chosen.append(inside)
        splits.append(Split(split.train[torch.from_numpy(inside)], split.val, split.test))

    halved = dataclasses.replace(federation, splits=splits)
    last = None
    for report in simulate(
        prepared.algorithm,
        halved,
        prepared.engine,
        prepared.config.schedule,
        seed=int(random.integers(2**31)),
        device=prepared.device,
        privacy=prepared.config.privacy,
    ):
        progress.round({"round": report.round, "evaluations": []})
        last = report

    assert last is not None, "a schedule has a round"
    return AuditedTraining(
        inside=np.concatenate(chosen),
        signals=_signals(prepared, last),
        accuracies=_accuracies(last, federation),
    )


def _signals(prepared: PreparedRun, last: RoundReport) -> dict[str, np.ndarray]:
    """Return the log-odds that models give all training examples of the known clients."""
    algorithm = prepared.algorithm
    federation = prepared.federation
    common = algorithm.bind(federation.common_task)
    signals: dict[str, list[np.ndarray]] = {}
    with one_thread():
        shared = algorithm.global_model(common, last.state.on_host().server)
        for client in federation.roster.known:
            examples = federation.examples(federation.splits[client].train)
            task = algorithm.bind(federation.roster.task(client))
            models = {"personalized": last.personal.get(client)}
            if shared is not None:
                models["global"] = shared

            for point, model in models.items():
                # A client without a model, such as one that failed, tells nothing.
                values = np.full(len(examples.positions), np.nan)
                if model is not None:
                    held = to_host(model, "a model for an audit")
                    values = log_odds(algorithm, task, held, examples).numpy()
                signals.setdefault(point, []).append(values)

    limited = {}
    for point, parts in signals.items():
        limited[point] = np.concatenate(parts).clip(-_MOST_LOG_ODDS, _MOST_LOG_ODDS)
    return limited


def _accuracies(last: RoundReport, federation: Federation) -> dict[str, np.ndarray]:
    """Return the accuracy of every known client's models on its test examples."""
    accuracies: dict[str, np.ndarray] = {}
    for evaluation in last.evaluations:
        is_of_clients = evaluation.group == "known" and evaluation.test_set == "clients"
        if evaluation.point not in POINTS or not is_of_clients:
            continue

        values = np.full(federation.roster.population, np.nan)
        for client, scores in evaluation.scores.items():
            total = float(scores.class_total.sum())
            if total > 0:
                values[client] = float(scores.class_correct.sum()) / total
        accuracies[evaluation.point] = values

    return accuracies


def _write_training(path: Path, training: AuditedTraining) -> None:
    tensors = {"inside": training.inside.astype(np.uint8)}
    tensors |= {f"signals/{point}": values for point, values in training.signals.items()}
    tensors |= {f"accuracies/{point}": values for point, values in training.accuracies.items()}
    write_whole(path, save(tensors))


def _read_training(path: Path) -> AuditedTraining:
    """Read what a training has shown.

    Raises:
        DataError: the file is damaged.
    """
    raw = read_file(path, limit=_LARGEST, within=path.parent)
    with content_of(path, SafetensorError):
        tensors = load(raw)
        parts: dict[str, dict[str, np.ndarray]] = {"signals": {}, "accuracies": {}}
        for name, array in tensors.items():
            kind, _, point = name.partition("/")
            if point:
                parts[kind][point] = array

        return AuditedTraining(tensors["inside"].astype(bool), **parts)


def _points(trainings: Sequence[AuditedTraining], federation: Federation) -> dict[str, Any]:
    """Return what every kind of model tells."""
    sizes = [len(federation.splits[client].train) for client in federation.roster.known]
    inside = np.array([training.inside for training in trainings])
    if inside.shape[1] != sum(sizes):
        raise DataError(f"the trainings are of {inside.shape[1]} examples, got {sum(sizes)}.")

    owners = np.repeat(np.arange(len(sizes)), sizes)
    points = {}
    for point in POINTS:
        if not all(point in training.signals for training in trainings):
            continue

        signals = np.array([training.signals[point] for training in trainings])
        ratios = likelihood_ratios(inside, signals)
        accuracies = np.full(len(sizes), np.nan)
        if all(point in training.accuracies for training in trainings):
            accuracies = np.mean([training.accuracies[point] for training in trainings], axis=0)

        clients = []
        for client, size in enumerate(sizes):
            mine = owners == client
            detection = detect(inside[:, mine], ratios[:, mine])
            clients.append(
                {
                    "client": client,
                    "name": federation.roster.name_of(client),
                    "num_train": size,
                    "accuracy": float(accuracies[client]),
                    **detection._asdict(),
                }
            )

        points[point] = {
            "accuracy": _mean(accuracies),
            **detect(inside, ratios)._asdict(),
            "threshold_auc": detect(inside, signals).auc,
            "decisions": int(np.isfinite(ratios).sum()),
            "worst_client": _worst(clients),
            "clients": clients,
        }

    return points


def _mean(values: np.ndarray) -> float:
    """Return the mean of the numbers that there are."""
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


def _worst(clients: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the client whose models tell most; None if nothing can be said of any."""
    measured = [client for client in clients if np.isfinite(client["auc"])]
    if not measured:
        return None
    return int(max(measured, key=lambda client: float(client["auc"]))["client"])
