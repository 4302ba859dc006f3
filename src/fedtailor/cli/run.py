"""The command ``fedtailor run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import (
    Clients,
    DataDir,
    DatasetName,
    Debug,
    Json,
    Out,
    OwnData,
    PartitionText,
    read_assignments,
    refuse_two_data_sets,
    whole_number,
)
from fedtailor.cli.shell import guarded, print_json
from fedtailor.core.errors import UsageError

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config


def run_(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG.toml", show_default=False, help="Configuration file. Options override it.")
    ] = "",
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="NAME",
            help="Algorithm (see: fedtailor list algorithms), or package.module:Class.",
        ),
    ] = "",
    dataset: DatasetName = "",
    data: OwnData = "",
    data_dir: DataDir = "",
    partition: PartitionText = "",
    split: Annotated[
        str, typer.Option(metavar="PATH", help="Split of an earlier run, or one that fedtailor data partition wrote.")
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Model (see: fedtailor list models), or package.module:function.")
    ] = "",
    clients: Clients = None,
    rounds: Annotated[
        int | None, typer.Option(parser=whole_number("--rounds"), metavar="NUMBER", help="Number of rounds.")
    ] = None,
    participation: Annotated[
        str, typer.Option(metavar="TEXT", help="Clients per round: all, 0.3, fixed(10) or bernoulli(0.3).")
    ] = "",
    seed: Annotated[
        int | None, typer.Option(parser=whole_number("--seed"), metavar="NUMBER", help="Random seed of the run.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Several seeds, such as 0,1,2: one run for each.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="Engine that runs the clients (see: fedtailor list engines).")
    ] = "",
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            parser=whole_number("--checkpoint-every"),
            metavar="NUMBER",
            help="Rounds between checkpoints (default: 1; 0: none).",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any option, such as training.lr=0.05. May be repeated."),
    ] = None,
    out: Out = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Only estimate time, memory and disk, from a trial of a few steps."),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment. Its folder holds the scores and a model for every client.

    If the folder holds the same run, interrupted or killed, it is resumed.
    """
    named: dict[str, Any] = {
        "algorithm.name": algorithm,
        "data.dataset": dataset,
        "data.path": data,
        "data.dir": data_dir,
        "data.partition": partition,
        "data.split": split,
        "model.name": model,
        "data.clients": clients,
        "federation.rounds": rounds,
        "federation.participation": participation,
        "seed": seed,
        "seeds": seeds,
        "engine.name": engine,
        "checkpoint.every": checkpoint_every,
    }
    settings = _read_config(config, named, set_ or [])  # before torch is imported: a mistake is reported at once

    if dry_run:
        _estimate(settings, as_json=json)
        return

    from fedtailor.cli.show.progress import make_progress
    from fedtailor.cli.show.results import show_result
    from fedtailor.experiment.run import default_folder, run

    folder = out or str(default_folder(settings))
    progress = make_progress(runs=len(settings.seeds))
    with guarded(folder, resumable=True):
        result = run(settings, out=folder, progress=progress)
    if json:
        print_json(result)
    else:
        show_result(result)


def _estimate(settings: Config, *, as_json: bool) -> None:
    """Print what a run would take; nothing is written."""
    from fedtailor.cli.show.estimate import show_estimate
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.estimate import estimate

    found = estimate(settings, make_progress())
    if as_json:
        print_json(found)
    else:
        show_estimate(found)


def _read_config(path: str, named: dict[str, Any], assignments: Sequence[str]) -> Config:
    """Build the configuration from a file, the named options and the assignments; later ones win."""
    from fedtailor.experiment.config import load_config, make_config, parse_value

    refuse_two_data_sets(named["data.dataset"], named["data.path"])
    overrides: list[tuple[str, Any]] = []
    for key, value in named.items():
        if key == "seeds" and value is not None:
            overrides.append((key, _read_seeds(value)))
        elif key == "federation.participation" and value:
            overrides.append((key, parse_value(value)))
        elif value is not None and value != "":
            overrides.append((key, value))
    overrides += read_assignments(assignments)
    if {"seed", "seeds"} <= {key for key, _ in overrides}:
        raise UsageError("give --seed or --seeds, not both.", key="seeds")
    settings = load_config(path, overrides) if path else make_config({}, overrides)
    if settings.data.path:
        from fedtailor.data.own.layout import refuse_missing

        refuse_missing(settings.data.path)
    return settings


def _read_seeds(text: str) -> list[int]:
    """Read the value of ``--seeds``.

    Raises:
        UsageError: it is not a list of different whole numbers.
    """
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        allowed = "different whole numbers, such as 0,1,2"
        raise UsageError(f"--seeds must be {allowed}, got '{text}'.", key="--seeds", allowed=allowed, got=text)
    return seeds
