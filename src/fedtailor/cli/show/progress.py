"""The progress of a run, on stderr: one line that changes on a terminal, about ten lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedtailor.cli.show.console import duration, percent, printable, say

_MOST_LINES = 10
_MOST_NOTES = 8
_SECONDS_BETWEEN = 5.0


class Pace:
    """Whether a line about long work is due: at the end, and at most every few seconds and every tenth."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._tenths = 0

    def is_due(self, done: int, total: int) -> bool:
        """Return whether to print a line when so much is done.

        Args:
            done: what is done.
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


class PlainProgress:
    """About ten lines in all, for logs and pipes: the first round, then rounds at equal distances to the last one.

    The distances are those of all rounds of all runs. Up to ten runs have a line at the end of each.
    """

    def __init__(self, runs: int = 1) -> None:
        """Start the progress of ``runs`` runs, such as one per seed; they share the lines."""
        self._runs = runs
        self._lines = _MOST_LINES // runs * runs or _MOST_LINES
        self._runs_before = -1
        self._notes = 0
        self._pace = Pace()
        self._title = ""
        self._rounds = 0
        self._done_before = 0
        self._start = 0.0
        self._measured: list[str] = []
        self._measured_at = 0

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start a run of one seed, of which ``done`` rounds were done before."""
        self._runs_before += 1
        self._title = title
        self._rounds = num_rounds
        self._done_before = done
        self._start = time.monotonic()
        self._measured = []

    def round(self, record: Mapping[str, Any]) -> None:
        """Print a line if it is time for one; the latest accuracies are in it."""
        done = record["round"]
        measured = [text for text in map(_accuracies, record["evaluations"]) if text]
        if measured:
            self._measured = measured
            self._measured_at = done
        is_first = done == self._done_before + 1 and self._runs_before == 0
        if is_first or self._part(done) > self._part(done - 1):
            if self._measured and self._measured_at < done:
                self._measured[0] = f"at round {self._measured_at}: {self._measured[0]}"
            self.line(", ".join([self.describe(done), *self._measured]))
            self._measured = []

    def _part(self, done: int) -> int:
        """Return how many of all lines are due after a round."""
        done_in_all = self._runs_before * self._rounds + done
        return done_in_all * self._lines // (self._runs * self._rounds)

    def describe(self, done: int) -> str:
        """Return the number of a round, and the time that is left of its run."""
        place = f"{self._title}: round {done}/{self._rounds}"
        if done == self._rounds:
            return place
        left = (time.monotonic() - self._start) / (done - self._done_before) * (self._rounds - done)
        return f"{place}, {duration(left)} left"

    def prepare(self, done: int, total: int) -> None:
        """Print how many images have been corrupted: at most every few seconds and every tenth."""
        if self._pace.is_due(done, total):
            self.line(f"corrupted images: {done:,} of {total:,}")

    def note(self, text: str) -> None:
        """Print something that a user should know; after some notes, only where to read the others."""
        self._notes += 1
        if self._notes < _MOST_NOTES:
            self.line(f"note: {text}")
        elif self._notes == _MOST_NOTES:
            self.line("note: more in events.jsonl of the run's folder")

    def line(self, text: str) -> None:
        """Print a line."""
        say(text)

    def end(self) -> None:
        """Do nothing."""


class LiveProgress(PlainProgress):
    """One line that changes, on a terminal."""

    def __init__(self, runs: int = 1) -> None:
        """Start the progress of ``runs`` runs."""
        super().__init__(runs)
        self._live: Live | None = None

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start the line."""
        super().begin(title, num_rounds, done)
        self._live = Live(console=Console(stderr=True, highlight=False), refresh_per_second=8, transient=True)
        self._live.start()
        self._live.update(Text(f"{title}: round {done + 1}/{num_rounds}"))

    def round(self, record: Mapping[str, Any]) -> None:
        """Change the line; the latest accuracy stays in it."""
        measured = [text for text in map(_accuracies, record["evaluations"]) if text]
        if measured:
            self._measured = measured[-1:]
        if self._live is not None:
            line = printable(", ".join([self.describe(record["round"]), *self._measured]))
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))

    def line(self, text: str) -> None:
        """Print a line above."""
        if self._live is None:
            say(text)
        else:
            self._live.console.print(Text(printable(text)))

    def end(self) -> None:
        """Remove the line."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def make_progress(runs: int = 1) -> PlainProgress:
    """Return a line that changes where stderr is a terminal, plain lines elsewhere.

    Args:
        runs: how many runs it is for, such as one per seed.
    """
    return LiveProgress(runs) if Console(stderr=True).is_terminal else PlainProgress(runs)


def _accuracies(evaluation: Mapping[str, Any]) -> str:
    """Return the accuracies of an evaluation in words; nothing if no client had test examples."""
    accuracy = evaluation["metrics"].get("accuracy")
    if accuracy is None:
        return ""
    point = evaluation["point"]
    names = {"clients": point, "complete": f"{point} on the whole test part"}
    name = names.get(evaluation["test_set"], "validation")
    clients = " of new clients" if evaluation["group"] == "new" else ""
    return f"{name}{clients} {percent(accuracy['mean'])} % (worst tenth {percent(accuracy['worst10'])} %)"
