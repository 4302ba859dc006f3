"""The command ``fedtailor sweep``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Assignments,
    Json,
    Methods,
    Named,
    Out,
    argument,
    number_option,
    read_assignments,
    read_overrides,
    refuse_missing_data,
    text_option,
    with_config_flags,
)
from fedtailor.cli.shell import guarded, print_result

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config
    from fedtailor.experiment.sweep_options import SweepOptions

_RUNS_PER_TEN_LINES = 10
"""With this number of runs, the progress prints a line at the end of each."""


@with_config_flags()
def sweep(
    config: Annotated[
        str,
        argument("CONFIG.toml", "Configuration file with a section sweep. Options override it."),
    ] = "",
    values: Annotated[
        list[str] | None,
        text_option(
            "KEY=VALUES",
            'What to try: "training.lr=[0.01, 0.1]", or uniform(A, B), loguniform(A, B), '
            "integers(A, B) in place of the list. METHOD.OPTION is an option of one method. May be "
            "repeated.",
        ),
    ] = None,
    algorithm: Methods = None,
    trials: Annotated[
        int | None, number_option("--trials", "Trials of every method (default: the whole grid).")
    ] = None,
    sampler: Annotated[
        str,
        text_option(
            "NAME",
            "Where values come from: grid, random or tpe (default: auto, the grid if all of "
            "it is tried, else random).",
        ),
    ] = "",
    halving: Annotated[
        int | None,
        number_option(
            "--halving",
            "Prune: few rounds first; about one trial in NUMBER gets NUMBER times the rounds "
            "(default: 0, no pruning).",
        ),
    ] = None,
    named: Named = NOTHING_NAMED,
    set_: Assignments = None,
    out: Out = "",
    json: Json = False,
) -> None:
    """Try values of options, and choose the best on validation examples.

    Test examples never decide. If the folder holds the same sweep, interrupted or killed, it is
    resumed.
    """
    from fedtailor.experiment.sweep_options import load_sweep

    sweep_values = {
        "sweep.sampler": sampler,
        "sweep.trials": trials,
        "sweep.halving": halving,
        "sweep.methods": algorithm,
    }
    overrides = read_overrides({**named, **sweep_values}, set_)
    for key, value in read_assignments(values, "--values"):
        overrides.append((f"sweep.values.{key}", value))

    # Before torch is imported: a mistake is reported at once.
    settings, options = load_sweep(config, overrides)
    refuse_missing_data(settings)

    from fedtailor.experiment.sweep import default_sweep_folder

    _run(settings, options, out or str(default_sweep_folder(settings)), json=json)


def resume_sweep(folder: Path, *, json: bool) -> None:
    """Resume the sweep in a folder, and print its result."""
    from fedtailor.experiment.sweep_options import SWEEP_FILE, load_sweep

    settings, options = load_sweep(folder / SWEEP_FILE)
    _run(settings, options, str(folder), json=json)


def _run(settings: Config, options: SweepOptions, folder: str, *, json: bool) -> None:
    """Run a sweep, or what is left of it, and print its result."""
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.cli.show.sweep import show_sweep
    from fedtailor.experiment.sweep import sweep as run_sweep

    progress = make_progress(runs=_RUNS_PER_TEN_LINES)
    with guarded(folder, resumable=True):
        result = run_sweep(
            settings, **asdict(options), out=folder, progress=progress, announce=progress.line
        )

    print_result(result, json, show_sweep)
