"""Following of runs: the page is written again whenever their records grow."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedtailor.core.reading import read_object
from fedtailor.experiment.reader import COMPARISON_FILE, holds_run, is_running, read_result
from fedtailor.report.methods import Method, read_methods
from fedtailor.report.page.build import Page, build_page

EVERY = 3.0
"""Least seconds between two looks at the records."""
_PAUSE = 9.0
"""Times as long as a look took, before the next one: the run needs the processor more."""
REFRESH = 5
"""Seconds after which a page loads itself again while its runs go on."""

_LOOKS_BETWEEN_RUNS = 5
"""Looks without a running run after which a comparison that is not complete counts as ended."""

Growth = tuple[tuple[str, str, int, int, bool], ...]
"""Of every run: its place, its state, its rounds and events, and whether it has a result."""


def follow(paths: Sequence[str | Path], write: Callable[[Page], None]) -> Page:
    """Build and write a page whenever records grow, until no run goes on or Ctrl-C is pressed.

    Between two runs of a comparison none goes on for a moment. So there the end is awaited for some
    looks.

    Args:
        paths: folders of runs or comparisons.
        write: writes a page.

    Returns:
        The last page, which does not load itself again.

    Raises:
        DataError: a folder is no run, or a file is damaged.
        RunError: the page cannot be written.
    """
    before: Growth = ()
    patience = 0
    with _stopped_by_ctrl_c() as stopped:
        while True:
            began = time.monotonic()
            methods = read_methods(paths)
            if any(is_running(method.path) for method in methods):
                patience = _LOOKS_BETWEEN_RUNS if _may_begin_another(paths) else 0
                goes_on = True
            else:
                goes_on = patience > 0 and not _is_complete(paths, methods)
                patience -= 1

            goes_on = goes_on and not stopped.is_set()
            growth = _growth(methods)
            if growth != before or not goes_on:
                page = build_page(methods, refresh=REFRESH if goes_on else 0)
                write(page)
                before = growth

            if not goes_on:
                return page

            stopped.wait(max(EVERY, _PAUSE * (time.monotonic() - began)))


def _may_begin_another(paths: Sequence[str | Path]) -> bool:
    """Return whether a folder is that of several runs."""
    return any(not holds_run(Path(path)) for path in paths)


def _is_complete(paths: Sequence[str | Path], methods: Sequence[Method]) -> bool:
    """Return whether every run that belongs to the folders has finished."""
    lists = [
        read_object(Path(path) / COMPARISON_FILE) for path in paths if not holds_run(Path(path))
    ]
    single = sum(holds_run(Path(path)) for path in paths)
    expected = single + sum(len(found.get("runs", ())) for found in lists)
    return len(methods) == expected and all(
        read_result(method.path) is not None for method in methods
    )


def _growth(methods: Sequence[Method]) -> Growth:
    """Return what tells whether there is anything new."""
    return tuple(
        (
            str(run.path),
            str(run.status.get("state")),
            len(run.rounds),
            len(run.events),
            run.result is not None,
        )
        for method in methods
        for run in method.runs.values()
    )


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event while the block runs: the page that is being written is finished
    first.
    """
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield stopped
        return

    handler = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, handler)
