"""A sweep: it tries values of options, and chooses by scores on validation examples.

Optuna draws the values of a trial from those of earlier trials, and prunes trials that lag behind.
Every trial is a run in a folder of its own. What Optuna draws depends on the seed of the sweep, the
number of the trial and the earlier scores only. So run folders are the state of a sweep: to resume
one is to ask again, and to read the runs that have finished.

What chooses is :func:`validation_accuracy` of finished runs, and nothing else of their results.
Test scores are read after the choice, and only those of the runs that were chosen.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtailor.algorithms import load_algorithm
from fedtailor.core import rng
from fedtailor.core.atomic import make_folder, safe_name, write_json, write_whole
from fedtailor.core.errors import (
    ConfigError,
    FedtailorError,
    RunError,
    one_line,
    unknown_name,
)
from fedtailor.core.options import show, wrong_value
from fedtailor.core.reading import content_of
from fedtailor.core.task import Training
from fedtailor.experiment.assembly import assemble, make_algorithm
from fedtailor.experiment.config import AlgorithmOptions, Config, load_config, to_toml
from fedtailor.experiment.folder import exclusive
from fedtailor.experiment.reader import CONFIG_FILE, read_result
from fedtailor.experiment.resume import refuse_other_values
from fedtailor.experiment.run import require_config, run, unused_folder
from fedtailor.experiment.runner import (
    RunJob,
    begin,
    is_finished,
    make_jobs,
    refuse_other_kind,
)
from fedtailor.experiment.sweep_options import (
    MOST_TRIALS,
    SWEEP_FILE,
    Space,
    SweepOptions,
    check_keys,
    fixed_table,
    import_optuna,
    load_sweep,
    methods_of,
    sweep_to_toml,
    values_to_try,
    with_values,
)
from fedtailor.experiment.tracking import PassedOn, RunProgress
from fedtailor.privacy.claims import promises_of

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler

_KIND = "sweep"
_VERSION = 2
_CHOSEN_BY = (
    "mean accuracy of personalized models on validation examples, over known clients and seeds"
)
_QUARTILES = {"min": 0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "max": 1}
_MOST_DRAWS = 1000
"""Of a trial, to find values that were not tried."""
_TRAINING_OPTIONS = frozenset(option.name for option in dataclasses.fields(Training))
Record = dict[str, Any]
Say = Callable[[str], None]


def sweep(
    config: Config,
    *,
    values: Mapping[str, Any],
    methods: Sequence[str] = (),
    sampler: str = "auto",
    trials: int = 0,
    halving: int = 0,
    seed: int = 0,
    out: str | Path | None = None,
    progress: RunProgress | None = None,
    announce: Say | None = None,
) -> dict[str, Any]:
    """Try values of options, and choose by validation examples.

    If the folder holds the same sweep, interrupted or killed, it is resumed. Trials and seeds can
    be added.

    Args:
        config: the experiment. Clients need validation examples, such as those of
            ``data.val_fraction``.
        values: what to try: key -> a list, or the text of a range: ``uniform(A, B)``,
            ``loguniform(A, B)`` or ``integers(A, B)``. ``METHOD.OPTION`` is an option of one
            method.
        methods: such as ``fedavg_ft(finetune=head)``; default: the algorithm of the configuration.
        sampler: ``grid``, ``random``, ``tpe``, or ``auto``: the grid if all of it is tried, else
            random.
        trials: of every method; 0: the whole grid.
        halving: pruning: trials get few rounds first, and about one in so many gets so many times
            the rounds; 0: all trials get all rounds.
        seed: of the random draws of values.
        out: the folder; default: ``runs/sweep-DATASET-TIME``.
        progress: is told about every round.
        announce: is told a sentence before every trial.

    Returns:
        What ``fedtailor sweep --json`` prints.

    Raises:
        ConfigError: an option is wrong, no client has validation examples, or the folder holds
            something else.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: every trial failed.
        UsageError: Optuna is not installed.

    Example:
        >>> from fedtailor import make_config
        >>> data = {"clients": 3, "val_fraction": 0.2}
        >>> config = make_config({"data": data, "federation": {"rounds": 2}})
        >>> result = sweep(config, values={"training.lr": [0.0001, 0.05]}, out="runs/sweep")
        >>> result["methods"][0]["best"]["values"]
        {'training.lr': 0.05}
    """
    require_config(config, "sweep")
    options = SweepOptions(
        methods=tuple(methods),
        sampler=sampler,  # type: ignore[arg-type]  # the options check it
        trials=trials,
        halving=halving,
        seed=seed,
        values=dict(values) if isinstance(values, Mapping) else values,
    )
    folder = Path(out) if out is not None else default_sweep_folder(config)

    # All mistakes come up before the first trial.
    _refuse_other_sweep(config, options, folder)
    searches = make_searches(config, options)
    _refuse_without_validation(searches[0].config)

    make_folder(folder)
    say = announce or (lambda _: None)
    notes = _notes(config, searches)
    with exclusive(folder):
        begin(folder, _KIND, [])
        write_whole(folder / SWEEP_FILE, sweep_to_toml(config, options))
        for note in notes:
            say(f"note: {note}")

        trial_progress = _TrialProgress(progress or RunProgress())
        for search in searches:
            search.run(folder, trial_progress, say)
        result = _conclude(config, options, searches, folder, notes)

    if result["best"] is None:
        errors = [trial["error"] for search in searches for trial in search.trials]
        first = next(filter(None, errors))
        raise RunError(f"every trial of the sweep failed; the first: {first}", path=folder)

    return result


def default_sweep_folder(config: Config) -> Path:
    """Return a folder that does not exist yet: ``runs/sweep-DATASET-TIME``."""
    return unused_folder(f"{_KIND}-{config.data.title}")


# Checks before the first trial.


def _refuse_other_sweep(config: Config, options: SweepOptions, folder: Path) -> None:
    """Refuse a folder that holds anything but the same sweep; trials and seeds may be added."""
    refuse_other_kind(folder, _KIND)
    if not (folder / SWEEP_FILE).is_file():
        return

    begun, begun_options = load_sweep(folder / SWEEP_FILE)
    new = fixed_table(config, options)
    refuse_other_values(new, fixed_table(begun, begun_options), folder, what="a sweep")

    if not set(begun.seeds) <= set(config.seeds):
        allowed = f"{list(begun.seeds)} or more, as in '{folder}'"
        raise wrong_value("seeds", allowed, list(config.seeds), "Seeds can only be added.")


def _refuse_without_validation(config: Config) -> None:
    """Refuse folds, and a federation in which no client has validation examples."""
    if config.data.runs_all_folds:
        hint = "It chooses by the validation examples of one split; 'fedtailor run' has folds."
        raise wrong_value("data.folds", "0 in a sweep", config.data.folds, hint)

    # The first seed stands for all: they have the same share of validation examples.
    parts = assemble(config, config.seeds[0])
    parts.engine.close()
    if not parts.federation.roster.validates:
        allowed = "more than 0 in a sweep, which chooses by validation examples"
        hint = "Try --set data.val_fraction=0.2, or a split with validation examples (--split)."
        raise wrong_value("data.val_fraction", allowed, config.data.val_fraction, hint)


def _notes(config: Config, searches: Sequence[Search]) -> list[str]:
    """Return what a user should know before the first trial."""
    notes = []
    if len({search.num_trials for search in searches}) > 1:
        numbers = ", ".join(f"{search.method} {search.num_trials}" for search in searches)
        notes.append(
            f"methods do not get equal budgets (trials: {numbers}). The more trials a method has, "
            "the higher the best of their scores is by chance. Give sweep.trials, or grids of "
            "equal size."
        )

    algorithms = sorted({search.config.algorithm.name for search in searches})

    # Such as one that sets a weight by the accuracy on these examples.
    optimistic = [name for name in algorithms if load_algorithm(name).chooses_by_validation]
    if optimistic and len(algorithms) > 1:
        notes.append(
            f"{', '.join(optimistic)} personalizes with the validation examples too, so its scores "
            "on them are too high beside those of other methods."
        )

    if len(config.seeds) == 1:
        notes.append(
            "with one seed, a difference between trials can be chance. Several, such as --seeds "
            "0,1,2, show how large it is."
        )

    for search in searches:
        if not search.space:
            notes.append(f"{search.method} has none of the options that vary: it has one trial.")

    return notes


# What varies for each method.


def make_searches(config: Config, options: SweepOptions) -> list[Search]:
    """Return the search of every method.

    Raises:
        ConfigError: a key or a value is wrong for a method.
    """
    check_keys(config, options)
    methods = methods_of(config, options)
    names = [method.name for method in methods]
    _refuse_unused_options(names, options.space)

    searches = []
    for position, method in enumerate(methods):
        label = options.methods[position].strip() if options.methods else method.name
        space = _space_of(method, names, options)
        uses_grid, num_trials = _count_trials(label, space, options)

        # A method of some exchanges has no fewer rounds to begin with.
        halving = 0 if load_algorithm(method.name).exchanges else options.halving

        # Several methods may be one algorithm with different options.
        earlier = names[:position].count(method.name)
        search = Search(
            method=label,
            name=f"{method.name}-{earlier + 1}" if earlier else method.name,
            config=dataclasses.replace(config, algorithm=method),
            options=options,
            space=space,
            uses_grid=uses_grid,
            num_trials=num_trials,
            rungs=halving_rounds(num_trials, config.schedule.rounds, halving),
        )
        for key, distribution in space.items():
            for value in values_to_try(distribution):
                make_algorithm(with_values(search.config, {key: value}))

        searches.append(search)

    return searches


def _count_trials(method: str, space: Space, options: SweepOptions) -> tuple[bool, int]:
    """Return whether combinations are tried in their order, and how many trials a method has.

    Raises:
        ConfigError: there are too many, or no number is given.
    """
    lists = [getattr(distribution, "choices", ()) for distribution in space.values()]
    combinations = math.prod(map(len, lists))  # 0: some values come from a range
    is_whole = combinations > 0 and not 0 < options.trials < combinations
    uses_grid = options.sampler == "grid" or (options.sampler == "auto" and is_whole)
    if uses_grid and combinations == 0:
        raise wrong_value("sweep.sampler", f"random or tpe for a range, as {method} has", "grid")

    trials = options.trials
    if uses_grid or not space:
        trials = min(trials or combinations, combinations)
    elif combinations and options.sampler != "tpe":
        trials = min(trials, combinations)  # random trials differ
    if not 1 <= trials <= MOST_TRIALS:
        raise wrong_value("sweep.trials", f"from 1 to {MOST_TRIALS} for {method}", trials)

    return uses_grid, trials


def _show(values: Mapping[str, Any]) -> str:
    """Return values in words: numbers with four digits."""
    words = []
    for key, value in values.items():
        number = f"{value:.4g}" if isinstance(value, float) else show(value)
        words.append(f"{key}={value if isinstance(value, str) else number}")

    return ", ".join(words)


def _options_of(name: str) -> set[str]:
    """Return what ``[algorithm]`` may hold for an algorithm."""
    return {"preset", *load_algorithm(name).option_names(), *_TRAINING_OPTIONS}


def _refuse_unused_options(names: Sequence[str], space: Space) -> None:
    """Refuse an option of algorithms that no method of the sweep has."""
    for key in space:
        owner, _, option = key.rpartition(".")
        owners = names if owner == "algorithm" else [name for name in names if name == owner]
        allowed = sorted(set().union(*map(_options_of, owners)))
        if owners and option not in allowed:
            whose = " or ".join(dict.fromkeys(owners))
            raise unknown_name("option", option, allowed, of=whose, key=f"sweep.values.{key}")


def _space_of(method: AlgorithmOptions, names: Sequence[str], options: SweepOptions) -> Space:
    """Return what varies for a method, by the keys of its configuration.

    ``METHOD.OPTION`` comes before ``algorithm.OPTION``, and both come before ``training.OPTION``,
    which they override.

    Args:
        method: the method.
        names: the algorithms of all methods.
        options: of the sweep.

    Raises:
        ConfigError: an option that the user wrote with the method would vary.
    """
    general: Space = {}
    specific: Space = {}
    for key, distribution in options.space.items():
        owner, _, option = key.rpartition(".")
        if owner == method.name:
            specific[f"algorithm.{option}"] = distribution
        elif owner == "algorithm":
            if option in _options_of(method.name):
                general[key] = distribution
        elif owner not in names:
            general[key] = distribution

    space = general | specific
    fixed_options = method.options if options.methods else {}
    for option, value in fixed_options.items():
        for key in (f"algorithm.{option}", f"training.{option}"):
            if key in space:
                allowed = f"left out: {method.name} has {option} = {show(value)}"
                raise wrong_value(f"sweep.values.{key}", allowed, options.values)

    # A value of [training] that the method overrides would make equal trials.
    for option in _TRAINING_OPTIONS:
        if f"algorithm.{option}" in space or option in method.options:
            space.pop(f"training.{option}", None)

    return space


# The trials of a method.


@dataclass
class Search:
    """The search of one method: its trials, and what came of them."""

    method: str
    """As a user writes it."""
    name: str
    """Of its configuration file: the algorithm, with a number if several methods have it."""
    config: Config
    """The experiment with the method."""
    options: SweepOptions
    space: Space
    uses_grid: bool
    """Whether combinations are tried in their order."""
    num_trials: int
    rungs: Sequence[int]
    """The rounds after which trials may be pruned, and all rounds last."""
    trials: list[Record] = field(default_factory=list)
    """One record a trial, as in the result of the sweep."""

    def run(self, folder: Path, progress: _TrialProgress, say: Say) -> None:
        """Run all trials, in folders below ``folder``."""
        study = self.make_study()
        for number in range(1, self.num_trials + 1):
            trial = self.draw_trial(study, number, [record["values"] for record in self.trials])
            state, steps, error = self._run_trial(trial, number, folder, progress, say)
            if error is not None:
                say(f"{self._title(number)} failed: {error}")

            record = _trial_record(number, trial.params, steps, error)
            self.trials.append(record)
            score = record["validation"] if state == "COMPLETE" else None
            study.tell(trial, score, import_optuna().trial.TrialState[state])

    def make_study(self) -> Study:
        """Return the study of Optuna, with the combinations of a grid waiting in their order."""
        optuna = import_optuna()

        # The first rung is the smallest resource; the others are multiples of it.
        pruner = optuna.pruners.NopPruner()
        if len(self.rungs) > 1:
            pruner = optuna.pruners.SuccessiveHalvingPruner(
                min_resource=self.rungs[0], reduction_factor=self.options.halving
            )

        study: Study = optuna.create_study(direction="maximize", pruner=pruner)
        if self.uses_grid:
            lists = [values_to_try(distribution) for distribution in self.space.values()]
            for point in itertools.islice(itertools.product(*lists), self.num_trials):
                study.enqueue_trial(dict(zip(self.space, point, strict=True)))

        return study

    def draw_trial(self, study: Study, number: int, tried: Sequence[Mapping[str, Any]]) -> Trial:
        """Return the next trial; random values that were tried are drawn again."""
        repeats = import_optuna().trial.TrialState.FAIL
        may_repeat = self.uses_grid or self.options.sampler == "tpe"
        for draw in itertools.count():
            # A sampler of its own for every draw: an interruption cannot change what is drawn.
            study.sampler = self._make_sampler(number, draw)
            trial = study.ask(self.space)
            if may_repeat or trial.params not in tried or draw == _MOST_DRAWS:
                break
            study.tell(trial, state=repeats)

        return trial

    def _make_sampler(self, number: int, draw: int) -> BaseSampler:
        """Return the sampler of one draw, seeded by sweep, method, trial and draw."""
        key = rng.new_key(self.options.seed, round=number, purpose=f"sweep/{self.method}")
        seed = int(rng.words(rng.plain(key), 1, start=draw)[0] % 2**32)
        samplers = import_optuna().samplers
        make = samplers.TPESampler if self.options.sampler == "tpe" else samplers.RandomSampler
        return make(seed=seed)  # type: ignore[no-any-return]

    def _title(self, number: int) -> str:
        return f"{self.method}: trial {number} of {self.num_trials}"

    def _run_trial(
        self, trial: Trial, number: int, folder: Path, progress: _TrialProgress, say: Say
    ) -> tuple[str, list[Record], FedtailorError | None]:
        """Run a trial for more and more rounds; return its state, steps, and why it failed."""
        steps: list[Record] = []
        for rounds in self.rungs:
            overrides = dict(trial.params)
            share = ""
            if len(self.rungs) > 1:
                overrides["federation.rounds"] = rounds
                share = f", {rounds} of {self.config.schedule.rounds} rounds"

            # Values that are right by themselves can be wrong together.
            try:
                (job,) = make_jobs([with_values(self.config, overrides)], folder)
            except ConfigError as error:
                return "FAIL", steps, error

            # The notes of all trials are the same.
            before = " (finished before)" if is_finished(job) else ""
            say(f"{self._title(number)}{share}: {_show(trial.params)}{before}")
            progress.passes_notes = number == 1 and not steps and not before

            try:
                result = run(job.config, out=job.folder, progress=progress)
            except FedtailorError as error:
                return "FAIL", steps, error

            step = _read_step(job, result)
            if step["validation"] is None:
                return "FAIL", steps, RunError("it has no accuracy on validation examples.")

            steps.append(step)
            trial.report(step["validation"], rounds)
            if rounds != self.rungs[-1] and trial.should_prune():
                return "PRUNED", steps, None

        return "COMPLETE", steps, None


def halving_rounds(trials: int, rounds: int, factor: int) -> list[int]:
    """Return the rounds after which successive halving compares trials, and all rounds last.

    Li et al. 2020, "A system for massively parallel hyperparameter tuning" (ASHA).

    Args:
        trials: of the method.
        rounds: of the configuration.
        factor: about one trial in so many gets so many times the rounds; 0: no trial is pruned.

    Example:
        >>> halving_rounds(20, 30, 3)
        [3, 10, 30]
    """
    if factor == 0:
        return [rounds]
    steps = 0
    while min(trials, rounds) >= factor ** (steps + 1):
        steps += 1
    return [rounds // factor**step for step in range(steps, -1, -1)]


def _read_step(job: RunJob, result: Any) -> Record:
    """Return what the result of a run says of its trial; no score on test examples is among it."""
    num_seeds = len(job.config.seeds)
    results = [result]
    if num_seeds > 1:  # of which each may stop after another round
        folders = [job.folder / f"seed-{seed}" for seed in job.config.seeds]
        results = [read_result(folder) or result for folder in folders]

    with content_of(job.folder / "result.json"):
        accuracy = result["metrics"].get("validation", {}).get("accuracy", {})
        step = {
            "rounds": result["rounds"],
            "validation": validation_accuracy(result["metrics"]),
            "standard_error": accuracy.get("sem", {}).get("mean"),
            "run": f"{job.folder.parent.name}/{job.folder.name}",
            "trained_rounds": sum(one["rounds"] for one in results),
            "seconds": result["seconds"]["total"] * num_seeds,
            "events": result["events"],
        }
        if "privacy" in result:
            step["privacy"] = result["privacy"]

    return step


def validation_accuracy(metrics: Mapping[str, Any]) -> float | None:
    """Return the mean validation accuracy of personalized models; None without any."""
    accuracy = metrics.get("validation", {}).get("accuracy", {}).get("mean")
    is_number = isinstance(accuracy, float | int) and math.isfinite(accuracy)
    return accuracy if is_number else None


def _trial_record(
    number: int,
    values: Mapping[str, Any],
    steps: Sequence[Record],
    error: FedtailorError | None,
) -> Record:
    """Return the record of a trial; the scores of its last step stand at the top."""
    last = steps[-1] if steps else {}
    return {
        "trial": number,
        "values": dict(values),
        "rank": None,
        **{name: last.get(name) for name in ("rounds", "validation", "standard_error", "run")},
        "trained_rounds": sum(step["trained_rounds"] for step in steps),
        "seconds": math.fsum(step["seconds"] for step in steps),
        "steps": list(steps),
        "error": None if error is None else str(error),
    }


# The choice.


def _conclude(
    config: Config,
    options: SweepOptions,
    searches: Sequence[Search],
    folder: Path,
    notes: Sequence[str],
) -> Record:
    """Choose, write the chosen configurations and the result of the sweep, and return it."""
    methods = [_conclude_method(search, folder) for search in searches]
    chosen = [method for method in methods if method["best"] is not None]

    # The first of equal ones.
    best = None
    if chosen:
        winner = max(chosen, key=lambda method: method["best"]["validation"])
        best = {"method": winner["method"], "config": winner["config"]}

    # The choice is made: only now are test scores read, and only to be shown.
    for method in chosen:
        method["test"] = _test_scores(folder / method["best"]["run"])

    result: Record = {
        "version": _VERSION,
        "sweep": str(folder),
        "dataset": config.data.title,
        "rounds": config.schedule.rounds,
        "seeds": list(config.seeds),
        "sweep_seed": options.seed,
        "sampler": options.sampler,
        "halving": options.halving,
        "values": options.values,
        "chosen_by": _CHOSEN_BY,
        "best": best,
        "methods": methods,
        "trained_rounds": sum(method["trained_rounds"] for method in methods),
        "notes": list(notes),
    }

    # Every trial tells something, not only the chosen one.
    trials = [trial for search in searches for trial in search.trials]
    result |= promises_of([step for trial in trials for step in trial["steps"]])

    # Reports read the folder as that of a comparison of the best runs.
    runs = [folder / method["best"]["run"] for method in chosen]
    begin(folder, _KIND, [RunJob(load_config(run / CONFIG_FILE), run) for run in runs])
    write_json(folder / "sweep.json", result, indent=2)

    return result


def _conclude_method(search: Search, folder: Path) -> Record:
    """Rank the trials of a method, write its best configuration, and return its part of the result.

    Trials that went through more rounds rank first; only those that had all rounds are chosen.
    """
    # More rounds first, then the higher score, then the earlier trial.
    trials = search.trials
    scored = [trial for trial in trials if not trial["error"]]
    scored.sort(key=lambda trial: (-len(trial["steps"]), -trial["validation"], trial["trial"]))
    for rank, trial in enumerate(scored, start=1):
        trial["rank"] = rank

    record: Record = {
        "method": search.method,
        "trials": trials,
        "failed": len(trials) - len(scored),
        "trained_rounds": sum(trial["trained_rounds"] for trial in trials),
        "seconds": math.fsum(trial["seconds"] for trial in trials),
        "spread": _spread([trial["steps"][0] for trial in trials if trial["steps"]]),
        "best": None,
        "config": None,
    }
    if scored and len(scored[0]["steps"]) == len(search.rungs):
        record["best"] = scored[0]
        record["config"] = f"best-{safe_name(search.name)}.toml"
        write_whole(folder / record["config"], _best_toml(search, scored[0], folder))

    return record


def _spread(steps: Sequence[Record]) -> Record | None:
    """Return the quartiles of the scores of all trials at equal rounds; None without trials."""
    if not steps:
        return None

    scores = [step["validation"] for step in steps]
    quartiles = np.quantile(scores, list(_QUARTILES.values())).tolist()
    named = dict(zip(_QUARTILES, quartiles, strict=True))
    return {"rounds": steps[0]["rounds"], "trials": len(scores), **named}


def _best_toml(search: Search, best: Record, folder: Path) -> str:
    """Return the best configuration of a method, below comments that say what it is."""
    error = ""
    if best["standard_error"] is not None:
        error = f" ± {best['standard_error']:.4f}"

    lines = [
        f"The best of {search.num_trials} trials of {search.method}: {_show(best['values'])}",
        f"Chosen by {_CHOSEN_BY}: {best['validation']:.4f}{error}",
    ]
    comments = "".join(f"# {one_line(line)}\n" for line in lines)
    config = load_config(folder / best["run"] / CONFIG_FILE)
    return f"{comments}\n{to_toml(config)}"


def _test_scores(folder: Path) -> Record:
    """Return the accuracies of a finished run on test examples, by evaluation point."""
    metrics = (read_result(folder) or {}).get("metrics", {})
    return {
        point: scores["accuracy"]
        for point, scores in metrics.items()
        if point != "validation" and "accuracy" in scores
    }


class _TrialProgress(PassedOn):
    """Passes on the progress of trials, without scores on test examples."""

    def __init__(self, progress: RunProgress) -> None:
        super().__init__(progress)
        self.passes_notes = True

    def round(self, record: Mapping[str, Any]) -> None:
        """Report the end of a round, with what decides only."""
        evaluations = record["evaluations"]
        validation = [scores for scores in evaluations if scores["test_set"] == "validation"]
        super().round({**record, "evaluations": validation})

    def note(self, text: str) -> None:
        """Report something that a user should know."""
        if self.passes_notes:
            super().note(text)
