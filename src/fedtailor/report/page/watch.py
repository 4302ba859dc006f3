"""Following of runs: the page is written again whenever their records grow."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedtailor.experiment.reader import holds_run, is_running, list_runs, read_result
from fedtailor.report.methods import Method, read_methods
from fedtailor.report.page.build import Page, build_page

EVERY = 3.0
"""Least seconds between two looks at the records."""
_PAUSE = 9.0
"""Times as long as a look took, before the next one: the run needs the processor more."""
REFRESH = 5
"""Seconds after which a page loads itself again while its runs continue."""
_LOOKS_BETWEEN_RUNS = 5
"""Looks without a running run after which a comparison that is not complete counts as ended."""

Growth = tuple[tuple[str, str, int, int, bool], ...]
"""Of every run: its place, its state, its rounds and events, and whether it has a result."""


def follow(paths: Sequence[str | Path], write: Callable[[Page], None]) -> Page:
    """Build and write a page whenever records grow, until no run continues or Ctrl-C is pressed.

    Between two runs of a comparison there is a moment without one, so its end is awaited for some
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
                patience = _LOOKS_BETWEEN_RUNS
                continues = True
            else:
                patience -= 1
                continues = patience >= 0 and not _is_complete(paths, methods)

            continues = continues and not stopped.is_set()
            # The last page is written in any case: the one before it loads itself again.
            growth = _growth(methods)
            if growth != before or not continues:
                page = build_page(methods, refresh=REFRESH if continues else 0)
                write(page)
                before = growth

            if not continues:
                return page

            stopped.wait(max(EVERY, _PAUSE * (time.monotonic() - began)))


def _is_complete(paths: Sequence[str | Path], methods: Sequence[Method]) -> bool:
    """Return whether every run that belongs to the folders has finished."""
    expected = 0
    for path in map(Path, paths):
        expected += 1 if holds_run(path) else len(list_runs(path))

    results = [read_result(method.path) for method in methods]
    return len(methods) == expected and None not in results


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
    """Turn Ctrl-C into an event while the block runs, so that a page is finished first."""
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
