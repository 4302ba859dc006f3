"""The command line: parse, call one function, print. Nothing heavy is imported before a command runs.

Data goes to stdout, talk to stderr. Exit codes: 0 ok, 2 usage, 3 configuration, 4 data, 5 run failed, 6 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor import __version__
from fedtailor.core.errors import FedtailorError, RunError, UsageError

if TYPE_CHECKING:
    from fedtailor.config import Config

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, errors included.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DataDir = Annotated[
    str, typer.Option(help="Folder of the data sets (default: FEDTAILOR_DATA, else ~/.cache/fedtailor).")
]
Out = Annotated[str, typer.Option(help="Folder to write, new or empty (default: under runs/).")]


@app.callback(invoke_without_command=True, add_help_option=False)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    # typer's own option would import pydantic even for the help of a command
    help_: Annotated[bool, typer.Option("--help", help="Show this message.")] = False,
) -> None:
    """Personalized federated learning: one model per client, without moving data.

    Start with: fedtailor demo
    """
    if version:
        print(f"fedtailor {__version__}")  # noqa: T201  # what was asked for
    elif (help_ or context.invoked_subcommand is None) and (text := context.get_help()):
        print(text)  # noqa: T201  # empty where rich has printed it
    if version or help_:
        raise typer.Exit


@app.command()
def demo(
    out: Out = "",
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare four ways to train for 20 clients with little data each: under a minute, no download."""
    from fedtailor import terminal
    from fedtailor.demo import INTRODUCTION, default_demo_folder, run_demo

    folder = out or str(default_demo_folder())
    terminal.say(INTRODUCTION)
    start = time.perf_counter()
    results = _guarded(folder, lambda: run_demo(folder, seed=seed, progress=terminal.make_progress()))
    if json:
        _print_json({"runs": results})
    else:
        terminal.show_demo(results, time.perf_counter() - start)


@app.command()
def run(
    config: Annotated[str, typer.Argument(metavar="[CONFIG.toml]", help="Experiment; options override it.")] = "",
    algorithm: Annotated[
        str,
        typer.Option("--algorithm", "-a", help="Algorithm (see: fedtailor list algorithms), or package.module:Class."),
    ] = "",
    dataset: Annotated[str, typer.Option("--dataset", "-d", help="Data set (see: fedtailor list datasets).")] = "",
    data_dir: DataDir = "",
    partition: Annotated[str, typer.Option(help='Who has which examples, such as "dirichlet(alpha=0.5)".')] = "",
    model: Annotated[str, typer.Option(help="Model (see: fedtailor list models), or package.module:function.")] = "",
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    participation: Annotated[str, typer.Option(help="Clients per round: 0.3, all, fixed(10) or bernoulli(0.3).")] = "",
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, such as 0,1,2: one run each.")] = None,
    engine: Annotated[str, typer.Option(help="How clients are run (see: fedtailor list engines).")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any option, such as training.lr=0.05.")
    ] = None,
    out: Out = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment and write its folder: scores and a model for every client."""
    from fedtailor import experiment, terminal

    named: dict[str, Any] = {
        "algorithm.name": algorithm,
        "data.dataset": dataset,
        "data.dir": data_dir,
        "data.partition": partition,
        "model.name": model,
        "data.clients": clients,
        "federation.rounds": rounds,
        "federation.participation": participation,
        "seed": seed,
        "seeds": seeds,
        "engine.name": engine,
    }
    settings = _make_config(config, named, set_ or [])
    folder = out or str(experiment.default_folder(settings))
    result = _guarded(folder, lambda: experiment.run(settings, out=folder, progress=terminal.make_progress()))
    if json:
        _print_json(result)
    else:
        terminal.show_result(result)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="algorithms, datasets, models, partitions or engines.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List what there is to choose from."""
    from fedtailor import terminal
    from fedtailor.catalog import listing

    entries = listing(kind)
    if json:
        _print_json({kind: entries})
    else:
        terminal.show_list(kind, entries)


@app.command()
def doctor(data_dir: DataDir = "", json: Json = False, debug: Debug = False) -> None:
    """Say what this machine has: versions, cores, engine, and the data sets that can be read."""
    from fedtailor import terminal
    from fedtailor.catalog import examine

    report = examine(data_dir)
    if json:
        _print_json(report)
    else:
        terminal.show_report(report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        arguments: default: those of the process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    with _Signals() as signals:
        code, error = _call(arguments)
        signals.over = True
        if signals.came and not isinstance(error, _Interrupted):
            # whatever a library or the parser made of it: an exception of its own, or an exit code
            error = _Interrupted("interrupted.")
        if error is None:
            return code
        try:
            return _report(error, as_json="--json" in arguments)
        except BrokenPipeError:  # Ctrl-C in a pipeline ends its reader too
            _drop_output()
            return _translate(error).exit_code


def _call(arguments: list[str]) -> tuple[int, BaseException | None]:
    """Run a command line; return its exit code, or what it raised."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(app(arguments, prog_name="fedtailor", standalone_mode=False) or 0), None
    except BrokenPipeError:  # whoever read our output has gone: nobody to talk to
        _drop_output()
        return 1, None
    except SystemExit as end:  # rich and the parser meet a closed pipe with it
        return end.code if isinstance(end.code, int) else 1, None
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return 1, error


def _drop_output() -> None:
    """Send the rest of stdout nowhere, so that flushing it at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Signals:
    """Turns Ctrl-C and a request to terminate into ``KeyboardInterrupt``, and remembers that one came.

    Remembering matters: what is raised while a library is imported may come out as another exception.
    """

    def __init__(self) -> None:
        self.came = False
        self.over = False  # once only the report is left to do, which a further signal must not cut off
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():  # handlers cannot be set elsewhere
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored on purpose, as in a background job
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if not self.over:
            raise KeyboardInterrupt


class _Interrupted(RunError):
    """The run was interrupted by Ctrl-C or a request to terminate."""

    exit_code = 6
    kind = "interrupted"


def _make_config(path: str, named: dict[str, Any], assignments: Sequence[str]) -> Config:
    """Build the configuration from a file, the named options, and assignments, which win in this order."""
    from fedtailor.config import load_config, make_config, parse_assignment, parse_value

    if named["seed"] is not None and named["seeds"] is not None:
        raise UsageError("give --seed or --seeds, not both.", key="seeds")
    overrides = [(key, value) for key, value in named.items() if value is not None and (value != "" or key == "seeds")]
    for position, (key, value) in enumerate(overrides):
        if key == "federation.participation":
            overrides[position] = (key, parse_value(value))
        elif key == "seeds":
            overrides[position] = (key, parse_value(f"[{value}]"))
    overrides += [parse_assignment(text) for text in assignments]
    return load_config(path, overrides) if path else make_config({}, overrides)


def _guarded(folder: str, work: Any) -> Any:
    """Run something long; an interruption says what is left of it."""
    try:
        return work()
    except KeyboardInterrupt:
        if Path(folder).exists():
            what = f"interrupted; the rounds that ended are in '{folder}', and a run cannot be resumed yet."
        else:
            what = "interrupted before anything was written."
        raise _Interrupted(what, path=folder) from None


def _report(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong, in one sentence or as JSON; return the exit code."""
    known = _translate(error)
    if as_json:
        _print_json({"error": known.as_record()})
    else:
        from fedtailor.terminal import say

        say(f"{'' if isinstance(known, _Interrupted) else 'error: '}{known.message}", style="bold red")
    return known.exit_code


def _translate(error: BaseException) -> FedtailorError:
    """Return an error of ours for any error."""
    if isinstance(error, FedtailorError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return _Interrupted("interrupted.")
    if hasattr(error, "format_message"):  # the parser's
        sentence = str(error.format_message()).strip().rstrip(".")
        return UsageError(f"{sentence}{'' if sentence.endswith('?') else '.'} See: fedtailor --help")
    if isinstance(error, OSError):
        return RunError(f"{error.strerror or error}: '{error.filename}'.", path=str(error.filename))
    return RunError(f"unexpected {type(error).__name__}: {error} (--debug shows where).")


def _print_json(value: Any) -> None:
    from fedtailor.atomic import to_json

    print(to_json(value), flush=True)  # noqa: T201  # data on stdout


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    from fedtailor.terminal import say

    say(f"warning: {message}", style="yellow")
