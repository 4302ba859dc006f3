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
from fedtailor.cli.parsing import Help, LazyCommand, LazyGroup, make_app, show_help
from fedtailor.cli.shell import command_line


class _Commands(LazyGroup):
    """All commands of fedtailor."""

    commands_by_name: ClassVar = {
        "demo": LazyCommand(
            "demo:demo", "Compare four ways to train for 20 clients with little data each."
        ),
        "new": LazyCommand(
            "new:new",
            "Make a small project that runs at once.",
        ),
        "run": LazyCommand(
            "run:run_",
            "Run an experiment. Its folder holds the scores and a model for every client.",
        ),
        "resume": LazyCommand(
            "resume:resume", "Resume an interrupted or killed run, comparison, sweep or audit."
        ),
        "compare": LazyCommand(
            "compare:compare", "Compare methods: train those that are missing, or only read runs."
        ),
        "sweep": LazyCommand(
            "sweep:sweep", "Try values of options, and choose the best on validation examples."
        ),
        "leaderboard": LazyCommand(
            "leaderboard:leaderboard_app",
            "Compare all methods on the same federations, with equal numbers of trials.",
        ),
        "report": LazyCommand(
            "report:report",
            "Write a report of runs as one HTML file that needs no network.",
        ),
        "predict": LazyCommand(
            "predict:predict",
            "Predict with a client's personal model: class and probabilities, as CSV.",
        ),
        "evaluate": LazyCommand(
            "evaluate:evaluate",
            "Score a client's personal model on new labelled data, and compare with training.",
        ),
        "watch": LazyCommand(
            "watch:watch",
            "Compare recent inputs, without labels, with a client's held-out examples: alarms.",
        ),
        "adapt": LazyCommand(
            "adapt:adapt",
            "Adapt the model of a client to recent inputs in closed form, as a run folder of its "
            "own.",
        ),
        "export": LazyCommand("export:export", "Write personal models for other programs."),
        "onboard": LazyCommand(
            "onboard:onboard",
            "Make the model of a site that never took part, from a run and the site's own data.",
        ),
        "serve": LazyCommand("deploy:serve", "Train across the registered sites."),
        "list": LazyCommand(
            "list:list_", "List the algorithms, data sets, models, partitions, engines or metrics."
        ),
        "what-leaves": LazyCommand(
            "what_leaves:what_leaves",
            "List every value that leaves a site: what it is, its bytes, and who can see it.",
        ),
        "audit": LazyCommand("audit:audit_app", "Measure what an attacker can tell from a run."),
        "privacy": LazyCommand(
            "privacy:privacy_app", "Say which noise a budget needs, before a run is made."
        ),
        "doctor": LazyCommand(
            "doctor:doctor",
            "Show versions, processor, engine, devices, folders and the data sets on this machine.",
        ),
        "data": LazyCommand(
            "data:data_app",
            "Data sets: list and fetch them, check your own, divide them among clients, draw them.",
        ),
        "deploy": LazyCommand("deploy:deploy_app", "Train across real sites: prepare the server."),
        "site": LazyCommand(
            "site:site_app",
            "Take part in training across sites; data and personal models stay here.",
        ),
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

    with command_line(words) as ending:
        ending.code = int(app(words, prog_name="fedtailor", standalone_mode=False) or 0)
    return ending.code
