"""The command line: one module per command. Nothing heavy is imported before a command runs.

Data goes to stdout, messages go to stderr. Exit codes: 0 ok, 2 usage, 3 configuration, 4 data, 5
run failed, 6 interrupted: a run can be resumed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from fedtailor import __version__
from fedtailor.cli.cache import cache_app
from fedtailor.cli.compare import compare
from fedtailor.cli.data import data_app
from fedtailor.cli.demo import demo
from fedtailor.cli.deploy import deploy_app
from fedtailor.cli.doctor import doctor
from fedtailor.cli.export import export
from fedtailor.cli.list import list_
from fedtailor.cli.onboard import onboard
from fedtailor.cli.parsing import Command, Help, make_app, show_help
from fedtailor.cli.predict import predict
from fedtailor.cli.report import report
from fedtailor.cli.resume import resume
from fedtailor.cli.run import run_
from fedtailor.cli.serve import serve
from fedtailor.cli.shell import command_line
from fedtailor.cli.site import site_app
from fedtailor.cli.sweep import sweep
from fedtailor.cli.what_leaves import what_leaves

app = make_app()
app.command("demo", cls=Command)(demo)
app.command("run", cls=Command)(run_)
app.command("resume", cls=Command)(resume)
app.command("compare", cls=Command)(compare)
app.command("sweep", cls=Command)(sweep)
app.command("report", cls=Command)(report)
app.command("predict", cls=Command)(predict)
app.command("export", cls=Command)(export)
app.command("onboard", cls=Command)(onboard)
app.command("serve", cls=Command)(serve)
app.command("list", cls=Command)(list_)
app.command("what-leaves", cls=Command)(what_leaves)
app.command("doctor", cls=Command)(doctor)
app.add_typer(data_app, name="data")
app.add_typer(cache_app, name="cache")
app.add_typer(deploy_app, name="deploy")
app.add_typer(site_app, name="site")


@app.callback(invoke_without_command=True, add_help_option=False)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Show the version.")
    ] = False,
    help_: Help = False,
) -> None:
    """Personalized federated learning: one model per client, without moving data.

    Start with: fedtailor demo
    """
    if version:
        print(f"fedtailor {__version__}")  # noqa: T201  # what was asked for
        raise typer.Exit
    show_help(context, help_)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        arguments: default: those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    with command_line(given) as ending:
        ending.code = int(app(given, prog_name="fedtailor", standalone_mode=False) or 0)
    return ending.code
