"""The command ``fedtailor compare``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Assignments,
    Json,
    Methods,
    Named,
    argument,
    names_key,
    read_config,
    text_option,
    with_config_flags,
)
from fedtailor.cli.shell import guarded, print_json
from fedtailor.cli.show.console import say
from fedtailor.core.errors import FedtailorError, RunError, UsageError, find_name, match_name
from fedtailor.core.metrics import CLIENT_METRICS

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config
    from fedtailor.experiment.runner import RunJob
    from fedtailor.report.comparison import Comparison

FORMATS = ("table", "markdown", "latex", "csv")
_ENDINGS = {"markdown": "md", "latex": "tex", "csv": "csv"}
"""Of the files in these formats."""
KIND = "comparison"
"""What the folder of a comparison says that it holds."""
_ENOUGH_TESTS = 3000
"""Test examples of own data from which on one split is enough: the standard error of an accuracy
from them is below one point."""


@with_config_flags()
def compare(
    inputs: Annotated[
        list[str] | None,
        argument(
            "[RUN... | CONFIG.toml]",
            "Folders of runs or comparisons to read; or, with -a, a configuration that all "
            "methods share.",
        ),
    ] = None,
    algorithm: Methods = None,
    named: Named = NOTHING_NAMED,
    set_: Assignments = None,
    out: Annotated[
        str, text_option("FOLDER", "Folder of the comparison (default: a new one under runs/).")
    ] = "",
    against: Annotated[
        str,
        text_option(
            "LABEL", "Method that the others are compared with (default: the first that finished)."
        ),
    ] = "",
    point: Annotated[
        str, typer.Option(metavar="NAME", help="Evaluation point: personalized, global or local.")
    ] = "personalized",
    metric: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"Metric: one of {', '.join(CLIENT_METRICS)}."),
    ] = "accuracy",
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAME", help="What to print: table, markdown, latex or csv."
        ),
    ] = "table",
    json: Json = False,
) -> None:
    """Compare methods: train those that are missing, or only read runs.

    Prints means, differences and tests. All methods get the same data, split and rounds. The folder
    can be given again with --out: finished runs are read, interrupted ones resumed, and methods can
    be added.
    """
    paths = inputs or []
    failures: list[str] = []
    find_name("format", format_, FORMATS, key="format", kind=UsageError)

    if algorithm:
        if len(paths) > 1:
            message = "with -a, give one configuration or none; without -a, give runs to read."
            raise UsageError(message, key="inputs")

        # What to compare is checked first: training may take hours.
        from fedtailor.report.records import POINTS

        find_name("metric", metric, CLIENT_METRICS, key="metric")
        find_name("evaluation point", point, POINTS, key="point")
        path = paths[0] if paths else ""
        settings = read_config(path, named, set_)
        if settings.data.path and len(settings.seeds) > 1:
            is_named = names_key("data.seed", path, named, set_)
            settings = _with_varying_split(settings, is_named=is_named)

        shown = {"against": against, "point": point, "metric": metric}
        folder, failures = _train(settings, algorithm, out, shown)
        folders = [folder]
    else:
        _refuse_training_options(named, set_, out)
        if not paths:
            message = (
                "name the methods to train, such as -a pfedfda -a ditto, "
                "or the folders of runs to read."
            )
            raise UsageError(message, key="inputs")

        folders = [Path(path) for path in paths]

    show_methods(
        folders,
        against=against,
        point=point,
        metric=metric,
        format_=format_,
        json=json,
        write_to=folders[0] if algorithm else None,
        failures=failures,
    )


def _with_varying_split(settings: Config, *, is_named: bool) -> Config:
    """Return the settings with a split for each seed, where few test examples would hide chance.

    What ± over the seeds stands for is said first.

    Args:
        settings: of a comparison of several seeds on own data.
        is_named: whether the user has chosen ``data.seed``.
    """
    from fedtailor.cli.show.progress import CountLine
    from fedtailor.data.division import divide

    varies = "± over seeds covers split and training"
    constant = "± over seeds covers training only"
    options = settings.data
    if options.split:
        say(f"{constant}: all seeds have the split of '{options.split}'.")
    elif options.seed == "run":
        say(f"{varies}: every seed divides the data again.")
    elif is_named:
        say(f"{constant}: all seeds have one split (data.seed = {options.seed}).")
    else:
        with CountLine() as preparation:
            division = divide(options, run_seed=settings.seeds[0], report=preparation)

        examples = sum(len(client.test) for client in division.positions)
        if division.test == "given":
            say(f"{constant}: the data come with their test examples.")
        elif examples >= _ENOUGH_TESTS:
            say(f"{constant}: with {examples:,} test examples, all seeds have one split.")
        else:
            say(
                f"{varies}: with {examples:,} test examples, every seed divides the data again "
                f"(--set data.seed={options.seed}: one split for all)."
            )
            return dataclasses.replace(settings, data=dataclasses.replace(options, seed="run"))

    return settings


def resume_comparison(folder: Path, *, json: bool) -> None:
    """Run what is missing of a comparison that was interrupted, and print it.

    Raises:
        DataError: the folder is damaged.
        Interrupted: it was interrupted again.
        RunError: a method failed.
    """
    from fedtailor.experiment.folder import exclusive
    from fedtailor.experiment.runner import read_jobs, read_shown

    jobs = read_jobs(folder, KIND)
    shown = read_shown(folder)
    with exclusive(folder):
        failures = run_missing(jobs, folder)
    show_methods(
        [folder],
        against=shown.get("against", ""),
        point=shown.get("point", ""),
        metric=shown.get("metric", "accuracy"),
        json=json,
        write_to=folder,
        failures=failures,
    )


def show_methods(
    folders: Sequence[Path],
    *,
    against: str = "",
    point: str = "",
    metric: str = "accuracy",
    format_: str = "table",
    json: bool = False,
    write_to: Path | None,
    failures: Sequence[str] = (),
) -> None:
    """Compare the runs in some folders and print the comparison.

    Args:
        folders: of runs or comparisons.
        against: label of the reference.
        point: evaluation point.
        metric: what is compared.
        format_: how to print it.
        json: whether to print it as JSON.
        write_to: the folder of the comparison, which gets the tables as files; None: there is none.
        failures: why methods are missing.

    Raises:
        RunError: methods are missing.
    """
    from fedtailor.core.atomic import write_whole
    from fedtailor.report.comparison import compare as compare_methods
    from fedtailor.report.methods import read_methods
    from fedtailor.report.worth_it import sites_csv

    comparison = compare_methods(read_methods(folders), metric=metric, point=point, against=against)
    if write_to is not None:
        for ending, write in _writers().items():
            write_whole(write_to / f"table.{ending}", write(comparison))
        if comparison.worth_it:
            write_whole(write_to / "sites.csv", sites_csv(comparison.worth_it))

    if json:
        folder = None if write_to is None else str(write_to)
        print_json({**comparison.as_record(), "folder": folder, "failures": list(failures)})
        if failures:
            raise typer.Exit(RunError.exit_code)

        return

    if format_ == "table":
        from fedtailor.cli.show.results import show_comparison

        show_comparison(comparison)
    else:
        typer.echo(_writers()[_ENDINGS[format_]](comparison), nl=False)

    if write_to is not None:
        say(f"The runs, and these tables as Markdown, LaTeX, CSV and JSON, are in {write_to}")

    if failures:
        raise RunError(_failed(failures), path=write_to)


def _refuse_training_options(named: Named, assignments: list[str] | None, out: str) -> None:
    """Check that no option is there that only belongs to training.

    Raises:
        UsageError: one is.
    """
    from fedtailor.experiment.config import config_flags

    values = {flag.option: named[key] for key, flag in config_flags().items()}
    values |= {"--set": assignments, "--out": out}
    for option, value in values.items():
        if value not in ("", None, []):
            message = (
                f"{option} has no effect on runs that are only read: "
                "name methods with -a, or leave it out."
            )
            raise UsageError(message, key=option)


def _train(
    settings: Config, methods: Sequence[str], out: str, shown: Mapping[str, str]
) -> tuple[Path, list[str]]:
    """Run what is missing of a comparison; return its folder, and why methods failed.

    Args:
        settings: of all methods.
        methods: as options.
        out: the folder; empty: a new one.
        shown: how the methods are compared (against, point, metric), also if this is resumed.

    Raises:
        ConfigError: an option is wrong, or no method has the label of ``against``.
        Interrupted: it was interrupted.
        RunError: fewer than two methods have a result.
        UsageError: there is only one method.
    """
    from fedtailor.experiment.methods import with_methods

    if len(methods) < 2:
        raise UsageError("a comparison needs two methods or more: give -a again.", key="algorithm")

    configs = with_methods(settings, methods)

    from fedtailor.core.atomic import make_folder
    from fedtailor.experiment.folder import exclusive
    from fedtailor.experiment.reader import COMPARISON_FILE, holds_run, list_runs
    from fedtailor.experiment.run import unused_folder
    from fedtailor.experiment.runner import begin, make_jobs, refuse_fewer_seeds, refuse_other_kind

    folder = Path(out) if out else unused_folder(f"compare-{settings.data.title}")
    jobs = make_jobs(configs, folder)

    # Two methods with the same options would be one run.
    for position, job in enumerate(jobs):
        if job.folder in [other.folder for other in jobs[:position]]:
            message = f"'{methods[position]}' is the same as a method before it: leave it out."
            raise UsageError(message, key="algorithm")

    if shown["against"]:
        _check_label(shown["against"], configs)

    refuse_other_kind(folder, KIND)
    refuse_fewer_seeds(jobs)
    make_folder(folder)

    # Methods of an earlier call stay in the folder, but only those named now are compared.
    with exclusive(folder):
        earlier = list_runs(folder) if (folder / COMPARISON_FILE).is_file() else []
        left_out = set(filter(holds_run, earlier)) - {job.folder for job in jobs}
        if left_out:
            runs = f"runs of an earlier comparison ({len(left_out)})"
            say(f"note: left out of the tables, but kept in '{folder}': {runs}.")

        begin(folder, KIND, jobs, shown=shown)
        return folder, run_missing(jobs, folder)


def _check_label(label: str, configs: Sequence[Config]) -> None:
    """Check that a method will have a label, as far as it is known before the runs.

    Raises:
        ConfigError: none will.
    """
    import tomllib

    from fedtailor.experiment.assembly import make_algorithm, resolved_options
    from fedtailor.experiment.config import to_toml
    from fedtailor.report.methods import label_methods

    settings = []
    for config in configs:
        # As the folders of the runs say it, with the defaults of the method.
        algorithm = make_algorithm(config)
        options = resolved_options(config.algorithm, algorithm)
        used = dataclasses.replace(config, algorithm=options, training=algorithm.training)
        settings.append(tomllib.loads(to_toml(used)))

    # Methods of one name are told apart by their settings, some of which the runs choose.
    labels = label_methods(settings)
    name = label.partition(" (")[0]
    names = [config.algorithm.name for config in configs]
    if name != label and names.count(match_name(name, names) or "") > 1:
        return

    find_name("method", label, labels, key="against")


def run_missing(jobs: Sequence[RunJob], folder: Path) -> list[str]:
    """Run what is missing of a comparison; return why methods failed.

    Raises:
        ConfigError: an option is wrong for all methods.
        DataError: the data cannot be used, for all methods.
        Interrupted: it was interrupted.
        RunError: fewer than two methods have a result.
    """
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.run import count_unfinished, run
    from fedtailor.experiment.runner import is_finished

    missing = [job for job in jobs if not is_finished(job)]
    if len(missing) < len(jobs):
        say(f"{len(jobs) - len(missing)} of {len(jobs)} methods have finished runs in '{folder}'")

    runs = sum(count_unfinished(job.folder, job.config) for job in missing)
    failures = []
    errors: list[FedtailorError] = []

    # All jobs, because the data of finished runs is checked too.
    with guarded(str(folder), resumable=True):
        progress = make_progress(runs=max(runs, 1))
        for job in jobs:
            try:
                run(job.config, out=job.folder, progress=progress)
            except FedtailorError as error:
                errors.append(error)
                failures.append(f"{job.config.algorithm.name}: {error.message}")

    # One mistake that stops all methods keeps its own kind and exit code.
    if len(errors) == len(jobs) and len({error.message for error in errors}) == 1:
        raise errors[0]
    if len(jobs) - len(failures) < 2:
        raise RunError(_failed(failures), path=folder)

    return failures


def _failed(failures: Sequence[str]) -> str:
    """Return in words which methods failed, and why."""
    methods = "a method" if len(failures) == 1 else f"{len(failures)} methods"
    return f"{methods} failed. {' '.join(failures)}"


def _writers() -> dict[str, Callable[[Comparison], str]]:
    """Return what writes a comparison, by the ending of its file."""
    from fedtailor.report.latex import to_latex
    from fedtailor.report.tables import to_csv, to_json, to_markdown

    return {"md": to_markdown, "tex": to_latex, "csv": to_csv, "json": to_json}
