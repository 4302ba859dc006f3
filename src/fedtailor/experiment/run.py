"""Run an experiment and write its folder."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtailor.core.atomic import safe_name
from fedtailor.core.errors import all_done
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import read_object
from fedtailor.core.reduction import REDUCTION_VERSION
from fedtailor.data.split import SplitRecord
from fedtailor.experiment import summary
from fedtailor.experiment.assembly import PreparedRun, assemble
from fedtailor.experiment.config import Config, first_training, to_toml, with_fold
from fedtailor.experiment.folder import RunFolder, exclusive
from fedtailor.experiment.model_card import personal_models
from fedtailor.experiment.predictions import (
    CHOICES_FILE,
    OWN_MODELS_FILE,
    baseline_names,
    predict_tests,
    writes_predictions,
)
from fedtailor.experiment.provenance import describe, describe_data
from fedtailor.experiment.reader import fold_folder, holds_run, read_provenance, read_result
from fedtailor.experiment.resume import (
    begun_config,
    refuse_other_configuration,
    refuse_other_inputs,
    values_at_start,
    with_first_choices,
)
from fedtailor.experiment.tracking import RunProgress, TrackedProgress, check_trackers
from fedtailor.experiment.writer import RunPlan, RunWriter
from fedtailor.simulation.rounds import simulate

if TYPE_CHECKING:
    from fedtailor.experiment.folds import FinishedFold

_LASTING = ("states", "per_client")
"""What clients keep from round to round."""
_LASTING_OF_BEST = ("best_states", "best_per_client")
"""What they kept after the best round so far, if the run gives the models of that round."""
_SCRATCH = ("trained", "personal")


def run(
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    progress: RunProgress | None = None,
    track: Iterable[str] = (),
) -> dict[str, Any]:
    """Run an experiment, once per seed, and return its result.

    The result is what ``fedtailor run --json`` prints.

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
        >>> config = make_config({"data": {"clients": 3}, "federation": {"rounds": 2}})
        >>> result = run(config, out="runs/first")
        >>> 0.5 < result["metrics"]["personalized"]["accuracy"]["mean"] <= 1
        True
    """
    config = Config() if config is None else config
    require_config(config, "run")
    progress = progress or RunProgress()
    trackers = check_trackers(track)
    path = Path(out) if out is not None else default_folder(config)

    # What the first start has chosen holds for all others, such as the engine.
    begun = begun_config(path)
    if begun is not None:
        config = with_first_choices(config, begun, path)

    # Everything that can be wrong is found here, before anything is written.
    watch = Watch(progress, trackers, path)
    first = assemble(first_training(config), config.seeds[0], progress=progress)
    split = _whole_split(config, first)
    resolved = with_fold(first.config, config.data.fold)
    resolved = dataclasses.replace(resolved, seeds=config.seeds)
    with all_done([first.engine.close]):
        if begun is None:
            _create_folder(path, first, split, resolved)
        else:
            refuse_other_configuration(resolved, begun, path)

        with exclusive(path):
            result = None
            if len(config.seeds) > 1 and _has_all_seeds(path, config.seeds, begun):
                _refuse_other_inputs(path / f"seed-{config.seeds[0]}", first, split)
                result = _finished_result(path, progress, baselines_of=first)

            if result is None:
                run_all = _run_seeds if len(config.seeds) > 1 else _run_one
                result = run_all(resolved, first, path, watch)

            return _with_verdicts(result, resolved, path)


def _has_all_seeds(path: Path, seeds: Sequence[int], begun: Config | None) -> bool:
    """Return whether the folder of several seeds is that of these, and holds the run of each."""
    if begun is None or begun.seeds != seeds:
        return False
    return all((path / f"seed-{seed}" / "result.json").is_file() for seed in seeds)


class Watch(NamedTuple):
    """Who is told about the rounds of a run."""

    progress: RunProgress
    trackers: Iterable[str]
    """Names of those that log the run."""
    folder: Path
    """The folder of the whole run, for the files of trackers."""
    which: str = ""
    """Which of several runs it is, in words."""


def _whole_split(config: Config, first: PreparedRun) -> SplitRecord:
    """Return which client has which examples; with folds, that of all folds."""
    if not config.data.runs_all_folds:
        return first.split

    from fedtailor.experiment.folds import split_of_all_folds

    return split_of_all_folds(first)


def _run_seeds(config: Config, first: PreparedRun, path: Path, watch: Watch) -> dict[str, Any]:
    """Run every seed in its own folder, and return the mean of their results.

    Args:
        config: resolved, with all seeds: they run on the engine of the first.
        first: the run of the first seed, or of its first fold.
        path: the folder of all seeds.
        watch: who is told about every round.
    """
    # One folder a seed within the folder of the run.
    folder = RunFolder(path)
    folder.remove_temporary_files()
    with folder:
        folder.restart(to_toml(config))
        for number, seed in enumerate(config.seeds, 1):
            # All seeds read the data once.
            prepared = first
            if number > 1:
                prepared = _assemble_next(first, first_training(config), seed, watch)

            which = f"run {number} of {len(config.seeds)}"
            _run_one(config, prepared, path / f"seed-{seed}", watch._replace(which=which))

        # As they were written: a loss that is not finite is null there.
        results = [read_result(path / f"seed-{seed}") or {} for seed in config.seeds]
        result = {**summary.average(results), "run": str(path), "seeds": list(config.seeds)}
        folder.finish(result)

    return result


def _assemble_next(first: PreparedRun, config: Config, seed: int, watch: Watch) -> PreparedRun:
    """Assemble another training on the data set of the first."""
    dataset = first.divided.division.dataset
    return assemble(config, seed, dataset=dataset, progress=watch.progress)


def _with_verdicts(result: dict[str, Any], config: Config, path: Path) -> dict[str, Any]:
    """Return the result of a run with a verdict for each site, over all seeds and folds.

    The folder holds it, too. A finished run may get other baselines, or another measure, later.

    Args:
        result: of the run.
        config: of the run, with all seeds.
        path: the folder of the run.
    """
    folders = {config.seeds[0]: path}
    if len(config.seeds) > 1:
        folders = {seed: path / f"seed-{seed}" for seed in config.seeds}

        # Where clients may use their own models, each seed decides by its own verdicts.
        for seed, folder in folders.items():
            if (folder / OWN_MODELS_FILE).is_file():
                _judge(read_result(folder) or {}, {seed: folder}, config, folder)

    has_own_models = (path / OWN_MODELS_FILE).is_file()
    return _judge(result, folders, config, path) if "sites" in result or has_own_models else result


def _judge(
    result: dict[str, Any], folders: Mapping[int, Path], config: Config, path: Path
) -> dict[str, Any]:
    """Return a result with the verdicts for runs by seed, and write it into its folder if new."""
    # Most runs have no verdicts, and do not import this.
    from fedtailor.experiment.worth_it import judge

    verdicts = judge(folders, measure=config.schedule.verdict)
    if verdicts is None or verdicts == result.get("worth_it"):
        return result

    judged = {**result, "worth_it": verdicts}
    RunFolder(path).finish(judged)
    return judged


def _run_one(config: Config, first: PreparedRun, path: Path, watch: Watch) -> dict[str, Any]:
    """Run one seed, or all its folds, and return the result; see :func:`_run_seeds`."""
    if config.data.runs_all_folds:
        return _run_folds(first, path, watch)
    return _run_tracked(first, path, watch)


def _run_folds(first: PreparedRun, path: Path, watch: Watch) -> dict[str, Any]:
    """Train every fold of one seed from where its folder stands, and return their joint result."""
    from fedtailor.experiment.folds import join_folds

    config = with_fold(first.config, 0)
    split = _whole_split(config, first)
    with all_done([first.engine.close]):
        _begin_folder(path, first, split, config)
        result = _finished_result(path, watch.progress, baselines_of=first)
        if result is not None:
            return result

        folder = RunFolder(path)
        folder.remove_temporary_files()
        with folder:
            folder.restart(to_toml(config))
            folder.clear()
            folder.write_split(split)
            folder.add_events([{"kind": "note", "text": note} for note in first.notes])

            numbers = range(1, config.data.folds + 1)
            folds = [_run_fold(first, number, path, watch) for number in numbers]
            for number in numbers:
                folder.add_events(_events_of_fold(path, number))

            result = join_folds(folds, config, split, folder)
            folder.finish(result)
            return result


def _run_fold(first: PreparedRun, number: int, path: Path, watch: Watch) -> FinishedFold:
    """Train one fold, or read it if it has finished."""
    from fedtailor.experiment.folds import read_fold

    prepared = first
    if number > 1:
        config = with_fold(first.config, number)
        prepared = _assemble_next(first, config, config.seeds[0], watch)

    which = f"fold {number} of {first.config.data.folds}"
    which = ", ".join(filter(None, (watch.which, which)))
    folder = fold_folder(path, number)
    _run_tracked(prepared, folder, watch._replace(which=which))
    return read_fold(folder, prepared.federation.roster)


def _events_of_fold(path: Path, number: int) -> list[dict[str, Any]]:
    """Return what happened in the training of a fold, each with the number of the fold.

    Its notes stay in its own folder: most are those of all folds, or of its own scores.
    """
    events = []
    for event in RunFolder(fold_folder(path, number)).events():
        if event.get("kind") not in ("note", "chance"):
            events.append({**event, "fold": number})

    return events


def _run_tracked(prepared: PreparedRun, path: Path, watch: Watch) -> dict[str, Any]:
    """Run one seed or fold, and tell whoever watches; see :func:`run_seed`."""
    with TrackedProgress(watch.progress, watch.trackers, watch.folder, prepared.config) as observer:
        result = run_seed(prepared, path, observer, which=watch.which)
        observer.finish(result)
        return result


def run_seed(
    prepared: PreparedRun, path: Path, observer: RunProgress, *, which: str = ""
) -> dict[str, Any]:
    """Train one seed from where its folder stands, and return its result.

    Args:
        prepared: the run.
        path: its folder.
        observer: is told about every round.
        which: which of several runs it is, in words.
    """
    with all_done([prepared.engine.close]):
        # Nothing is left to do, unless the data is no longer what it was.
        _begin_folder(path, prepared, prepared.split, prepared.config)
        result = _finished_result(path, observer)
        if result is not None:
            _add_baselines(prepared, path, observer)
            return result

        with RunWriter(path, _plan(prepared, which), observer) as writer:
            # What sites would use alone does not depend on the rounds.
            _add_baselines(prepared, path, observer)
            start = writer.restore()
            if writer.result is not None:
                return writer.conclude()

            is_noisy = prepared.config.privacy.unit != "none"

            # A round is on disk before the next one begins.
            for report in simulate(
                prepared.algorithm,
                prepared.federation,
                prepared.engine,
                prepared.config.schedule,
                seed=prepared.config.seeds[0],
                storage=writer.storage,
                resume=start.state,
                events=start.events,
                device=prepared.device,
                privacy=prepared.config.privacy,
                ledger=writer.ledger() if is_noisy else None,
            ):
                writer.add_round(report)

            # Models of all clients, and what they say about single test examples.
            last = report.final or report
            writer.write_models(personal_models(prepared, last))
            if writes_predictions(prepared):
                writer.write_predictions(predict_tests(prepared, last))

            return writer.finish(report, worth_it=_own_verdicts(prepared.config, path))


def _own_verdicts(config: Config, path: Path) -> dict[str, Any] | None:
    """Return the verdicts by which the clients of a run choose between two models, if they may.

    A run that has finished always has them: those of all seeds together come later.
    """
    if not (path / OWN_MODELS_FILE).is_file():
        return None

    from fedtailor.experiment.worth_it import judge

    return judge({config.seeds[0]: path}, measure=config.schedule.verdict)


def _add_baselines(prepared: PreparedRun, path: Path, observer: RunProgress) -> None:
    """Train what sites would use without a federation, if the run is to have it."""
    if not baseline_names(prepared):
        return

    # Most runs have none, and do not import it.
    from fedtailor.experiment.baselines import add_baselines

    add_baselines(prepared, path, observer)


def _lacks_baselines(first: PreparedRun, path: Path) -> bool:
    """Return whether a finished run lacks baselines that it should have now.

    Args:
        first: the run of the first seed or fold.
        path: the folder of all of them.
    """
    names = baseline_names(first)
    if not names:
        return False

    for rounds in path.glob("**/rounds.jsonl"):
        folder = rounds.parent
        if any(folder.glob("fold-*")):  # it has those of its folds
            continue

        choices = folder / CHOICES_FILE
        record = read_object(choices, within=folder) if choices.is_file() else {}
        if record.get("names") != list(names):
            return True

    return False


def _begin_folder(path: Path, prepared: PreparedRun, split: SplitRecord, config: Config) -> None:
    """Make the folder of a run, unless it is there: then its data must be that of today."""
    if holds_run(path):
        _refuse_other_inputs(path, prepared, split)
    else:
        _create_folder(path, prepared, split, config)


def _create_folder(path: Path, prepared: PreparedRun, split: SplitRecord, config: Config) -> None:
    provenance = _describe_run(prepared, split, config)
    RunFolder.create(path, config=to_toml(config), provenance=provenance)


def _refuse_other_inputs(path: Path, prepared: PreparedRun, split: SplitRecord) -> None:
    """Check that the run in a folder, if there is one, began with data and code of today."""
    if holds_run(path):
        begun = read_provenance(path)
        now = provenance_of_inputs(prepared, split)
        refuse_other_inputs(begun, now, path)


def _finished_result(
    path: Path, progress: RunProgress, *, baselines_of: PreparedRun | None = None
) -> dict[str, Any] | None:
    """Return the result in a folder if the run has finished; None if there is more to do.

    Args:
        path: the folder.
        progress: is told that the run has finished.
        baselines_of: the run of the first seed or fold in the folder, whose baselines all of them
            must have.
    """
    result = RunFolder(path).finished_result()
    if result is not None:
        progress.note(f"'{path}' holds this run, and it has finished.")
        if baselines_of is not None and _lacks_baselines(baselines_of, path):
            return None

    return result


def _plan(prepared: PreparedRun, which: str) -> RunPlan:
    """Return what the writer of a run must know of it."""
    config = prepared.config
    dataset = prepared.divided.dataset.name
    titles = [config.algorithm.name, dataset, which, f"seed {config.seeds[0]}"]
    selects_best = config.schedule.select == "best"
    notes = list(prepared.notes)
    if prepared.choice.reason.startswith("engine processes"):
        notes.append(prepared.choice.reason)

    return RunPlan(
        title=", ".join(title for title in titles if title),
        algorithm=prepared.algorithm,
        roster=prepared.federation.roster,
        schedule=config.schedule,
        inputs=prepared.inputs,
        split=lambda: prepared.split,
        provenance=_describe_run(prepared, prepared.split, config),
        facts={
            "algorithm": config.algorithm.name,
            "dataset": dataset,
            "clients": len(prepared.divided.division.positions),
            "seeds": list(config.seeds),
            "split_sha256": prepared.split["split_sha256"],
            "engine": prepared.engine.name,
            "device": str(prepared.device),
        },
        notes=notes,
        checkpoint_every=config.checkpoint.every,
        lasting=(*_LASTING, *_LASTING_OF_BEST) if selects_best else _LASTING,
        scratch=_SCRATCH,
    )


def _describe_run(prepared: PreparedRun, split: SplitRecord, config: Config) -> dict[str, Any]:
    """Return where the result comes from: the provenance of a run with a split."""
    return {
        **describe(),
        **provenance_of_inputs(prepared, split),
        "notes": prepared.notes,
        "engine": prepared.engine.name,
        "engine_choice": prepared.choice.reason,
        "device": str(prepared.device),
        "config": values_at_start(config),
    }


def provenance_of_inputs(prepared: PreparedRun, split: SplitRecord) -> dict[str, Any]:
    """Return the part of the provenance that must not change while a run is interrupted."""
    facts = {
        "data": describe_data(prepared.divided.division.dataset),
        "split_sha256": split["split_sha256"],
        "own_code": _digests_of_own_code(prepared.config),
        "reduction": REDUCTION_VERSION,
    }
    # The digest of the data is that of the examples before the encoder.
    if prepared.inputs.encoder is not None:
        facts["encoder"] = prepared.inputs.encoder.digest

    return facts


def _digests_of_own_code(config: Config) -> dict[str, str]:
    """Return the digests of the files that hold the user's own method and networks, by option."""
    named = [
        ("algorithm", "algorithm.name", config.algorithm.name),
        ("model", "model.name", config.model.name),
    ]
    for number, name in enumerate(config.model.others):
        named.append(("model", f"model.others.{number}", name))

    own = [(what, key, name) for what, key, name in named if ":" in name]
    if not own:
        return {}

    # Most runs have none, and do not import this.
    from fedtailor.core.targets import source_digest

    return {key: source_digest(name, what=what, key=key) for what, key, name in own}


def require_config(config: object, function: str) -> None:
    """Check that what a function got is a configuration, and not a file or a table.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(config, Config):
        is_plain = isinstance(config, str | Path | Mapping)
        got = config if is_plain else f"an object of {type(config).__name__}"
        allowed = "made by make_config(...) or load_config(PATH)"
        raise wrong_value(f"the configuration of {function}", allowed, got)


def count_unfinished(path: Path, config: Config) -> int:
    """Return how many trainings of a run have no result in its folder yet, at least one.

    There is one per seed, or one per seed and fold.
    """
    folders = [path]
    if len(config.seeds) > 1:
        folders = [path / f"seed-{seed}" for seed in config.seeds]
    if config.data.runs_all_folds:
        numbers = range(1, config.data.folds + 1)
        folders = [fold_folder(folder, number) for folder in folders for number in numbers]

    finished = sum((folder / "result.json").is_file() for folder in folders)
    return max(len(folders) - finished, 1)


def default_folder(config: Config) -> Path:
    """Return a run folder that does not exist yet: ``runs/ALGORITHM-DATASET-TIME``."""
    return unused_folder(f"{config.algorithm.name}-{config.data.title}")


def unused_folder(name: str) -> Path:
    """Return a folder under ``runs`` that does not exist yet, named with the time."""
    name = safe_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    folder = Path("runs") / name
    for number in itertools.count(2):
        if not folder.exists():
            break
        folder = Path("runs") / f"{name}-{number}"

    return folder
