"""Options that several commands have, and values that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from fedtailor.core.errors import UsageError

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object to stdout, errors included.")]
Debug = Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")]
DataDir = Annotated[
    str,
    typer.Option(metavar="FOLDER", help="Folder of the data sets (default: FEDTAILOR_DATA, else ~/.cache/fedtailor)."),
]
DatasetName = Annotated[
    str, typer.Option("--dataset", "-d", metavar="NAME", help="Data set (see: fedtailor list datasets).")
]
OwnData = Annotated[
    str,
    typer.Option("--data", metavar="PATH", help="Your own data: a folder, a table, or package.module:function."),
]
PartitionText = Annotated[
    str,
    typer.Option(
        "--partition", metavar="TEXT", help='How examples are divided among clients, such as "dirichlet(alpha=0.5)".'
    ),
]
Out = Annotated[str, typer.Option(metavar="FOLDER", help="Folder to write (default: a new one under runs/).")]


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
            raise UsageError(f"{option} must be {allowed}, got '{text}'.", key=option, allowed=allowed, got=text)
        return number

    return read


Clients = Annotated[
    int | None, typer.Option(parser=whole_number("--clients"), metavar="NUMBER", help="Number of clients.")
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


def refuse_two_data_sets(dataset: str, data: str) -> None:
    """Check that not both a known data set and own data are named.

    Raises:
        UsageError: both are.
    """
    if dataset and data:
        raise UsageError("give --dataset or --data, not both.", key="data")
