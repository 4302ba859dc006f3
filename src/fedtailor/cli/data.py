"""The commands of ``fedtailor data``: what there is, fetching it, checking own data, dividing, drawing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import DataDir, Debug, Help, Json, show_help
from fedtailor.cli.shell import Interrupted, print_json
from fedtailor.core.errors import ConfigError, DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    from fedtailor.data.division import Division
    from fedtailor.data.options import DataOptions
    from fedtailor.data.plot.style import Picture

data_app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

PLOTS = ("bubbles", "sizes", "corruptions")
_SIMULATED = 20  # divisions that a plot of sizes is over

DatasetName = Annotated[str, typer.Option("--dataset", "-d", help="Data set (see: fedtailor data list).")]
OwnPath = Annotated[str, typer.Option("--data", help="Own data: a folder or table, or package.module:function.")]
PartitionText = Annotated[str, typer.Option(help='Who has which examples, such as "dirichlet(alpha=0.5)".')]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Seed = Annotated[int | None, typer.Option(help="Seed of partition, split and corruptions (data.seed; default 42).")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any option of data, such as data.fraction=0.5.")
]


@data_app.callback(invoke_without_command=True, add_help_option=False)
def _root(
    context: typer.Context,
    help_: Help = False,
) -> None:
    """Data sets: list, fetch, check your own, divide among clients, draw."""
    show_help(context, help_)
    if help_:
        raise typer.Exit


@data_app.command("list")
def list_(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Say all of this data set, its citation too.")] = "",
    data_dir: DataDir = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the known data sets: what is there, how large, under which license, how to get it."""
    from fedtailor.cli.show import data as terminal_data
    from fedtailor.data import data_folder
    from fedtailor.data.inventory import describe_dataset, inventory

    folder = data_folder(data_dir)
    if folder.exists() and not folder.is_dir():
        message = f"'{folder}' is a file; the data sets are looked for in a folder: --data-dir, or FEDTAILOR_DATA."
        raise DataError(message, key="data.dir", path=str(folder), allowed="a folder", got="a file")
    records = [describe_dataset(name, folder)] if name else inventory(folder)
    if json:
        print_json({"data_folder": str(folder), "datasets": records})
    elif name:
        terminal_data.show_dataset(str(folder), records[0])
    else:
        terminal_data.show_inventory(str(folder), records)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Data set (see: fedtailor data list).")],
    data_dir: DataDir = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Download a known data set from where it is published; an interrupted download is gone on with."""
    from fedtailor.cli.show import data as terminal_data
    from fedtailor.data import data_folder
    from fedtailor.data.download import fetch as fetching
    from fedtailor.data.download.sources import ELSEWHERE

    folder = data_folder(data_dir)
    try:
        with terminal_data.FetchLine() as line:
            paths = fetching.fetch(name, folder, progress=line)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on where this one ended.", path=str(folder)) from None
    files = [{"path": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size} for path in paths]
    record = {"dataset": name, "folder": str(folder), "files": files, "elsewhere": ELSEWHERE.get(name)}
    if json:
        print_json(record)
    else:
        terminal_data.show_fetched(record)


@data_app.command()
def check(
    path: Annotated[str, typer.Argument(help="Own data: a folder or table, or package.module:function.")],
    set_: Assignments = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read your own data as a run would, and list all that is wrong with them; exit code 4 if they cannot be used."""
    from fedtailor.cli.show import data as terminal_data
    from fedtailor.data.describe import describe_findings
    from fedtailor.data.own.read import read_own

    record = describe_findings(path, read_own(path, _options({"data.path": path}, set_)))
    if json:
        print_json(record)
    else:
        terminal_data.show_check(record)
    if not record["usable"]:
        raise typer.Exit(DataError.exit_code)


@data_app.command()
def partition(
    out: Annotated[
        str, typer.Option(help="split.json to write, or a folder for client_*.npz; for: fedtailor run --split.")
    ] = "",
    dataset: DatasetName = "",
    data: OwnPath = "",
    data_dir: DataDir = "",
    partition: PartitionText = "",
    clients: Clients = None,
    seed: Seed = None,
    set_: Assignments = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Divide data among clients: say who has which examples, and write it to a file if asked."""
    from fedtailor.cli.show import data as terminal_data
    from fedtailor.core.atomic import to_json, write_whole
    from fedtailor.data.build import split_record
    from fedtailor.data.describe import describe_division
    from fedtailor.data.division import divide
    from fedtailor.data.split_files import write_npz_split

    if (ending := Path(out).suffix) and ending.lower() != ".json":
        allowed = "a name that ends in .json for a file, or has no ending for a folder of client_*.npz"
        raise ConfigError(f"--out must be {allowed}, got '{out}'.", key="out", allowed=allowed, got=out)
    _check_is_new(out)
    named = _named(dataset, data, data_dir, partition, clients, seed)
    options = _options(named, set_)
    division = divide(options, run_seed=0)
    split = split_record(division, _conditions(division, options))
    if ending:
        write_whole(Path(out), to_json(split) + "\n")
    elif out:
        write_npz_split(Path(out), division.rows, num_new=division.num_new, test=division.test)
    use = _run_command(out, named, set_ or []) if out else None
    record = describe_division(division, split) | {"notes": division.notes, "out": out or None, "use": use}
    if json:
        print_json(record)
    else:
        terminal_data.show_partition(record)


@data_app.command()
def plot(
    kind: Annotated[str, typer.Argument(help="bubbles, sizes or corruptions.")],
    out: Annotated[
        str, typer.Option(help="Picture to write: .html, .png or .svg (default: KIND.html, or KIND-2.html ...).")
    ] = "",
    dataset: DatasetName = "",
    data: OwnPath = "",
    data_dir: DataDir = "",
    partition: PartitionText = "",
    clients: Clients = None,
    seed: Seed = None,
    set_: Assignments = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw examples per client and class (bubbles), sizes over 20 divisions, or images under all corruptions."""
    from fedtailor.cli.show import results as terminal

    if kind not in PLOTS:
        known = f"{did_you_mean(kind, PLOTS) or '.'} Known: {', '.join(PLOTS)}."
        raise UsageError(f"unknown plot '{kind}'{known}", key="kind", allowed=list(PLOTS), got=kind)
    _check_is_new(out)
    options = _options(_named(dataset, data, data_dir, partition, clients, seed), set_)
    picture, out = _draw(kind, options), out or _free_name(kind)
    from fedtailor.data.plot import save

    save(picture, Path(out))
    if json:
        print_json({"plot": kind, "out": out})
    else:
        terminal.say(f"The picture is in {out}")


def _named(
    dataset: str, data: str, data_dir: str, partition: str, clients: int | None, seed: int | None
) -> dict[str, Any]:
    """Return the options that were given, by key."""
    if dataset and data:
        raise UsageError("give --dataset or --data, not both.", key="data")
    texts = {"data.dataset": dataset, "data.path": data, "data.dir": data_dir, "data.partition": partition}
    numbers = {"data.clients": clients, "data.seed": seed}
    return {key: text for key, text in texts.items() if text} | {
        key: number for key, number in numbers.items() if number is not None
    }


def _options(named: dict[str, Any], assignments: Sequence[str] | None) -> DataOptions:
    """Build the section from the named options and assignments, which win."""
    from fedtailor.experiment.config import make_config, parse_assignment

    given = [parse_assignment(text) for text in assignments or []]
    for key, _ in given:
        if not key.startswith("data."):
            message = f"only options of data have a meaning here, such as data.fraction, got '{key}'."
            raise ConfigError(message, key=key, allowed="data.NAME", got=key)
    return make_config({}, [*named.items(), *given]).data


def _check_is_new(out: str) -> None:
    """Check that nothing is at the place to write to."""
    if out and os.path.lexists(out):
        message = f"'{out}' exists already and is never overwritten. Choose another name with --out."
        raise ConfigError(message, key="out", allowed="a name that does not exist", got=out)


def _free_name(kind: str) -> str:
    """Return a name for a picture that is not taken."""
    name, number = f"{kind}.html", 2
    while os.path.lexists(name):
        name, number = f"{kind}-{number}.html", number + 1
    return name


def _conditions(division: Division, options: DataOptions) -> tuple[str, ...]:
    """Return what a run does to each client's examples; no image is made for it."""
    from fedtailor.data.build import CLEAN, conditions_of
    from fedtailor.data.corruptions.shift import check_images, parse_shift

    shift = parse_shift(options.shift)
    if shift is None:
        return ()
    check_images(division.dataset)
    return tuple(CLEAN if pair is None else str(pair) for pair in conditions_of(division, shift)[1])


def _run_command(out: str, named: dict[str, Any], assignments: Sequence[str]) -> str:
    """Return the command for a run on the split in ``out``, with the options that it does not decide."""
    import shlex

    from fedtailor.data.options import DIVIDING
    from fedtailor.experiment.config import parse_assignment

    decided = {f"data.{name}" for name in ("split", "new_clients", *DIVIDING)}
    options = {"data.dataset": "--dataset", "data.path": "--data", "data.dir": "--data-dir"}
    words = ["fedtailor", "run", "--split", out]
    for key, value in named.items():
        if key not in decided:
            words += [options[key], value] if key in options else ["--set", f"{key}={value}"]
    for text in assignments:
        words += [] if parse_assignment(text)[0] in decided else ["--set", text]
    return shlex.join(words)


def _draw(kind: str, options: DataOptions) -> Picture:
    """Return a picture of the data as a run with seed 0 has them."""
    import dataclasses

    import numpy as np

    from fedtailor.data import data_folder, plot
    from fedtailor.data.division import divide

    division = divide(options, run_seed=0)
    dataset = division.dataset
    partition = division.options.partition or division.options.split
    shown = "one site per client" if partition == "natural" else partition
    if kind == "corruptions":
        return plot.corruption_sheet(dataset, seed=division.seed, frost_folder=data_folder(options.dir) / "frost")
    if kind == "bubbles":
        counts = plot.count_classes([rows.train for rows in division.rows], dataset.y, dataset.num_classes)
        title = f"{dataset.name}: training examples per client and class, {shown}"
        return plot.bubbles(counts, client_names=division.client_names, class_names=dataset.class_names, title=title)
    fixed = options.split or (partition == "natural" and not options.subset)  # the same for every seed
    if fixed and len(division.rows) <= plot.MAX_BARS:
        bars = [len(rows.train) for rows in division.rows]
        return plot.size_bars(bars, division.client_names, title=f"{dataset.name}: training examples, {shown}")
    seeds = range(division.seed + 1, division.seed + (1 if fixed else _SIMULATED))
    others = (divide(dataclasses.replace(options, seed=seed), run_seed=0, dataset=dataset) for seed in seeds)
    sizes = np.array([len(rows.train) for each in (division, *others) for rows in each.rows])
    over = "1 division" if fixed else f"{_SIMULATED} divisions"
    return plot.sizes({shown: sizes}, title=f"{dataset.name}: training examples of a client, {over}")
