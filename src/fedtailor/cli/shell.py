"""Signals, errors and exit codes of the command line.

Data goes to stdout, messages go to stderr. Exit codes: 0 ok, 1 nobody reads the output any
more, 2 usage, 3 configuration, 4 data, 5 run failed, 6 interrupted: a run can be resumed.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from fedtailor.cli.parsing import translate
from fedtailor.core.errors import FedtailorError, RunError


def run_command(command: Callable[[], Any], arguments: list[str]) -> int:
    """Run a command and return its exit code; an error or a signal becomes a sentence.

    Args:
        command: does its work when it is called, and may return an exit code.
        arguments: those of the command, without the program's name.
    """
    code = 0
    error: BaseException | None = None
    with _Signals() as signals:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                code = int(command() or 0)
        except BrokenPipeError:  # our output is no longer read
            _drop_output()
            code = 1
        except SystemExit as end:  # rich and the parser raise it when a pipe is closed
            code = end.code if isinstance(end.code, int) else 1
        except (Exception, KeyboardInterrupt) as raised:
            if "--debug" in arguments:
                traceback.print_exc()

            error = raised

        signals.over = True
        if signals.came and not isinstance(error, Interrupted):
            # A library or the parser may have turned the interruption into another exception or
            # an exit code.
            error = Interrupted("interrupted.")

        if error is None:
            return code

        try:
            return _report(error, as_json="--json" in arguments)
        except BrokenPipeError:  # Ctrl-C in a pipeline ends its reader too
            _drop_output()
            return _translate(error).exit_code


def _drop_output() -> None:
    """Discard the rest of stdout, so that flushing it at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Ctrl-C, a request to terminate, and, where the system has it, the end of the terminal."""


class _Signals:
    """Turns the signals that end a process into ``KeyboardInterrupt``, and remembers that one came.

    It must remember: an exception that is raised while a library is imported may come out as
    another one.
    """

    def __init__(self) -> None:
        self.came = False
        # True once only the report is left to do, which a further signal must not cut off.
        self.over = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        # Handlers cannot be set in another thread.
        if threading.current_thread() is not threading.main_thread():
            return self

        for number in _ENDING:
            # A background job ignores signals on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
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


@contextmanager
def guarded(folder: str, *, resumable: bool = False) -> Iterator[None]:
    """Run something long in the block.

    Args:
        folder: where it writes.
        resumable: whether this is the folder of a run.

    Raises:
        Interrupted: it was interrupted; the message says what it left in the folder, and how to
            resume.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not Path(folder).exists():
            message = "interrupted before anything was written."
        elif resumable:
            message = f"interrupted. To resume: fedtailor resume {shlex.quote(folder)}"
        else:
            message = f"interrupted; finished rounds are in '{folder}'."

        raise Interrupted(message, path=folder) from None


def _report(error: BaseException, *, as_json: bool) -> int:
    """Print an error as one sentence or as JSON; return its exit code."""
    translated = _translate(error)
    if as_json:
        print_json({"error": translated.as_record()})
    else:
        from fedtailor.cli.show.console import say

        label = "" if isinstance(translated, Interrupted) else "error: "
        page = f" See {translated.page} in the documentation." if translated.page else ""
        say(f"{label}{translated.message}{page}", style="bold red")

    return translated.exit_code


def _translate(error: BaseException) -> FedtailorError:
    """Return an error of ours for any error."""
    if isinstance(error, FedtailorError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted.")

    # The parser's errors have this method.
    if hasattr(error, "format_message"):
        return translate(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        if error.filename is None:  # such as that of a full disk under stdout
            return RunError(f"{reason}.")
        return RunError(f"{reason}: '{error.filename}'.", path=error.filename)

    # What only sites and their server need.
    if isinstance(error, ModuleNotFoundError) and error.name in ("cryptography", "flwr"):
        from fedtailor.core.extras import install_command

        hint = install_command("flower")
        return RunError(f"this needs the package {error.name}: {hint}.", key="flower")

    return RunError(f"unexpected {type(error).__name__}: {error} (--debug shows where).")


def print_json(value: Any) -> None:
    """Print a value to stdout as JSON."""
    from fedtailor.core.atomic import to_json

    print(to_json(value), flush=True)  # noqa: T201  # data on stdout


def print_result(record: Any, as_json: bool, show: Callable[..., None], *arguments: Any) -> None:
    """Print what a command has found: as JSON, or as ``show`` prints it.

    ``show`` is given the record, unless there are other arguments.
    """
    if as_json:
        print_json(record)
    else:
        show(*(arguments or [record]))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    from fedtailor.cli.show.console import say

    say(f"warning: {message}", style="yellow")
