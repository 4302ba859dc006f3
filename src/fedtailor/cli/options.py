"""Options that several commands have, and values that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.core.errors import UsageError

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config

Json = Annotated[
    bool,
    typer.Option("--json", metavar="", help="Print one JSON object to stdout, errors included."),
]
Debug = Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")]
DataDir = Annotated[
    str,
    typer.Option(
        metavar="FOLDER",
        help="Folder of the data sets (default: FEDTAILOR_DATA, else ~/.cache/fedtailor).",
    ),
]
DatasetName = Annotated[
    str,
    typer.Option(
        "--dataset", "-d", metavar="NAME", help="Data set (see: fedtailor list datasets)."
    ),
]
OwnData = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Your own data: a folder, a table, or package.module:function.",
    ),
]
PartitionText = Annotated[
    str,
    typer.Option(
        "--partition",
        metavar="TEXT",
        help='How examples are divided among clients, such as "dirichlet(alpha=0.5)".',
    ),
]
Out = Annotated[
    str, typer.Option(metavar="FOLDER", help="Folder to write (default: a new one under runs/).")
]


def whole_number(option: str, *, at_least: int | None = None) -> Callable[[str], int]:
    """Return a function that reads the value of an option that takes a whole number.

    Args:
        option: as the user writes it, for the message.
        at_least: smallest allowed value.
    """
    allowed = "a whole number" if at_least is None else f"a whole number, {at_least} or more"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None

        if number is None or (at_least is not None and number < at_least):
            raise UsageError(
                f"{option} must be {allowed}, got '{text}'.", key=option, allowed=allowed, got=text
            )

        return number

    return read


Split = Annotated[
    str,
    typer.Option(
        metavar="PATH", help="Split of an earlier run, or one that fedtailor data partition wrote."
    ),
]
ModelName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Model (see: fedtailor list models), or package.module:function."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(parser=whole_number("--rounds"), metavar="NUMBER", help="Number of rounds."),
]
ParticipationText = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Clients per round: all, 0.3, fixed(10) or bernoulli(0.3)."),
]
Seeds = Annotated[
    str | None,
    typer.Option(metavar="NUMBERS", help="Several seeds, such as 0,1,2: one run for each."),
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Engine that runs the clients (see: fedtailor list engines)."
    ),
]
DeviceName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Where tensors live: cpu (default), auto; cuda and cuda:1 are untried."
    ),
]
RayAddress = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS", help="Ray cluster of --engine ray: auto or HOST:PORT (default: its own)."
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any option, such as training.lr=0.05. May be repeated."
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME",
        help="Also log the run with tensorboard, mlflow or wandb (offline), in its folder. May be repeated.",
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(parser=whole_number("--clients"), metavar="NUMBER", help="Number of clients."),
]


def read_assignments(texts: Sequence[str] | None) -> list[tuple[str, Any]]:
    """Read the values of ``--set``: pairs of key and value.

    Raises:
        ConfigError: a text is not ``section.key=value``.
        UsageError: a key is given twice.
    """
    from fedtailor.experiment.config import parse_assignment

    pairs = [parse_assignment(text) for text in texts or []]
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise UsageError(f"--set gives '{key}' twice; give it once.", key=key)

        seen.add(key)

    return pairs


def read_config(path: str, named: Mapping[str, Any], assignments: Sequence[str] | None) -> Config:
    """Build a configuration from a file, named options and assignments; later ones win.

    Args:
        path: of the file; empty: none.
        named: values by key, as the user wrote them; None and empty texts are left out.
        assignments: the values of ``--set``.

    Raises:
        ConfigError: a value is wrong, or the file is.
        UsageError: options contradict each other.
    """
    from fedtailor.experiment.config import load_config, make_config

    overrides = read_overrides(named, assignments)
    settings = load_config(path, overrides) if path else make_config({}, overrides)
    refuse_missing_data(settings)
    return settings


def read_overrides(
    named: Mapping[str, Any], assignments: Sequence[str] | None
) -> list[tuple[str, Any]]:
    """Return named options and assignments as values by key; later ones win.

    Args:
        named: values by key, as the user wrote them; None and empty texts are left out.
        assignments: the values of ``--set``.

    Raises:
        ConfigError: an assignment is not ``section.key=value``.
        UsageError: options contradict each other.
    """
    from fedtailor.experiment.config import parse_value

    refuse_two_data_sets(named["data.dataset"], named["data.path"])
    overrides: list[tuple[str, Any]] = []
    for key, value in named.items():
        if key == "seeds" and value is not None:
            overrides.append((key, read_seeds(value)))
        elif key == "federation.participation" and value:
            overrides.append((key, parse_value(value)))
        elif value is not None and value != "":
            overrides.append((key, value))

    overrides += read_assignments(assignments)
    if {"seed", "seeds"} <= {key for key, _ in overrides}:
        raise UsageError("give --seed or --seeds, not both.", key="seeds")

    return overrides


def refuse_missing_data(settings: Config) -> None:
    """Check that own data is there.

    Raises:
        DataError: it is not.
    """
    if settings.data.path:
        from fedtailor.data.own.layout import refuse_missing

        refuse_missing(settings.data.path)


def read_seeds(text: str) -> list[int]:
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
        raise UsageError(
            f"--seeds must be {allowed}, got '{text}'.", key="--seeds", allowed=allowed, got=text
        )

    return seeds


def refuse_two_data_sets(dataset: str, data: str) -> None:
    """Check that not both a known data set and own data are named.

    Raises:
        UsageError: both are.
    """
    if dataset and data:
        raise UsageError("give --dataset or --data, not both.", key="data")
