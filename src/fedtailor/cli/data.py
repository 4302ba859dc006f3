"""The commands ``fedtailor data ...``: list, fetch, check, divide and draw data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Json,
    Named,
    NewFolder,
    argument,
    number_option,
    read_assignments,
    refuse_two_data_sets,
    switch,
    text_option,
    with_config_flags,
)
from fedtailor.cli.parsing import Command, make_group
from fedtailor.cli.predict import check_out
from fedtailor.cli.shell import Interrupted, print_json, print_result
from fedtailor.core.errors import DataError, find_name, match_name
from fedtailor.core.options import wrong_value

if TYPE_CHECKING:
    from fedtailor.data.division import Division
    from fedtailor.data.options import DataOptions
    from fedtailor.report.parts import Figure

data_app = make_group(
    "Data sets: list and fetch them, check your own, divide them among clients, draw them."
)

_DIVISION_KEYS = ("data.dataset", "data.path", "data.dir", "data.partition", "data.clients")
"""What the options of ``partition`` and ``plot`` set."""

Seed = Annotated[
    int | None,
    number_option(
        "--seed", "Random seed of partition, split and corruptions (data.seed; default 42)."
    ),
]
Assignments = Annotated[
    list[str] | None,
    text_option(
        "KEY=VALUE", "Any option of data, such as data.fraction=0.5. May be repeated.", "--set"
    ),
]


@data_app.command("list", cls=Command)
@with_config_flags("data.dir")
def list_(
    name: Annotated[
        str, argument("NAME", "Show everything about this data set, with citation.")
    ] = "",
    named: Named = NOTHING_NAMED,
    json: Json = False,
) -> None:
    """List the known data sets.

    Each row says whether it is on this machine, its size and license, and how to get it.
    """
    from fedtailor.cli.show.data import show_dataset, show_inventory
    from fedtailor.data import data_folder
    from fedtailor.data.inventory import describe_dataset, inventory

    folder = data_folder(named["data.dir"] or "")
    if folder.exists() and not folder.is_dir():
        message = f"'{folder}' is a file; name a folder with --data-dir or FEDTAILOR_DATA."
        raise DataError(message, key="data.dir", path=folder, allowed="a folder", got="a file")

    records = [describe_dataset(name, folder)] if name else inventory(folder)
    if json:
        print_json({"data_folder": str(folder), "datasets": records})
    elif name:
        show_dataset(str(folder), records[0])
    else:
        show_inventory(str(folder), records)


@data_app.command("fetch", cls=Command)
@with_config_flags("data.dir")
def fetch_(
    name: Annotated[str, argument("NAME", "Data set (see: fedtailor data list).")],
    named: Named = NOTHING_NAMED,
    json: Json = False,
) -> None:
    """Download a known data set from its publisher. An interrupted download is resumed."""
    from fedtailor.cli.show.data import FetchLine, show_fetched
    from fedtailor.data import data_folder
    from fedtailor.data.datasets import DATASETS
    from fedtailor.data.fetch import fetch

    folder = data_folder(named["data.dir"] or "")

    try:
        with FetchLine() as line:
            paths = fetch(name, folder, progress=line)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; run the same command again to resume the download.", path=folder
        ) from None

    files: list[dict[str, Any]] = []
    for path in paths:
        files.append({"path": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size})

    record = {
        "dataset": name,
        "folder": str(folder),
        "files": files,
        "elsewhere": DATASETS[find_name("dataset", name, DATASETS)].elsewhere or None,
    }

    print_result(record, json, show_fetched)


@data_app.command("check", cls=Command)
def check_(
    path: Annotated[
        str, argument("PATH", "Your own data: a folder, a table, or package.module:function.")
    ],
    set_: Assignments = None,
    json: Json = False,
) -> None:
    """Read your own data as a run would, and list every problem.

    The exit code is 4 if the data cannot be used.
    """
    from fedtailor.cli.show.data import show_check
    from fedtailor.cli.show.progress import CountLine
    from fedtailor.data.describe import describe_findings
    from fedtailor.data.own.read import read_own

    options = _options({"data.path": path}, read_assignments(set_))
    with CountLine() as preparation:
        own = read_own(path, options, preparation)

    record = describe_findings(path, own)
    print_result(record, json, show_check)

    if not record["usable"]:
        raise typer.Exit(DataError.exit_code)


@data_app.command("embed", cls=Command)
@with_config_flags("data.dir")
def embed_(
    data: Annotated[
        str,
        argument(
            "DATA", "Your own data (a folder or package.module:function), or a known data set."
        ),
    ],
    encoder: Annotated[
        str, text_option("TARGET", "Frozen encoder: onnx:FILE, or package.module:function.")
    ],
    out: NewFolder,
    float16: Annotated[
        bool, switch("--float16", "Write features in half the bytes, rounded.")
    ] = False,
    named: Named = NOTHING_NAMED,
    set_: Assignments = None,
    json: Json = False,
) -> None:
    """Write the features of all examples, for fedtailor run --data, which needs no encoder then.

    An interrupted command continues where it was.
    """
    from fedtailor.cli.show.data import show_embedded
    from fedtailor.cli.show.progress import CountLine
    from fedtailor.data.datasets import DATASETS
    from fedtailor.data.division import load_for
    from fedtailor.data.embedded_folder import write_embedded
    from fedtailor.data.options import DIVIDING, DataOptions

    check_out(out)
    is_known = match_name(data, DATASETS) is not None and not os.path.exists(data)
    values = {"data.dataset" if is_known else "data.path": data, "data.encoder": encoder}
    values |= {key: value for key, value in named.items() if value}
    options = _options(values, read_assignments(set_))
    for name in (*DIVIDING, "new_clients", "shift", "split", "normalize"):
        if getattr(options, name) != getattr(DataOptions, name):
            allowed = "left out: all examples are embedded as they are, and a run divides them"
            raise wrong_value(f"data.{name}", allowed, getattr(options, name))

    try:
        with CountLine() as preparation:
            written = write_embedded(
                load_for(options, preparation),
                options,
                Path(out),
                precision="float16" if float16 else "float32",
                report=preparation,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted; run the same command again to continue.") from None

    record = {
        "out": out,
        "encoder": written.encoder.target,
        "digest": written.encoder.digest,
        "license": written.encoder.license,
        "dimension": written.dimension,
        "sites": written.examples,
        "notes": written.notes,
    }
    print_result(record, json, show_embedded)


@data_app.command(cls=Command)
@with_config_flags(*_DIVISION_KEYS)
def partition(
    out: Annotated[
        str, text_option("PATH", "File to write, NAME.json, for fedtailor run --split.")
    ] = "",
    named: Named = NOTHING_NAMED,
    seed: Seed = None,
    set_: Assignments = None,
    json: Json = False,
) -> None:
    """Divide data among clients, and show what each of them has; --out writes the split."""
    from fedtailor.cli.show.data import show_partition
    from fedtailor.cli.show.progress import CountLine
    from fedtailor.core.atomic import write_json
    from fedtailor.data.build import split_record
    from fedtailor.data.describe import describe_division
    from fedtailor.data.division import divide

    # What can be refused is refused before anything is read.
    if out and Path(out).suffix.lower() != ".json":
        raise wrong_value("--out", "a name that ends in .json", out)

    check_out(out)
    options = _options(_values(named, seed), read_assignments(set_))
    with CountLine() as preparation:
        division = divide(options, run_seed=0, report=preparation)

    # The record also says under which corruption each client's images are.
    split = split_record(division, _conditions(division, options))
    if out:
        write_json(Path(out), split)

    record = describe_division(division, split)
    record["notes"] = division.notes
    record["out"] = out or None
    record["use"] = _command_with_split(out, _values(named, seed), set_) if out else None
    print_result(record, json, show_partition)


@data_app.command(cls=Command)
@with_config_flags(*_DIVISION_KEYS)
def plot(
    out: Annotated[
        str,
        text_option(
            "FILE", "Picture to write: .html, .pdf, .png or .svg (default: partition.html)."
        ),
    ] = "partition.html",
    named: Named = NOTHING_NAMED,
    seed: Seed = None,
    set_: Assignments = None,
    json: Json = False,
) -> None:
    """Draw how data is divided: bubbles for the training examples of each client and class."""
    from fedtailor.cli.show.console import say

    check_out(out)
    picture = _draw(_options(_values(named, seed), read_assignments(set_)))

    from fedtailor.report.page.files import write_figure

    write_figure(picture, Path(out))
    print_result({"out": out}, json, say, f"The picture is in {out}")


def _values(named: Named, seed: int | None) -> dict[str, Any]:
    """Return the values that the user gave by options, by key."""
    refuse_two_data_sets(named)
    values = {**named, "data.seed": seed}
    return {key: value for key, value in values.items() if value not in (None, "")}


def _options(values: dict[str, Any], assignments: Sequence[tuple[str, Any]]) -> DataOptions:
    """Build the section from the values of options and the assignments, which win."""
    from fedtailor.experiment.config import make_config

    for key, _ in assignments:
        if not key.startswith("data."):
            raise wrong_value("--set", "an option of data here, such as data.fraction", key)

    options = make_config({}, [*values.items(), *assignments]).data
    if options.runs_all_folds:
        raise wrong_value("data.fold", f"from 1 to {options.folds} here: one of the folds", 0)

    return options


def _command_with_split(split: str, values: dict[str, Any], set_: Sequence[str] | None) -> str:
    """Return the command that runs on the same data with a split file.

    Args:
        split: the file.
        values: that the user gave by options, by key.
        set_: the assignments, as the user wrote them.
    """
    from fedtailor.data.options import DIVIDING
    from fedtailor.experiment.config import config_flags

    # The file takes the place of the options that divide, so a run refuses them beside it.
    replaced = {f"data.{name}" for name in ("split", *DIVIDING)}
    flags = config_flags()
    words = ["fedtailor", "run"]

    for key, value in values.items():
        if key in replaced:
            continue
        words += [flags[key].option, str(value)] if key in flags else ["--set", f"{key}={value}"]

    for text, (key, value) in zip(set_ or [], read_assignments(set_), strict=True):
        # The file has an order, in which new clients are the last ones.
        if key == "data.new_clients" and not isinstance(value, int):
            text = f"{key}={len(value)}"
        if key not in replaced:
            words += ["--set", text]

    return shlex.join([*words, "--split", split])


def _conditions(division: Division, options: DataOptions) -> tuple[str, ...]:
    """Return the condition of each client's examples in a run. No image is computed."""
    if not options.shift.strip():
        return ()

    from fedtailor.data.build import CLEAN, conditions_of
    from fedtailor.data.corruptions.shift import check_images, parse_shift

    check_images(division.dataset)
    _, pairs = conditions_of(division, parse_shift(options.shift))
    return tuple(CLEAN if pair is None else str(pair) for pair in pairs)


def _draw(options: DataOptions) -> Figure:
    """Return a picture of the data as a run with seed 0 has it."""
    from fedtailor.cli.show.progress import CountLine
    from fedtailor.data.division import divide
    from fedtailor.report import data_plots

    with CountLine() as preparation:
        division = divide(options, run_seed=0, report=preparation)

    dataset = division.dataset
    partition = division.options.partition or division.options.split
    is_natural = match_name(partition, ["natural"]) is not None
    label = "one site per client" if is_natural else partition

    counts = data_plots.count_classes(
        [client.train for client in division.positions], dataset.y, dataset.num_classes
    )
    return data_plots.bubbles(
        counts,
        client_names=division.client_names,
        class_names=dataset.class_names,
        title=f"{dataset.name}: training examples per client and class, {label}",
    )
