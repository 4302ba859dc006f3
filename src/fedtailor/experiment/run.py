"""Run an experiment and write its folder."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from pathlib import Path
from typing import Any

from fedtailor.core import tree
from fedtailor.core.atomic import safe_name
from fedtailor.core.metrics import per_client
from fedtailor.core.per_example import holds_examples
from fedtailor.core.reduction import REDUCTION_VERSION
from fedtailor.data.build import split_record
from fedtailor.experiment import records, summary
from fedtailor.experiment.assembly import PreparedRun, assemble
from fedtailor.experiment.config import Config, to_toml
from fedtailor.experiment.progress import Progress, Silence
from fedtailor.experiment.provenance import describe, describe_data
from fedtailor.simulation.engines.store import IN_MEMORY, Store
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import simulate

_STATE = "state"
"""Folder in a run folder for what does not fit into memory during the run."""


def run(
    config: Config | None = None, *, out: str | Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run an experiment, once per seed, and return its result: what ``fedtailor run --json`` prints.

    Args:
        config: the experiment; default: pFedFDA on the embedded digits.
        out: the run folder; default: ``runs/ALGORITHM-DATASET-TIME``.
        progress: is told about every round; default: nothing is shown.

    Raises:
        ConfigError: an option is wrong, or the folder exists.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not continue.

    Example:
        >>> from fedtailor import make_config
        >>> result = run(make_config({"data": {"clients": 3}, "federation": {"rounds": 2}}), out="runs/first")
        >>> 0.5 < result["metrics"]["personalized"]["accuracy"]["mean"] <= 1
        True
    """
    config = config or Config()
    progress = progress or Silence()
    path = Path(out) if out is not None else default_folder(config)
    records.refuse_existing(path)
    parts = assemble(config, config.seeds[0], progress=progress)
    if len(config.seeds) == 1:
        return run_seed(parts, path, progress)
    config_text = to_toml(dataclasses.replace(parts.config, seeds=config.seeds))
    same_engine = dataclasses.replace(config, engine=parts.config.engine)  # every seed runs on that of the first
    reason = parts.choice.reason
    with records.RunFolder(path, config=config_text, provenance=_provenance(parts), several_seeds=True) as folder:
        results = []
        for seed in config.seeds:
            if seed != config.seeds[0]:
                parts = assemble(same_engine, seed, dataset=parts.divided.division.dataset, progress=progress)
                parts = parts._replace(choice=parts.choice._replace(reason=reason))
            results.append(run_seed(parts, path / f"seed-{seed}", progress))
        result = {**summary.average(results), "run": str(path), "seeds": list(config.seeds)}
        folder.finish(result)
    return result


def default_folder(config: Config) -> Path:
    """Return a run folder that does not exist yet: ``runs/ALGORITHM-DATASET-TIME``."""
    return unused_folder(f"{config.algorithm.name}-{config.data.title}")


def unused_folder(name: str) -> Path:
    """Return a folder under ``runs`` that does not exist yet, named with the time."""
    name = safe_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / each for each in names) if not path.exists())


def run_seed(parts: PreparedRun, path: Path, progress: Progress) -> dict[str, Any]:
    """Run one seed, write each round as it ends and the models after the last one; return the result."""
    start = time.perf_counter()
    config = parts.config
    with records.RunFolder(path, config=to_toml(config), provenance=_provenance(parts)) as folder:
        _write_beginning(parts, folder, progress)
        state_folder = folder.path / _STATE
        history: list[dict[str, Any]] = []
        events: list[list[dict[str, Any]]] = []
        try:
            for report in simulate(
                parts.algorithm,
                parts.federation,
                parts.engine,
                config.schedule,
                seed=config.seeds[0],
                storage=lambda name: Store(state_folder / name, IN_MEMORY // 3),  # there are three of them
            ):
                history.append(_write_round(parts, folder, progress, report))
                events.append(report.events)
            _write_models(parts, folder, report)
            _say_who_never_trained(parts, folder, progress, report)
        finally:
            progress.end()
            shutil.rmtree(state_folder, ignore_errors=True)
            parts.engine.close()
        result = _result(parts, folder, report, history, events)
        result["seconds"]["total"] = time.perf_counter() - start
        folder.finish(result)
    return result


def _write_beginning(parts: PreparedRun, folder: records.RunFolder, progress: Progress) -> None:
    """Write what is known before the first round, and show it."""
    folder.write_split({**split_record(parts.divided.division, parts.divided.conditions)})
    folder.add_events([{"kind": "note", "text": note} for note in parts.notes])
    for note in parts.notes:
        progress.note(note)
    if parts.choice.seconds is not None:
        progress.note(parts.choice.reason)
    title = f"{parts.config.algorithm.name}, {parts.divided.dataset.name}, seed {parts.config.seeds[0]}"
    progress.begin(title, parts.config.schedule.rounds)


def _write_round(
    parts: PreparedRun, folder: records.RunFolder, progress: Progress, report: RoundReport
) -> dict[str, Any]:
    """Write a round, show it, and return its record."""
    record = summary.round_record(report, parts.federation)
    clients = summary.client_records(report, parts.federation)
    folder.add_round(record, clients=clients, events=report.events)
    for sentence in summary.event_sentences(report):
        progress.note(sentence)
    progress.round(record)
    return record


def _result(
    parts: PreparedRun,
    folder: records.RunFolder,
    last: RoundReport,
    history: list[dict[str, Any]],
    events: list[list[dict[str, Any]]],
) -> dict[str, Any]:
    """Return the result of a run from the report of its last round and the records of all rounds."""
    config = parts.config
    metrics, new_clients = summary.final_metrics(history[-1])
    result = {
        "run": str(folder.path),
        "algorithm": config.algorithm.name,
        "dataset": parts.divided.dataset.name,
        "clients": len(parts.divided.division.rows),
        "rounds": config.schedule.rounds,
        "seeds": list(config.seeds),
        "split_sha256": split_record(parts.divided.division, parts.divided.conditions)["split_sha256"],
        "metrics": metrics,
    }
    if new_clients:
        result["new_clients"] = new_clients
    if parts.divided.division.client_names:
        result["sites"] = summary.site_scores(last, parts.federation)
    result |= summary.totals(history)
    result |= {"events": summary.count_events(events), "engine": parts.engine.name, "device": "cpu"}
    return result


def _say_who_never_trained(
    parts: PreparedRun, folder: records.RunFolder, progress: Progress, last: RoundReport
) -> None:
    """Note how many clients were never drawn, or had no result that could be used."""
    roster = parts.federation.roster
    never = sum(client not in last.state.participated for client in roster.known)
    if never:
        note = f"{never} of {roster.population} clients never trained, or none of their results could be used."
        folder.add_events([{"kind": "note", "text": note}])
        progress.note(note)


def _write_models(parts: PreparedRun, folder: records.RunFolder, last: RoundReport) -> None:
    """Write every client's personal model with its card."""
    config = parts.config
    federation = parts.federation
    model_names = (config.model.name, *config.model.others)
    scored = {
        client: per_client(scores)
        for evaluation in last.evaluations
        if evaluation.point == "personalized" and evaluation.test_set == "clients"
        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True)
    }
    for client, personal in last.personal.items():
        name = federation.client_names[client] if federation.client_names else str(client)
        tensors = {leaf_path: leaf.detach().contiguous().numpy() for leaf_path, leaf in tree.paths(personal).items()}
        card = {
            "algorithm": config.algorithm.name,
            "model": model_names[client % len(model_names)],
            "dataset": parts.divided.dataset.name,
            "seed": config.seeds[0],
            "round": last.round,
            "adaptation": parts.algorithm.adaptation_summary(new=client in federation.roster.new),
            "participated": client in last.state.participated,
            "holds_examples": holds_examples(personal),
            "input_shape": list(federation.common_task.input_shape),
            "num_classes": federation.common_task.num_classes,
            "class_names": list(federation.class_names),
            "condition": federation.conditions[client] if federation.conditions else "clean",
            "class_counts": federation.info(client).class_counts.long().tolist(),
            "scores": scored.get(client, {}),
        }
        folder.write_model(name, tensors, card)


def _provenance(parts: PreparedRun) -> dict[str, Any]:
    """Return where the result comes from."""
    split = split_record(parts.divided.division, parts.divided.conditions)
    data = describe_data(parts.divided.division.dataset)
    return {
        **describe(),
        "data": data,
        "split_sha256": split["split_sha256"],
        "notes": parts.notes,
        "engine": parts.engine.name,
        "engine_choice": parts.choice.reason,
        "device": "cpu",
        "reduction": REDUCTION_VERSION,
    }
