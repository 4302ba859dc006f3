"""How a run goes on, on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedtailor.cli.show.results import duration, percent, printable, say

_MOST_NOTES = 8
_SECONDS_BETWEEN = 5


class PlainProgress:
    """One plain line per round, for logs and pipes."""

    def __init__(self) -> None:
        self._notes = 0
        self._said = time.monotonic()

    def begin(self, title: str, num_rounds: int) -> None:
        """Start a run of one seed."""
        self._title, self._rounds, self._start = title, num_rounds, time.monotonic()
        self._accuracy = ""

    def round(self, record: Mapping[str, Any]) -> None:
        """Say that a round has ended."""
        self.line(self.describe(record))

    def describe(self, record: Mapping[str, Any]) -> str:
        """Return the line for a round: number, time left, accuracies where they were measured."""
        done = record["round"]
        left = (time.monotonic() - self._start) / done * (self._rounds - done)
        measured = [text for text in map(_accuracies, record["evaluations"]) if text]
        parts = [f"{self._title}: round {done}/{self._rounds}", f"{duration(left)} left", *measured]
        return ", ".join(parts)

    def prepare(self, done: int, total: int) -> None:
        """Say how many images have been corrupted, every few seconds."""
        now = time.monotonic()
        if now - self._said > _SECONDS_BETWEEN or done == total:
            self._said = now
            self.line(f"corrupted images: {done:,} of {total:,}")

    def note(self, text: str) -> None:
        """Say something that a user should know; many of a kind are cut short."""
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

    def __init__(self) -> None:
        super().__init__()
        self._live: Live | None = None
        self._latest = ""

    def begin(self, title: str, num_rounds: int) -> None:
        """Start the line."""
        super().begin(title, num_rounds)
        self._latest = ""
        self._live = Live(console=Console(stderr=True, highlight=False), refresh_per_second=8, transient=True)
        self._live.start()
        self._live.update(Text(f"{title}: round 1/{num_rounds}"))

    def round(self, record: Mapping[str, Any]) -> None:
        """Change the line; the latest accuracies stay in it."""
        measured = [text for text in map(_accuracies, record["evaluations"]) if text]
        self._latest = measured[-1] if measured else self._latest
        text = self.describe({**record, "evaluations": []})
        if self._live is not None:
            line = printable(f"{text}, {self._latest}" if self._latest else text)
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


def make_progress() -> PlainProgress:
    """Return a live line where stderr is a terminal, plain lines elsewhere."""
    return LiveProgress() if Console(stderr=True).is_terminal else PlainProgress()


def _accuracies(evaluation: Mapping[str, Any]) -> str:
    """Return the accuracies of an evaluation in words; nothing if no client had test examples."""
    accuracy = evaluation["metrics"].get("accuracy")
    if accuracy is None:
        return ""
    who = " of new clients" if evaluation["clients"] == "new" else ""
    names = {"clients": evaluation["point"], "complete": f"{evaluation['point']} on the whole test part"}
    name = names.get(evaluation["test_set"], "validation")
    return f"{name}{who} {percent(accuracy['mean'])} % (worst tenth {percent(accuracy['worst10'])} %)"
