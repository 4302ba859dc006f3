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
        bool,
        typer.Option(
            "--new", metavar="", help="Begin another run; the last one must have finished."
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train across the registered sites.

    After Ctrl-C, the same command continues where it stopped.
    """
    import shlex

    from fedtailor.cli.show.serve import ServeOutput, show_finished
    from fedtailor.deployment.run_server import has_finished, run_server

    messages = ServeOutput()
    try:
        result = run_server(Path(folder), messages, new=new)
    except KeyboardInterrupt:
        # Where the new run has not begun yet, the next command must ask for it again.
        again = " --new" if new and has_finished(Path(folder)) else ""
        message = f"stopped. To continue: fedtailor serve {shlex.quote(folder)}{again}"
        raise Interrupted(message, path=folder) from None
    finally:
        messages.close()

    if json:
        print_json(result)
    else:
        show_finished(folder, result)
