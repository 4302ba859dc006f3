"""The command line: one module per command. A command's module is imported when it runs.

Data goes to stdout, messages go to stderr. Exit codes: 0 ok, 1 nobody reads the output any
more, 2 usage, 3 configuration, 4 data, 5 run failed, 6 interrupted: a run can be resumed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, ClassVar

import typer

from fedtailor import __version__
from fedtailor.cli.parsing import Help, LazyGroup, make_app, show_help
from fedtailor.cli.shell import run_command


class _Commands(LazyGroup):
    """All commands of fedtailor."""

    commands_by_name: ClassVar = {
        "demo": "demo:demo",
        "new": "new:new",
        "run": "run:run_",
        "resume": "resume:resume",
        "compare": "compare:compare",
        "sweep": "sweep:sweep",
        "leaderboard": "leaderboard:leaderboard_app",
        "report": "report:report",
        "predict": "predict:predict",
        "evaluate": "evaluate:evaluate",
        "watch": "watch:watch",
        "adapt": "adapt:adapt",
        "export": "export:export",
        "onboard": "onboard:onboard",
        "hand-over": "hand_over:hand_over",
        "serve": "deploy:serve",
        "list": "list:list_",
        "what-leaves": "what_leaves:what_leaves",
        "audit": "audit:audit_app",
        "privacy": "privacy:privacy_app",
        "doctor": "doctor:doctor",
        "data": "data:data_app",
        "deploy": "deploy:deploy_app",
        "site": "site:site_app",
    }


_FIRST_STEPS = """\
Personalized federated learning: one model per client, without moving data.

  fedtailor demo                compare four ways to train for 20 clients, in a minute
  fedtailor new my_study        make a small project: data, configuration, a method of your own
  fedtailor data check FOLDER   see whether your own pictures or tables can be used

All commands: fedtailor --help"""

app = make_app(_Commands)


@app.callback(invoke_without_command=True, add_help_option=False)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Show the version.")
    ] = False,
    help_: Help = False,
) -> None:
    """Personalized federated learning: one model per client, without moving data."""
    if version:
        print(f"fedtailor {__version__}")  # noqa: T201
        raise typer.Exit
    if not help_ and context.invoked_subcommand is None:
        print(_FIRST_STEPS)  # noqa: T201
        return

    show_help(context, help_)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        arguments: default: those of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "_FEDTAILOR_COMPLETE" in os.environ:
        # A shell asks for completions. Typer's options for that would slow every other command.
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()

    return run_command(lambda: app(words, prog_name="fedtailor", standalone_mode=False), words)
