"""How a command line ends: signals, errors and exit codes.

Data goes to stdout, talk to stderr. Exit codes: 0 ok, 2 usage, 3 configuration, 4 data, 5 run failed, 6 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from fedtailor.core.errors import FedtailorError, RunError, UsageError

T = TypeVar("T")


def run_command_line(app: Callable[..., Any], arguments: list[str]) -> int:
    """Run a command line and return its exit code.

    Args:
        app: called with the arguments, as a typer application is.
        arguments: without the program's name.
    """
    with _Signals() as signals:
        code, error = _call(app, arguments)
        signals.over = True
        if signals.came and not isinstance(error, Interrupted):
            # whatever a library or the parser made of it: an exception of its own, or an exit code
            error = Interrupted("interrupted.")
        if error is None:
            return code
        try:
            return _report(error, as_json="--json" in arguments)
        except BrokenPipeError:  # Ctrl-C in a pipeline ends its reader too
            _drop_output()
            return _translate(error).exit_code


def _call(app: Callable[..., Any], arguments: list[str]) -> tuple[int, BaseException | None]:
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


_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Ctrl-C, a request to terminate, and the end of the terminal, where there is one."""


class _Signals:
    """Turns what asks for an end into ``KeyboardInterrupt``, and remembers that one came.

    Remembering matters: what is raised while a library is imported may come out as another exception.
    """

    def __init__(self) -> None:
        self.came = False
        self.over = False  # once only the report is left to do, which a further signal must not cut off
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():  # handlers cannot be set elsewhere
            for number in _ENDING:
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


class Interrupted(RunError):
    """The run was interrupted by Ctrl-C or a request to terminate."""

    exit_code = 6
    kind = "interrupted"


def guarded(folder: str, work: Callable[[], T]) -> T:
    """Run something long; an interruption says what is left of it."""
    try:
        return work()
    except KeyboardInterrupt:
        if Path(folder).exists():
            what = f"interrupted; the rounds that ended are in '{folder}', and a run cannot be resumed yet."
        else:
            what = "interrupted before anything was written."
        raise Interrupted(what, path=folder) from None


def _report(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong, in one sentence or as JSON; return the exit code."""
    known = _translate(error)
    if as_json:
        print_json({"error": known.as_record()})
    else:
        from fedtailor.cli.show.results import say

        say(f"{'' if isinstance(known, Interrupted) else 'error: '}{known.message}", style="bold red")
    return known.exit_code


def _translate(error: BaseException) -> FedtailorError:
    """Return an error of ours for any error."""
    if isinstance(error, FedtailorError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted.")
    if hasattr(error, "format_message"):  # the parser's
        sentence = str(error.format_message()).strip().rstrip(".")
        return UsageError(f"{sentence}{'' if sentence.endswith('?') else '.'} See: fedtailor --help")
    if isinstance(error, OSError):
        return RunError(f"{error.strerror or error}: '{error.filename}'.", path=str(error.filename))
    return RunError(f"unexpected {type(error).__name__}: {error} (--debug shows where).")


def print_json(value: Any) -> None:
    """Print a value to stdout as JSON."""
    from fedtailor.core.atomic import to_json

    print(to_json(value), flush=True)  # noqa: T201  # data on stdout


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    from fedtailor.cli.show.results import say

    say(f"warning: {message}", style="yellow")
