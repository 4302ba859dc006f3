"""A sweep: it tries values of options, and chooses by scores on validation examples.

Every trial is a run of :mod:`fedtailor.experiment.runner`, in a folder of its own. So a sweep is
resumed as runs are.

What chooses is :func:`validation_accuracy` of finished runs, and nothing else of their results.
Test scores are read after the choice, and only those of the runs that were chosen.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import safe_name, to_json, write_whole
from fedtailor.core.errors import ConfigError, DataError, RunError, one_line
from fedtailor.core.options import show
from fedtailor.core.schedule import Schedule
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import Config, load_config, to_toml
from fedtailor.experiment.progress import Progress, Silence
from fedtailor.experiment.records import COMPARISON_FILE, RunFolder, exclusive
from fedtailor.experiment.resume import refuse_other_values
from fedtailor.experiment.run import unused_folder
from fedtailor.experiment.runner import (
    Job,
    begin,
    is_finished,
    make_jobs,
    refuse_other_kind,
    run_jobs,
)
from fedtailor.experiment.sweep_space import (
    SWEEP_FILE,
    SweepOptions,
    as_table,
    load_sweep,
    sweep_to_toml,
    with_values,
)
from fedtailor.experiment.sweep_trials import (
    Plan,
    Trial,
    make_plans,
    optimistic_methods,
    unequal_budgets,
)

KIND = "sweep"
RESULT_FILE = "sweep.json"
CHOSEN_BY = (
    "mean accuracy of personalized models on validation examples, over known clients and seeds"
)
_VERSION = 1
Record = dict[str, Any]


class Rung(NamedTuple):
    """A step of successive halving."""

    trials: int
    """That take part."""
    rounds: int
    """That they have in all; 0: those of the configuration."""


class Measured(NamedTuple):
    """What a finished run says of a trial; no score on test examples is among it."""

    rounds: int
    validation: float
    standard_error: float | None
    """Over seeds; None for one seed."""
    by_seed: dict[str, float]
    job: Job
    trained_rounds: int
    """Over all seeds."""
    seconds: float
    """Over all seeds."""
    events: dict[str, int]


@dataclass
class Tried:
    """A trial, and what came of it."""

    trial: Trial
    measured: list[Measured] = field(default_factory=list)
    """One for every rung that it reached."""
    error: str = ""
    """Why it failed."""

    def is_at(self, rung: int) -> bool:
        """Return whether the trial has a score at a rung."""
        return len(self.measured) > rung


def sweep(
    config: Config,
    *,
    values: Mapping[str, Any],
    methods: Sequence[str] = (),
    trials: int = 0,
    halving: int = 0,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Try values of options, and choose by validation examples: what ``fedtailor sweep --json``
    prints.

    If the folder holds the same sweep, interrupted or killed, it is resumed. Trials and seeds can
    be added.

    Args:
        config: the experiment. Clients need validation examples, such as those of
            ``data.val_fraction``.
        values: what to try: key -> a list, or the text of a range: ``uniform(A, B)``,
            ``loguniform(A, B)`` or ``integers(A, B)``. ``METHOD.OPTION`` is an option of one
            method.
        methods: such as ``fedavg_ft(finetune=head)``; default: the algorithm of the configuration.
        trials: of every method; 0: the whole grid.
        halving: successive halving: trials get few rounds first, and one in so many goes on with so
            many times the rounds; 0: all trials get all rounds.
        seed: of the random draws of values.
        out: the folder; default: ``runs/sweep-DATASET-TIME``.
        progress: is told about every round.
        announce: is told a sentence before every trial.

    Raises:
        ConfigError: an option is wrong, no client has validation examples, or the folder holds
            something else.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: every trial failed.

    Example:
        >>> from fedtailor import make_config
        >>> config = make_config({"data": {"clients": 3, "val_fraction": 0.2}, "federation": {"rounds": 2}})
        >>> found = sweep(config, values={"training.lr": [0.0001, 0.05]}, out="runs/sweep")
        >>> found["methods"][0]["best"]["values"]
        {'training.lr': 0.05}
    """
    _check_type(config)
    options = SweepOptions(
        methods=tuple(methods), trials=trials, halving=halving, seed=seed, values=_as_dict(values)
    )
    folder = Path(out) if out is not None else default_sweep_folder(config)
    _refuse_other_sweep(config, options, folder)
    plans = make_plans(config, options)
    schedule = config.schedule

    if options.halving and schedule.watches_validation:
        raise ConfigError(
            "sweep.halving stops trials early and compares them at equal rounds; evaluation.select = 'best' and "
            "evaluation.patience choose the round themselves. Leave one of them out.",
            key="sweep.halving",
            allowed=0,
            got=options.halving,
        )

    _refuse_without_validation(plans[0].trials[0].config)
    notes = [*_notes(config, options, plans), *(note for plan in plans for note in plan.notes)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise RunError(
            f"cannot write '{folder}': {reason.strerror or reason}.", path=str(folder)
        ) from reason

    with exclusive(folder):
        jobs = make_jobs([trial.config for plan in plans for trial in plan.trials], folder)
        begin(folder, KIND, jobs)
        write_whole(folder / SWEEP_FILE, sweep_to_toml(config, options))
        say = announce or (lambda _: None)
        for note in notes:
            say(f"note: {note}")

        shown = _ProgressOfTrials(progress or Silence())
        tried = [
            _try_all(plan, config.schedule, options.halving, folder, shown, say) for plan in plans
        ]
        result = _conclude(config, options, plans, tried, folder, notes)

    if result["best"] is None:
        first = next(each.error for method in tried for each in method if each.error)
        raise RunError(f"every trial of the sweep failed; the first: {first}", path=str(folder))

    return result


def default_sweep_folder(config: Config) -> Path:
    """Return a folder that does not exist yet: ``runs/sweep-DATASET-TIME``."""
    return unused_folder(f"{KIND}-{config.data.title}")


def _check_type(config: object) -> None:
    """Check that a configuration is one.

    Raises:
        ConfigError: it is of another type.
    """
    if not isinstance(config, Config):
        got = (
            show(config)
            if isinstance(config, str | Path | Mapping)
            else f"an object of {type(config).__name__}"
        )
        message = f"sweep needs a configuration, made by make_config(...) or load_config(PATH), got {got}."
        raise ConfigError(message, key="config", allowed="a Config", got=got)


def _as_dict(values: object) -> dict[str, Any]:
    """Return what to try as a dictionary.

    Raises:
        ConfigError: it is no mapping.
    """
    if isinstance(values, Mapping):
        return dict(values)
    message = (
        f"values must be a mapping, such as {{'training.lr': [0.01, 0.1]}}, got {show(values)}."
    )
    raise ConfigError(message, key="sweep.values", got=show(values))


def _refuse_other_sweep(config: Config, options: SweepOptions, folder: Path) -> None:
    """Check that a folder can be made, or holds the same sweep; trials and seeds may be added.

    Raises:
        ConfigError: it holds something else.
    """
    is_sweep = (folder / SWEEP_FILE).is_file()
    if not is_sweep or (folder / COMPARISON_FILE).is_file():
        refuse_other_kind(folder, KIND)
    if not is_sweep:
        return

    begun, begun_options = load_sweep(folder / SWEEP_FILE)
    refuse_other_values(
        as_table(config, options), as_table(begun, begun_options), folder, what="a sweep"
    )
    missing = [seed for seed in begun.seeds if seed not in config.seeds]

    if missing:
        has = ", ".join(map(str, begun.seeds))
        raise ConfigError(
            f"'{folder}' holds a sweep with the seeds {has}; seeds can be added to it, not left out.",
            key="seeds",
            allowed=list(begun.seeds),
            got=list(config.seeds),
        )


def _refuse_without_validation(config: Config) -> None:
    """Check that a client has validation examples, by which a sweep chooses.

    Raises:
        ConfigError: no client has any, or an option is wrong.
        DataError: the data cannot be used.
    """
    parts = assemble(config, config.seeds[0])
    parts.engine.close()
    if not parts.federation.roster.validates:
        raise ConfigError(
            "a sweep chooses by validation examples, and no client has any: set data.val_fraction, such as "
            "--set data.val_fraction=0.2, or name a split with validation examples (--split). Test examples never "
            "decide.",
            key="data.val_fraction",
            allowed="more than 0",
            got=config.data.val_fraction,
        )


def _notes(config: Config, options: SweepOptions, plans: Sequence[Plan]) -> list[str]:
    """Return what a user should know before the first trial."""
    notes = [*unequal_budgets(plans), *optimistic_methods(plans)]
    if len(config.seeds) == 1:
        notes.append(
            "with one seed, a difference between trials can be chance. Several, such as --seeds 0,1,2, show how large "
            "it is."
        )

    for plan in plans:
        if (
            options.halving
            and len(rungs(len(plan.trials), config.schedule.rounds, options.halving)) == 1
        ):
            notes.append(
                f"{plan.method} has too few trials or rounds for halving: all of its trials get all rounds."
            )

    return notes


def rungs(trials: int, rounds: int, factor: int) -> list[Rung]:
    """Return the steps of successive halving: how many trials get how many rounds.

    Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
    optimization".

    Args:
        trials: of the method.
        rounds: of the configuration, which the last step has.
        factor: one trial in so many goes on, with so many times the rounds; 0: there is one step.

    Example:
        >>> [tuple(rung) for rung in rungs(20, 30, 3)]
        [(20, 3), (6, 10), (2, 30)]
    """
    if factor == 0:
        return [Rung(trials, 0)]
    last = 0
    while min(trials, rounds) >= factor ** (last + 1):
        last += 1
    return [
        Rung(trials // factor**step, rounds // factor ** (last - step)) for step in range(last + 1)
    ]


def _try_all(
    plan: Plan,
    schedule: Schedule,
    factor: int,
    folder: Path,
    progress: _ProgressOfTrials,
    say: Callable[[str], None],
) -> list[Tried]:
    """Run the trials of a method; with halving, in several steps."""
    tried = [Tried(trial) for trial in plan.trials]
    has_spoken = False
    for step, rung in enumerate(rungs(len(tried), schedule.rounds, factor)):
        going_on = tried if step == 0 else best_of(tried, step - 1)[: rung.trials]
        for each in sorted(going_on, key=lambda one: one.trial.number):
            config = each.trial.config
            rounds = ""
            if factor:
                config = with_values(config, {"federation.rounds": rung.rounds})
                rounds = f", {rung.rounds} of {schedule.rounds} rounds"

            (job,) = make_jobs([config], folder)
            before = " (finished before)" if is_finished(job) else ""
            say(
                f"{plan.method}: trial {each.trial.number} of {len(tried)}{rounds}: {each.trial}{before}"
            )
            progress.speaks = not before and not has_spoken
            (outcome,) = run_jobs([job], progress)
            has_spoken = has_spoken or progress.speaks
            found = None if outcome.result is None else _read(job)

            if found is not None:
                each.measured.append(found)
                continue

            each.error = (
                str(outcome.error)
                if outcome.error
                else "it has no accuracy on validation examples."
            )
            say(f"{plan.method}: trial {each.trial.number} failed: {each.error}")

    return tried


def best_of(tried: Iterable[Tried], rung: int) -> list[Tried]:
    """Return the trials with a score at a rung, the best first; of equal ones, the one that was
    tried first.
    """
    scored = [each for each in tried if each.is_at(rung)]
    return sorted(scored, key=lambda each: (-each.measured[rung].validation, each.trial.number))


def validation_accuracy(metrics: Mapping[str, Any]) -> float | None:
    """Return the mean accuracy of personalized models over known clients on validation examples;
    None without any.
    """
    accuracy = metrics.get("validation", {}).get("accuracy", {}).get("mean")
    return accuracy if isinstance(accuracy, float | int) and math.isfinite(accuracy) else None


def _read(job: Job) -> Measured | None:
    """Read what a finished run says of its trial; None if a seed has no validation score.

    Raises:
        DataError: the result is damaged.
    """
    try:
        return _measure(job, _results_by_seed(job))
    except (KeyError, TypeError, AttributeError) as reason:
        raise DataError(
            f"the result in '{job.folder}' is damaged. Remove this folder, and the trial runs again.",
            path=str(job.folder),
        ) from reason


def _measure(job: Job, results: Mapping[int, Record]) -> Measured | None:
    """Return what the results of the seeds of a run say of its trial; None if a seed has no
    validation score.
    """
    found = {seed: validation_accuracy(result["metrics"]) for seed, result in results.items()}
    scores = {seed: score for seed, score in found.items() if score is not None}
    if len(scores) < len(found):
        return None

    values = list(scores.values())
    events: Counter[str] = Counter()
    for result in results.values():
        events.update(result["events"])

    return Measured(
        rounds=max(result["rounds"] for result in results.values()),
        validation=statistics.fmean(values),
        standard_error=statistics.stdev(values) / math.sqrt(len(values))
        if len(values) > 1
        else None,
        by_seed={str(seed): score for seed, score in scores.items()},
        job=job,
        trained_rounds=sum(result["rounds"] for result in results.values()),
        seconds=math.fsum(result["seconds"]["total"] for result in results.values()),
        events=dict(events),
    )


def _results_by_seed(job: Job) -> dict[int, Record]:
    """Return the results of the single seeds of a finished run."""
    seeds = job.config.seeds
    folders = {
        seed: job.folder / f"seed-{seed}" if len(seeds) > 1 else job.folder for seed in seeds
    }
    return {seed: RunFolder(folder).result() or {} for seed, folder in folders.items()}


def _conclude(
    config: Config,
    options: SweepOptions,
    plans: Sequence[Plan],
    tried: Sequence[Sequence[Tried]],
    folder: Path,
    notes: Sequence[str],
) -> Record:
    """Choose, write the chosen configurations and the result of the sweep, and return it."""
    methods: list[Record] = []

    for plan, method in zip(plans, tried, strict=True):
        steps = len(rungs(len(method), config.schedule.rounds, options.halving))
        methods.append(_conclude_method(plan, method, steps, folder))

    chosen = [each for each in methods if each["best"] is not None]
    best = (
        max(chosen, key=lambda each: each["best"]["validation"]) if chosen else None
    )  # the first of equal ones
    result: Record = {
        "version": _VERSION,
        "sweep": str(folder),
        "dataset": config.data.title,
        "rounds": config.schedule.rounds,
        "seeds": list(config.seeds),
        "sweep_seed": options.seed,
        "halving": options.halving,
        "values": options.values,
        "chosen_by": CHOSEN_BY,
        "best": None if best is None else {"method": best["method"], "config": best["config"]},
        "methods": methods,
        "trained_rounds": sum(each["trained_rounds"] for each in methods),
        "notes": list(notes),
    }
    # the choice is made: only now are test scores read, and only to be shown
    for each in chosen:
        each["test"] = _test_scores(folder / each["best"]["run"])

    begin(folder, KIND, [_chosen_job(folder / each["best"]["run"]) for each in chosen])
    write_whole(folder / RESULT_FILE, to_json(result, indent=2) + "\n")
    return result


def _conclude_method(plan: Plan, tried: Sequence[Tried], steps: int, folder: Path) -> Record:
    """Choose the best trial of a method, write its configuration, and return the method's part of
    the result.

    Args:
        plan: of the method.
        tried: its trials.
        steps: of successive halving; the choice is among the trials that finished the last one.
        folder: of the sweep.
    """
    ranked = [
        each
        for step in range(steps - 1, -1, -1)
        for each in best_of(tried, step)
        if len(each.measured) == step + 1
    ]
    going = [each for each in ranked if not each.error]
    ranks = {each.trial.number: place for place, each in enumerate(going, start=1)}
    trials = [_trial_record(each, ranks.get(each.trial.number)) for each in tried]
    finished = best_of(tried, steps - 1)
    record: Record = {
        "method": plan.method,
        "trials": trials,
        "failed": sum(bool(each.error) for each in tried),
        "trained_rounds": sum(each["trained_rounds"] for each in trials),
        "seconds": math.fsum(each["seconds"] for each in trials),
        "spread": _spread([each.measured[0] for each in tried if each.is_at(0)]),
        "best": None,
        "config": None,
    }

    if finished:
        record["best"] = trials[finished[0].trial.number - 1]
        record["config"] = f"best-{safe_name(plan.name)}.toml"
        write_whole(folder / record["config"], _best_toml(plan, finished[0]))

    return record


def _trial_record(tried: Tried, rank: int | None) -> Record:
    """Return what the result says of a trial: its last rung, and all rungs."""
    steps: list[Record] = [
        {
            "rounds": each.rounds,
            "validation": each.validation,
            "standard_error": each.standard_error,
            "by_seed": each.by_seed,
            "run": f"{each.job.folder.parent.name}/{each.job.folder.name}",
            "trained_rounds": each.trained_rounds,
            "seconds": each.seconds,
            "events": each.events,
        }
        for each in tried.measured
    ]
    last = steps[-1] if steps else {}

    return {
        "trial": tried.trial.number,
        "values": tried.trial.values,
        "rank": rank,
        "rounds": last.get("rounds"),
        "validation": last.get("validation"),
        "standard_error": last.get("standard_error"),
        "run": last.get("run"),
        "trained_rounds": sum(step["trained_rounds"] for step in steps),
        "seconds": math.fsum(step["seconds"] for step in steps),
        "steps": steps,
        "error": tried.error or None,
    }


def _spread(measured: Sequence[Measured]) -> Record | None:
    """Return smallest and largest score and quartiles of all trials, at equal rounds; None without
    trials.
    """
    if not measured:
        return None

    scores = sorted(each.validation for each in measured)
    quartiles = (
        statistics.quantiles(scores, n=4, method="inclusive") if len(scores) > 1 else scores * 3
    )

    return {
        "rounds": measured[0].rounds,
        "trials": len(scores),
        "min": scores[0],
        "lower_quartile": quartiles[0],
        "median": quartiles[1],
        "upper_quartile": quartiles[2],
        "max": scores[-1],
    }


def _best_toml(plan: Plan, best: Tried) -> str:
    """Return the configuration of the best trial of a method, below comments that say what it
    is.
    """
    last = best.measured[-1]
    error = "" if last.standard_error is None else f" ± {last.standard_error:.4f}"
    lines = [
        f"The best of {len(plan.trials)} trials of {plan.method}: {best.trial}",
        f"Chosen by {CHOSEN_BY}: {last.validation:.4f}{error}",
    ]
    comments = "".join(f"# {one_line(line)}\n" for line in lines)
    return f"{comments}\n{to_toml(load_config(last.job.folder / 'experiment.toml'))}"


def _chosen_job(folder: Path) -> Job:
    """Return the run of a folder."""
    return Job(load_config(folder / "experiment.toml"), folder)


def _test_scores(folder: Path) -> Record:
    """Return the accuracies of a finished run on test examples, by evaluation point."""
    metrics = (RunFolder(folder).result() or {}).get("metrics", {})
    return {
        point: scores["accuracy"]
        for point, scores in metrics.items()
        if point != "validation" and "accuracy" in scores
    }


class _ProgressOfTrials:
    """Passes on the progress of trials, without scores on test examples, and with notes as long as
    ``speaks``.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self.speaks = True
        """Whether notes are passed on; all of them are in the run's folder."""

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start a run of one seed."""
        self._shown.begin(title, num_rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        """Report the end of a round, with what decides only."""
        validation = [each for each in record["evaluations"] if each["test_set"] == "validation"]
        self._shown.round({**record, "evaluations": validation})

    def prepare(self, what: str, done: int, total: int) -> None:
        """Report for how many images something is done before the first round."""
        self._shown.prepare(what, done, total)

    def note(self, text: str) -> None:
        """Report something that a user should know."""
        if self.speaks:
            self._shown.note(text)

    def end(self) -> None:
        """Report the end of a run."""
        self._shown.end()
