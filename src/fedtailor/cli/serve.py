"""The command ``fedtailor serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.deploy import ServerFolder
from fedtailor.cli.options import Debug, Json
from fedtailor.cli.shell import Interrupted, print_json


def serve(
    folder: ServerFolder,
    new: Annotated[
        bool, typer.Option("--new", metavar="", help="Begin another run after one that has finished.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a training across the registered sites. Ctrl-C stops it, and the same command goes on with the next round."""
    import shlex

    from fedtailor.cli.show.serve import ServeMessages, show_finished
    from fedtailor.deployment.run_server import run_server

    messages = ServeMessages()
    try:
        result = run_server(Path(folder), messages, new=new)
    except KeyboardInterrupt:
        message = f"stopped. To go on: fedtailor serve {shlex.quote(folder)}"
        raise Interrupted(message, path=folder) from None
    finally:
        messages.close()
    if json:
        print_json(result)
    else:
        show_finished(folder, result)
