"""Run an experiment, and write what comes of it."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedtailor.core import tree
from fedtailor.core.atomic import safe_name
from fedtailor.core.metrics import per_client
from fedtailor.core.per_example import holds_examples
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
"""Folder in a run folder for what does not fit into memory while the run goes on."""


def run(
    config: Config | None = None, *, out: str | Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run an experiment, once per seed, and return its result: what ``fedtailor run --json`` prints.

    Args:
        config: the experiment; default: pFedFDA on the embedded digits.
        out: the run folder; default: ``runs/ALGORITHM-DATASET-TIME``.
        progress: what is told while it runs; default: nothing.

    Raises:
        ConfigError: an option is wrong, or the folder exists.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not go on.

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
    everything = dataclasses.replace(parts.config, seeds=config.seeds)
    config_text, provenance = to_toml(everything), _provenance(parts)
    with records.RunFolder(path, config=config_text, provenance=provenance, several_seeds=True) as folder:
        results = []
        for seed in config.seeds:
            if seed != parts.config.seeds[0]:
                same, reason = dataclasses.replace(config, engine=parts.config.engine), parts.choice.reason
                parts = assemble(same, seed, dataset=parts.divided.division.dataset, progress=progress)
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
    """Run one seed and write its folder; return its result."""
    start = time.perf_counter()
    name, seed = parts.config.algorithm.name, parts.config.seeds[0]
    with records.RunFolder(path, config=to_toml(parts.config), provenance=_provenance(parts)) as folder:
        folder.write_split({**split_record(parts.divided.division, parts.divided.conditions)})
        folder.add_events([{"kind": "note", "text": note} for note in parts.notes])
        for note in (*parts.notes, *([parts.choice.reason] if parts.choice.seconds is not None else [])):
            progress.note(note)
        progress.begin(f"{name}, {parts.divided.dataset.name}, seed {seed}", parts.config.schedule.rounds)
        try:
            result = _run_rounds(parts, folder, progress)
        finally:
            progress.end()
            shutil.rmtree(folder.path / _STATE, ignore_errors=True)
            parts.engine.close()
        result["seconds"]["total"] = time.perf_counter() - start
        folder.finish(result)
    return result


def _run_rounds(parts: PreparedRun, folder: records.RunFolder, progress: Progress) -> dict[str, Any]:
    """Run all rounds, write each as it ends, and the models after the last; return the result."""
    config, federation = parts.config, parts.federation
    history: list[dict[str, Any]] = []
    events: list[list[dict[str, Any]]] = []
    participated: set[int] = set()
    for report in _rounds(parts, folder):
        record = summary.round_record(report, federation)
        folder.add_round(record, clients=summary.client_records(report, federation), events=report.events)
        for sentence in summary.event_sentences(report):
            progress.note(sentence)
        progress.round(record)
        history.append(record)
        events.append(report.events)
        participated.update(report.trained)
        _write_models(parts, folder, report, participated)
    _say_who_never_trained(parts, folder, progress, participated)
    metrics, new_clients = summary.final_metrics(history[-1])
    sites = summary.site_scores(report, federation) if parts.divided.division.client_names else {}
    return {
        "run": str(folder.path),
        "algorithm": config.algorithm.name,
        "dataset": parts.divided.dataset.name,
        "clients": len(parts.divided.division.rows),
        "rounds": config.schedule.rounds,
        "seeds": list(config.seeds),
        "split_sha256": split_record(parts.divided.division, parts.divided.conditions)["split_sha256"],
        "metrics": metrics,
        **({"new_clients": new_clients} if new_clients else {}),
        **({"sites": sites} if sites else {}),
        **summary.totals(history),
        "events": summary.count_events(events),
        "engine": parts.engine.name,
        "device": "cpu",
    }


def _rounds(parts: PreparedRun, folder: records.RunFolder) -> Iterator[RoundReport]:
    """Run the rounds; what does not fit into memory goes into the run folder meanwhile."""
    return simulate(
        parts.algorithm,
        parts.federation,
        parts.engine,
        parts.config.schedule,
        seed=parts.config.seeds[0],
        storage=lambda name: Store(folder.path / _STATE / name, IN_MEMORY // 3),  # there are three of them
    )


def _say_who_never_trained(
    parts: PreparedRun, folder: records.RunFolder, progress: Progress, participated: set[int]
) -> None:
    """Note how many clients were never drawn, or had no result that could be used."""
    never = sum(client not in participated for client in parts.federation.known)
    if never:
        note = f"{never} of {parts.federation.population} clients never trained, or never so that it could be used."
        folder.add_events([{"kind": "note", "text": note}])
        progress.note(note)


def _write_models(parts: PreparedRun, folder: records.RunFolder, report: RoundReport, participated: set[int]) -> None:
    """Write every client's personal model with its card; ``participated``: who trained and was not left out."""
    config, federation = parts.config, parts.federation
    scored = {
        client: per_client(scores)
        for evaluation in report.evaluations
        if evaluation.point == "personalized" and evaluation.test_set == "clients"
        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True)
    }
    for client, personal in report.personal.items():
        name = federation.client_names[client] if federation.client_names else str(client)
        tensors = {leaf_path: leaf.detach().contiguous().numpy() for leaf_path, leaf in tree.paths(personal).items()}
        card = {
            "algorithm": config.algorithm.name,
            "model": (config.model.name, *config.model.others)[client % (1 + len(config.model.others))],
            "dataset": parts.divided.dataset.name,
            "seed": config.seeds[0],
            "round": report.round,
            "adaptation": parts.algorithm.adaptation_summary(new=client in federation.new),
            "participated": client in participated,
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
    where = {"engine": parts.engine.name, "engine_choice": parts.choice.reason, "device": "cpu"}
    return {**describe(), "data": data, "split_sha256": split["split_sha256"], "notes": parts.notes, **where}
