"""Options that commands of all groups have, and the help of a group."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, errors included.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DataDir = Annotated[
    str, typer.Option(help="Folder of the data sets (default: FEDTAILOR_DATA, else ~/.cache/fedtailor).")
]
Help = Annotated[bool, typer.Option("--help", help="Show this message.")]
"""In place of typer's own option, which would import pydantic even for the help of a command."""


def show_help(context: typer.Context, asked: bool) -> None:
    """Print the help of a group of commands, if it was asked for or no command was given."""
    if (asked or context.invoked_subcommand is None) and (text := context.get_help()):
        print(text)  # noqa: T201  # empty where rich has printed it
