"""The progress of work whose length is known: a line from time to time, on stderr."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedtailor.cli.show.console import say

_SECONDS_BETWEEN = 5.0
_SHORT = 1.0
"""Seconds of work about which nothing is said where lines stay."""


class Pace:
    """Says when a line is due: at the end, and at most every few seconds and every tenth."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._tenths = 0

    def is_due(self, done: int, total: int) -> bool:
        """Return whether to print a line now.

        Args:
            done: how much is done.
            total: of how much; 0: it is not known.
        """
        now = time.monotonic()
        tenths = 10 * done // total if total else 0
        is_done = total > 0 and done == total
        is_further = tenths > self._tenths or not total
        if not is_done and not (is_further and now - self._said > _SECONDS_BETWEEN):
            return False

        self._said = now
        self._tenths = tenths
        return True


class Preparation:
    """Counts images: a line that changes on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._console = console if console.is_terminal and not console.is_dumb_terminal else None
        self._live: Live | None = None
        self._what = ""
        self._start = 0.0
        self._pace = Pace()

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show for how many images of ``total`` something is done, such as ``reading pictures``."""
        if what != self._what:
            self._what = what
            self._start = time.monotonic()
            self._pace = Pace()

        text = f"{what}: {done:,} of {total:,}"
        if self._console is None:
            is_short = done == total and time.monotonic() - self._start < _SHORT
            if self._pace.is_due(done, total) and not is_short:
                say(text)
            return

        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))
        if done == total:
            self.close()

    def close(self) -> None:
        """Remove the line that changes."""
        self._what = ""
        if self._live is not None:
            self._live.stop()
            self._live = None
