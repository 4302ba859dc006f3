"""The commands of ``fedtailor cache``: decoded data that are kept to save time."""

from __future__ import annotations

from typing import Any

import typer

from fedtailor.cli.options import Debug, Json
from fedtailor.cli.parsing import Command, Help, make_app, show_help
from fedtailor.cli.shell import print_result

cache_app = make_app()


@cache_app.callback(invoke_without_command=True, add_help_option=False)
def _root(context: typer.Context, help_: Help = False) -> None:
    """List or delete decoded data."""
    show_help(context, help_)


@cache_app.command("list", cls=Command)
def list_(json: Json = False, debug: Debug = False) -> None:
    """List the entries of the cache, with their sizes."""
    from fedtailor.cli.show.data import show_cache
    from fedtailor.data import cache_folder
    from fedtailor.data.cache import entries

    records: list[dict[str, Any]] = []
    for entry in entries():
        records.append({"name": entry.name, "path": str(entry.path), "bytes": entry.bytes})

    print_result({"cache_folder": str(cache_folder()), "entries": records}, json, show_cache)


@cache_app.command("clear", cls=Command)
def clear_(json: Json = False, debug: Debug = False) -> None:
    """Delete the entries of the cache. Downloaded files stay."""
    from fedtailor.cli.show.data import show_cleared
    from fedtailor.data import cache_folder
    from fedtailor.data.cache import clear

    removed = clear()
    record = {
        "cache_folder": str(cache_folder()),
        "removed": len(removed),
        "bytes": sum(entry.bytes for entry in removed),
    }

    print_result(record, json, show_cleared)
