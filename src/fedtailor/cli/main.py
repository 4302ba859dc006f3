"""The command line: parse, call one function, print. Nothing heavy is imported before a command runs.

Data goes to stdout, talk to stderr. Exit codes: 0 ok, 2 usage, 3 configuration, 4 data, 5 run failed, 6 interrupted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor import __version__
from fedtailor.cli.data import data_app
from fedtailor.cli.options import DataDir, Debug, Help, Json, show_help
from fedtailor.cli.papers import experiments_app
from fedtailor.cli.shell import guarded, print_json, run_command_line
from fedtailor.core.errors import UsageError

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

Out = Annotated[str, typer.Option(help="Folder to write, new or empty (default: under runs/).")]


app.add_typer(data_app, name="data")
app.add_typer(experiments_app, name="experiments")


@app.callback(invoke_without_command=True, add_help_option=False)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    help_: Help = False,
) -> None:
    """Personalized federated learning: one model per client, without moving data.

    Start with: fedtailor demo
    """
    if version:
        print(f"fedtailor {__version__}")  # noqa: T201  # what was asked for
    else:
        show_help(context, help_)
    if version or help_:
        raise typer.Exit


@app.command()
def demo(
    out: Out = "",
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare four ways to train for 20 clients with little data each: under a minute, no download."""
    from fedtailor.cli.show import results as terminal
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.demo import INTRODUCTION, default_demo_folder, run_demo

    folder = out or str(default_demo_folder())
    terminal.say(INTRODUCTION)
    start = time.perf_counter()
    results = guarded(folder, lambda: run_demo(folder, seed=seed, progress=make_progress()))
    if json:
        print_json({"runs": results})
    else:
        terminal.show_demo(results, time.perf_counter() - start)


@app.command()
def run(
    config: Annotated[str, typer.Argument(metavar="[CONFIG.toml]", help="Experiment; options override it.")] = "",
    algorithm: Annotated[
        str,
        typer.Option("--algorithm", "-a", help="Algorithm (see: fedtailor list algorithms), or package.module:Class."),
    ] = "",
    dataset: Annotated[str, typer.Option("--dataset", "-d", help="Data set (see: fedtailor list datasets).")] = "",
    data: Annotated[str, typer.Option(help="Own data: a folder or table, or package.module:function.")] = "",
    data_dir: DataDir = "",
    partition: Annotated[str, typer.Option(help='Who has which examples, such as "dirichlet(alpha=0.5)".')] = "",
    split: Annotated[str, typer.Option(help="Split of an earlier run or of: fedtailor data partition.")] = "",
    model: Annotated[str, typer.Option(help="Model (see: fedtailor list models), or package.module:function.")] = "",
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    participation: Annotated[str, typer.Option(help="Clients per round: 0.3, all, fixed(10) or bernoulli(0.3).")] = "",
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, such as 0,1,2: one run each.")] = None,
    engine: Annotated[str, typer.Option(help="How clients are run (see: fedtailor list engines).")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any option, such as training.lr=0.05.")
    ] = None,
    out: Out = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment and write its folder: scores and a model for every client."""
    from fedtailor.cli.show import results as terminal
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment import run as experiment

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
    }
    settings = _make_config(config, named, set_ or [])
    folder = out or str(experiment.default_folder(settings))
    result = guarded(folder, lambda: experiment.run(settings, out=folder, progress=make_progress()))
    if json:
        print_json(result)
    else:
        terminal.show_result(result)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="algorithms, datasets, models, partitions or engines.")],
    model: Annotated[
        str, typer.Option(help="Model whose bytes are listed for algorithms, or package.module:function.")
    ] = "cifar_cnn",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List what there is to choose from."""
    from fedtailor.cli.show import results as terminal
    from fedtailor.experiment.catalog import algorithm_listing, listing

    entries = algorithm_listing(model) if kind == "algorithms" else listing(kind)
    if json:
        print_json({kind: entries})
    elif kind == "algorithms":
        terminal.show_algorithms(entries, model)
    else:
        terminal.show_list(kind, entries)


@app.command()
def doctor(data_dir: DataDir = "", json: Json = False, debug: Debug = False) -> None:
    """Say what this machine has: versions, cores, engine, and which data sets are there."""
    from fedtailor.cli.show import results as terminal
    from fedtailor.experiment.catalog import examine

    report = examine(data_dir)
    if json:
        print_json(report)
    else:
        terminal.show_report(report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        arguments: default: those of the process.
    """
    return run_command_line(app, list(sys.argv[1:] if arguments is None else arguments))


def _make_config(path: str, named: dict[str, Any], assignments: Sequence[str]) -> Config:
    """Build the configuration from a file, the named options, and assignments, which win in this order."""
    from fedtailor.experiment.config import load_config, make_config, parse_assignment, parse_value

    if named["seed"] is not None and named["seeds"] is not None:
        raise UsageError("give --seed or --seeds, not both.", key="seeds")
    if named["data.dataset"] and named["data.path"]:
        raise UsageError("give --dataset or --data, not both.", key="data")
    overrides = [(key, value) for key, value in named.items() if value is not None and (value != "" or key == "seeds")]
    for position, (key, value) in enumerate(overrides):
        if key == "federation.participation":
            overrides[position] = (key, parse_value(value))
        elif key == "seeds":
            overrides[position] = (key, parse_value(f"[{value}]"))
    overrides += [parse_assignment(text) for text in assignments]
    return load_config(path, overrides) if path else make_config({}, overrides)
