"""Run an experiment and write its folder."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import safe_name
from fedtailor.core.errors import ConfigError, all_done
from fedtailor.core.options import show
from fedtailor.core.reduction import REDUCTION_VERSION
from fedtailor.data.build import split_record
from fedtailor.data.input_specification import write_input_specification
from fedtailor.experiment import summary
from fedtailor.experiment.assembly import PreparedRun, assemble
from fedtailor.experiment.config import Config, to_toml
from fedtailor.experiment.personal_models import personal_models
from fedtailor.experiment.progress import Progress, Several, Silence
from fedtailor.experiment.provenance import describe, describe_data, machine, versions
from fedtailor.experiment.records import (
    CHECKPOINTS,
    RunFolder,
    exclusive,
    holds_run,
)
from fedtailor.experiment.resume import (
    begun_config,
    changed_software,
    refuse_other_configuration,
    refuse_other_data,
    with_first_choices,
)
from fedtailor.experiment.trackers import check_trackers
from fedtailor.experiment.tracking import make_tracked, tracked_run
from fedtailor.simulation.checkpoint import Checkpoints, readable_modules
from fedtailor.simulation.engines.store import IN_MEMORY, Store
from fedtailor.simulation.report import RoundReport, RunState
from fedtailor.simulation.rounds import simulate

_STATE = "state"
"""Folder in a run folder for personal models that do not fit into memory before they are
written."""
_KEPT = ("states", "per_client")
"""What clients keep from round to round."""
_REMEMBERED = ("best_states", "best_per_client")
"""What they kept after the best round so far, if the run gives the models of that round."""
_FINISHED = "'{path}' holds this run, and it has finished."


def run(
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
    track: Iterable[str] = (),
) -> dict[str, Any]:
    """Run an experiment, once per seed, and return its result: what ``fedtailor run --json``
    prints.

    If the folder already holds a run of the same configuration, that run is resumed. If it has
    finished, its result is returned. Seeds that it does not have are added to a run of several
    seeds.

    Args:
        config: the experiment; default: pFedFDA on the embedded digits.
        out: the run folder; default: ``runs/ALGORITHM-DATASET-TIME``.
        progress: is told about every round; default: nothing is shown.
        track: names of trackers that log the run too, in its folder: ``tensorboard``, ``mlflow``,
            ``wandb``. They never change the run or stop it.

    Raises:
        ConfigError: an option is wrong, or the folder holds something else.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not continue.

    Example:
        >>> from fedtailor import make_config
        >>> result = run(make_config({"data": {"clients": 3}, "federation": {"rounds": 2}}), out="runs/first")
        >>> 0.5 < result["metrics"]["personalized"]["accuracy"]["mean"] <= 1
        True
    """
    config = _check_type(config)
    progress = progress or Silence()
    trackers = check_trackers(track)
    path = Path(out) if out is not None else default_folder(config)
    begun = begun_config(path)
    if begun is not None:
        config = with_first_choices(config, begun, path)

    parts = assemble(config, config.seeds[0], progress=progress)
    several = len(config.seeds) > 1
    resolved = dataclasses.replace(parts.config, seeds=config.seeds)
    if begun is None:
        RunFolder.create(
            path, config=to_toml(resolved), provenance=_provenance(parts), several_seeds=several
        )
    else:
        refuse_other_configuration(resolved, begun, path)

    with exclusive(path):
        if not several:
            return run_seed(parts, path, progress, trackers=trackers)

        same_engine = dataclasses.replace(
            config, engine=parts.config.engine
        )  # every seed runs on that of the first
        reason = parts.choice.reason
        folder = RunFolder(path, several_seeds=True)
        finished = folder.result()

        if finished is not None and begun is not None and begun.seeds == config.seeds:
            first = RunFolder(path / f"seed-{config.seeds[0]}")
            refuse_other_data(first.provenance(), _inputs(parts), first.path)
            folder.settle()
            progress.note(_FINISHED.format(path=path))

            return finished

        folder.remove_temporary_files()
        with folder:
            folder.restart(to_toml(resolved))
            for number, seed in enumerate(config.seeds, 1):
                if seed != config.seeds[0]:
                    parts = assemble(
                        same_engine, seed, dataset=parts.divided.division.dataset, progress=progress
                    )
                    parts = parts._replace(choice=parts.choice._replace(reason=reason))

                place = f"run {number} of {len(config.seeds)}"
                run_seed(
                    parts,
                    path / f"seed-{seed}",
                    progress,
                    place=place,
                    trackers=trackers,
                    top=path,
                )

            results = [RunFolder(path / f"seed-{seed}").result() or {} for seed in config.seeds]
            result = {**summary.average(results), "run": str(path), "seeds": list(config.seeds)}
            folder.finish(result)

    return result


def _check_type(config: object) -> Config:
    """Return the configuration of a run, the default one for None.

    Raises:
        ConfigError: it is of another type.
    """
    if config is None:
        return Config()
    if isinstance(config, Config):
        return config

    got = (
        show(config)
        if isinstance(config, str | Path | Mapping)
        else f"an object of {type(config).__name__}"
    )
    message = (
        f"run needs a configuration, made by make_config(...) or load_config(PATH), got {got}."
    )
    raise ConfigError(message, key="config", allowed="a Config", got=got)


def count_unfinished(path: Path, config: Config) -> int:
    """Return how many seeds of a run have no result in its folder yet, at least one."""
    finished = sum((path / f"seed-{seed}" / "result.json").is_file() for seed in config.seeds)
    return max(len(config.seeds) - finished, 1)


def default_folder(config: Config) -> Path:
    """Return a run folder that does not exist yet: ``runs/ALGORITHM-DATASET-TIME``."""
    return unused_folder(f"{config.algorithm.name}-{config.data.title}")


def unused_folder(name: str) -> Path:
    """Return a folder under ``runs`` that does not exist yet, named with the time."""
    name = safe_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / each for each in names) if not path.exists())


class _Beginning(NamedTuple):
    """Where a run of one seed begins: with nothing, or after some rounds of an earlier process."""

    state: RunState | None
    """The server's side of the run after these rounds; None: there are none."""
    totals: summary.Totals
    """Sums over these rounds."""
    seconds: float = 0.0
    """What they took."""
    result: dict[str, Any] | None = None
    """The result of the run, if only its folder was not finished."""
    absences: Sequence[Mapping[str, Any]] = ()
    """Events of rounds that run again, because they came after the last checkpoint."""


def run_seed(
    parts: PreparedRun,
    path: Path,
    progress: Progress,
    *,
    place: str = "",
    trackers: Sequence[str] = (),
    top: Path | None = None,
) -> dict[str, Any]:
    """Run one seed, or what is left of it; write each round as it ends and the models after the
    last one.

    Args:
        parts: the run.
        path: its folder.
        progress: is told about every round.
        place: which of several runs it is, in words.
        trackers: names of those that log the run.
        top: the folder of all seeds, where the trackers write; default: ``path``.

    Returns:
        The result.
    """
    start = time.perf_counter()
    config = parts.config
    if not holds_run(path):
        RunFolder.create(path, config=to_toml(config), provenance=_provenance(parts))

    folder = RunFolder(path)
    refuse_other_data(folder.provenance(), _inputs(parts), path)
    result = folder.result()
    if result is not None:
        folder.settle()
        progress.note(_FINISHED.format(path=path))
        return result

    folder.remove_temporary_files()
    shutil.rmtree(path / _STATE, ignore_errors=True)
    modules = readable_modules(parts.algorithm)
    names = (*_KEPT, *_REMEMBERED) if config.schedule.select == "best" else _KEPT
    kept = {
        name: Store(path / CHECKPOINTS, name, modules=modules, in_memory=IN_MEMORY // 3)
        for name in names
    }
    temporary = {
        name: Store(path / _STATE, name, modules=modules, in_memory=IN_MEMORY // 3)
        for name in ("trained", "personal")
    }
    checkpoints = Checkpoints(path / CHECKPOINTS, kept, modules=modules)
    run_as_tracked = tracked_run(config.seeds[0], top or path, to_toml(config))
    tracked = make_tracked(trackers, run_as_tracked, earlier=folder.rounds, warn=progress.note)
    progress = Several(
        [*tracked, progress]
    )  # the time that trackers take to start is not the first round's
    closing = (
        progress.end,
        *(store.close for store in temporary.values()),
        checkpoints.close,
        parts.engine.close,
    )

    with folder:
        with all_done(closing):
            beginning = _begin(parts, folder, checkpoints, progress, place)
            totals = beginning.totals
            result = beginning.result
            storage = {**kept, **temporary}.__getitem__

            if result is None:
                for report in simulate(
                    parts.algorithm,
                    parts.federation,
                    parts.engine,
                    config.schedule,
                    seed=config.seeds[0],
                    storage=storage,
                    resume=beginning.state,
                    events=beginning.absences,
                    device=parts.device,
                ):
                    record = _write_round(parts, folder, progress, report)
                    totals.add_round(record)
                    totals.add_events(report.events)
                    seconds = beginning.seconds + time.perf_counter() - start
                    if _checkpoint_is_due(config, report):
                        checkpoints.save(report.state, _notes(folder, seconds))

            if result is None:
                final = report.final or report
                folder.write_models(personal_models(parts, final))
                _say_which_round(parts, folder, progress, report)
                _say_who_never_trained(parts, folder, progress, report)
                result = _result(parts, folder, report, totals)
                result["seconds"]["total"] = beginning.seconds + time.perf_counter() - start
                if config.checkpoint.every > 0:
                    notes = {**_notes(folder, result["seconds"]["total"]), "result": result}
                    checkpoints.save(report.state, notes)

            for each in tracked:
                each.finish(result)

            checkpoints.keep(1 if config.checkpoint.every > 0 else 0)

        result["run"] = str(path)
        folder.finish(result)

    return result


def _checkpoint_is_due(config: Config, report: RoundReport) -> bool:
    """Return whether a checkpoint is due after a round; that of the last round waits for the
    models.
    """
    every = config.checkpoint.every
    return every > 0 and report.round % every == 0 and not report.is_last


def _notes(folder: RunFolder, seconds: float) -> dict[str, Any]:
    """Return the notes of a checkpoint: what the records held then, and the seconds so far."""
    return {"records": folder.bookmark(), "seconds": seconds}


def _begin(
    parts: PreparedRun,
    folder: RunFolder,
    checkpoints: Checkpoints,
    progress: Progress,
    place: str,
) -> _Beginning:
    """Go back to the last checkpoint, or make a new beginning; write and show what is known before
    the first round.
    """
    now = {"versions": versions(), "machine": machine(), **_inputs(parts)}
    provenance = folder.provenance()
    software = changed_software(provenance, now)
    restored, notes = checkpoints.restore(lambda notes: _objection(notes, folder))
    done = 0 if restored is None else restored.state.round
    absences = folder.absences(after=done)

    if restored is None:
        if folder.clear():
            notes.append("no checkpoint can be used: the run begins again with its first round.")
        if software:
            folder.write_provenance(_provenance(parts))

        beginning = _Beginning(None, summary.Totals(), absences=absences)
        folder.write_split({**split_record(parts.divided.division, parts.divided.conditions)})
        notes += parts.notes
    else:
        recorded = folder.count_rounds()
        folder.rewind(restored.notes["records"])
        notes.append(f"resumed after round {done} of {parts.config.schedule.rounds}.")
        if recorded > done + 1:
            notes.append(
                f"rounds {done + 1} to {recorded} are run again: no later checkpoint can be used."
            )

        if software:
            notes.append(
                f"the last bits of results can differ from those of one process: {software}."
            )

        beginning = _Beginning(
            state=restored.state,
            totals=_totals(folder),
            seconds=float(restored.notes["seconds"]),
            result=restored.notes.get("result"),
            absences=absences,
        )

    write_input_specification(folder.path, parts.inputs)
    where = {"round": done} if done else {}
    folder.add_events([{"kind": "note", **where, "text": note} for note in notes])
    for note in notes:
        progress.note(note)

    if parts.choice.reason.startswith("engine processes"):
        progress.note(parts.choice.reason)

    named = [
        parts.config.algorithm.name,
        parts.divided.dataset.name,
        place,
        f"seed {parts.config.seeds[0]}",
    ]
    title = ", ".join(part for part in named if part)
    progress.begin(title, parts.config.schedule.rounds, done)

    return beginning


def _totals(folder: RunFolder) -> summary.Totals:
    """Return the sums over the rounds that were written."""
    totals = summary.Totals()
    for record in folder.rounds():
        totals.add_round(record)
    totals.add_events(folder.events())
    return totals


def _objection(notes: Mapping[str, Any], folder: RunFolder) -> str:
    """Return why a checkpoint with these notes cannot be used, or an empty string.

    Raises:
        RunError: a file cannot be read.
    """
    seconds = notes.get("seconds")
    result = notes.get("result", {})
    if not isinstance(seconds, int | float) or not isinstance(result, dict):
        return "its notes are not those of a run."
    return folder.objection(notes.get("records"))


def _write_round(
    parts: PreparedRun, folder: RunFolder, progress: Progress, report: RoundReport
) -> dict[str, Any]:
    """Write a round, show it, and return its record."""
    record = summary.round_record(report, parts.federation.roster)
    clients = summary.client_records(report, parts.federation.roster)
    folder.add_round(record, clients=clients, events=report.events)
    for sentence in summary.event_sentences(report):
        progress.note(sentence)
    progress.round(record)
    return record


def _result(
    parts: PreparedRun, folder: RunFolder, last: RoundReport, totals: summary.Totals
) -> dict[str, Any]:
    """Return the result of a run from the report of its last round, and the sums over all
    rounds.
    """
    config = parts.config
    final = last.final or last
    metrics, new_clients = summary.final_metrics(final, parts.federation.roster)
    result = {
        "run": str(folder.path),
        "algorithm": config.algorithm.name,
        "dataset": parts.divided.dataset.name,
        "clients": len(parts.divided.division.rows),
        "rounds": last.round,
        "seeds": list(config.seeds),
        "split_sha256": split_record(parts.divided.division, parts.divided.conditions)[
            "split_sha256"
        ],
        "metrics": metrics,
    }
    if config.schedule.watches_validation:
        result["selected"] = summary.selected(last, config.schedule.select)
    if new_clients:
        result["new_clients"] = new_clients
    if parts.divided.division.client_names:
        result["sites"] = summary.site_scores(final, parts.federation.roster)

    result |= totals.record()
    result |= {"engine": parts.engine.name, "device": str(parts.device)}
    return result


def _say_which_round(
    parts: PreparedRun, folder: RunFolder, progress: Progress, last: RoundReport
) -> None:
    """Note that the run stopped early, and which round its models are of, if validation examples
    decided.
    """
    schedule = parts.config.schedule
    if not schedule.watches_validation or last.final is None:
        return

    notes = []
    if last.round < schedule.rounds:
        better = f"for {schedule.patience} evaluations, no mean accuracy on validation examples was better than before"
        notes.append(f"stopped after round {last.round} of {schedule.rounds}: {better}.")

    if schedule.select == "best":
        notes.append(
            f"the models and scores are those of round {last.final.round}, the best on validation examples."
        )

    folder.add_events([{"kind": "note", "round": last.round, "text": note} for note in notes])
    for note in notes:
        progress.note(note)


def _say_who_never_trained(
    parts: PreparedRun, folder: RunFolder, progress: Progress, last: RoundReport
) -> None:
    """Note how many clients were never drawn, or had no result that could be used."""
    roster = parts.federation.roster
    never = sum(client not in last.state.participated for client in roster.known)
    if never:
        note = f"{never} of {roster.population} clients never trained, or none of their results could be used."
        folder.add_events([{"kind": "note", "text": note}])
        progress.note(note)


def _provenance(parts: PreparedRun) -> dict[str, Any]:
    """Return where the result comes from."""
    where = {
        "engine": parts.engine.name,
        "engine_choice": parts.choice.reason,
        "device": str(parts.device),
    }
    return {**describe(), **_inputs(parts), "notes": parts.notes, **where}


def _inputs(parts: PreparedRun) -> dict[str, Any]:
    """Return the part of the provenance that must not change while a run is interrupted."""
    split = split_record(parts.divided.division, parts.divided.conditions)
    return {
        "data": describe_data(parts.divided.division.dataset),
        "split_sha256": split["split_sha256"],
        "reduction": REDUCTION_VERSION,
    }
