"""Following of runs: the page is written again whenever their records grow."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedtailor.report.methods import Method, read_methods
from fedtailor.report.page.build import Page, build_page

EVERY = 3.0
"""Least seconds between two looks at the records."""
_PAUSE = 9.0
"""Times as long as a look took, before the next one: the run needs the processor more."""
REFRESH = 5
"""Seconds after which a page loads itself again while its runs go on."""

Growth = tuple[tuple[str, str, int, int, bool], ...]
"""Of every run: its place, its state, its rounds and events, and whether it has a result."""


def follow(paths: Sequence[str | Path], write: Callable[[Page], None]) -> Page:
    """Build and write a page whenever records grow, until no run goes on or Ctrl-C is pressed.

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
    with _stopped_by_ctrl_c() as stopped:
        while True:
            began = time.monotonic()
            methods = read_methods(paths)
            goes_on = is_running(methods) and not stopped.is_set()
            growth = _growth(methods)
            if growth != before or not goes_on:
                page = build_page(methods, refresh=REFRESH if goes_on else 0)
                write(page)
                before = growth
            if not goes_on:
                return page
            stopped.wait(max(EVERY, _PAUSE * (time.monotonic() - began)))


def is_running(methods: Sequence[Method]) -> bool:
    """Return whether any run goes on."""
    return any(method.state == "running" for method in methods)


def _growth(methods: Sequence[Method]) -> Growth:
    """Return what tells whether there is anything new."""
    return tuple(
        (str(run.path), str(run.status.get("state")), len(run.rounds), len(run.events), run.result is not None)
        for method in methods
        for run in method.runs.values()
    )


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event while the block runs: the page that is being written is finished first."""
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
