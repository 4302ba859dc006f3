"""The progress of a run on stderr: a line that changes on a terminal, some lines elsewhere."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fedtailor.cli.show.console import duration, percent, printable, say

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


_MOST_LINES = 10
_MOST_NOTES = 8
_REDRAWN = 4
"""Times a second that a terminal is redrawn."""
_LATEST = 10
"""How many of the latest rounds and evaluations decide the time that is left."""


class TimeLeft:
    """How long a run, and the runs after it, will still take, by the latest rounds.

    Evaluations are counted apart, because only some rounds have one: the median of the latest of
    each kind, times how often it comes. A kind is which models are tested. The following runs count
    as if they were like the latest rounds.
    """

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=_LATEST)
        self._evaluations: dict[tuple[str, ...], deque[float]] = {}
        self._times: Counter[tuple[str, ...]] = Counter()
        self._seen = 0
        self._last = 0.0

    def begin(self) -> None:
        """Start the clock of the first round of a run."""
        self._last = time.monotonic()

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a round that has just ended; ``record`` is its line in ``rounds.jsonl``."""
        now = time.monotonic()
        evaluating = float(record.get("seconds", {}).get("evaluate", 0.0))
        self._rounds.append(max(now - self._last - evaluating, 0.0))
        self._last = now
        self._seen += 1

        models = []
        for evaluation in record["evaluations"]:
            names = (evaluation["point"], evaluation["test_set"], evaluation["group"])
            models.append(" ".join(names))

        kind = tuple(sorted(models))
        if kind:
            self._evaluations.setdefault(kind, deque(maxlen=_LATEST)).append(evaluating)
            self._times[kind] += 1

    def of_rounds(self, rounds: int) -> float:
        """Return the seconds that further rounds will take; at least one must have been counted."""
        seconds = statistics.median(self._rounds)
        for kind, latest in self._evaluations.items():
            seconds += statistics.median(latest) * self._times[kind] / self._seen
        return seconds * rounds


class PlainProgress:
    """About ten lines, for logs and pipes: the first round, then rounds at equal distances.

    The distances are those of all rounds of all runs. Up to ten runs have a line at the end of
    each.
    """

    def __init__(self, runs: int = 1) -> None:
        """Start the progress of ``runs`` runs, such as one per seed; they share the lines."""
        self._runs = runs
        self._lines = _MOST_LINES // runs * runs or _MOST_LINES
        self._runs_before = -1
        self._notes = 0
        self._preparation = Preparation()
        self._time_left = TimeLeft()
        self._title = ""
        self._rounds = 0
        self._done_before = 0
        self._measured: list[str] = []
        self._measured_at = 0

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start a run of one seed, of which ``done`` rounds were done before."""
        self._runs_before += 1
        self._title = title
        self._rounds = num_rounds
        self._done_before = done
        self._time_left.begin()
        self._preparation.close()
        self._measured = []

    def round(self, record: Mapping[str, Any]) -> None:
        """Print a line if it is time for one; the latest accuracies are in it."""
        done = record["round"]
        self._time_left.add(record)
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
        """Return the number of a round, and the time left for this run and for all runs."""
        place = f"{self._title}: round {done}/{self._rounds}"
        if done == self._rounds:
            return place

        left = self._rounds - done
        text = f"{place}, {duration(self._time_left.of_rounds(left))} left"
        following = self._runs - self._runs_before - 1
        if following > 0:
            every = self._time_left.of_rounds(left + following * self._rounds)
            text += f" ({duration(every)} for all runs)"

        return text

    def prepare(self, what: str, done: int, total: int) -> None:
        """Show how many images have been read or corrupted."""
        self._preparation(what, done, total)

    def note(self, text: str) -> None:
        """Print something that a user should know; after some notes, only where the others are."""
        self._notes += 1
        if self._notes < _MOST_NOTES:
            self.line(f"note: {text}")
        elif self._notes == _MOST_NOTES:
            self.line("note: more in events.jsonl of the run's folder")

    def line(self, text: str) -> None:
        """Print a line."""
        say(text)

    def status(self, text: str) -> None:
        """Show what is going on, where a line can change in place."""

    def end(self) -> None:
        """Remove what may still be shown of the preparation."""
        self._preparation.close()


class LiveProgress(PlainProgress):
    """On a terminal: a line that changes, with the latest accuracies."""

    def __init__(self, runs: int = 1) -> None:
        """Start the progress of ``runs`` runs."""
        super().__init__(runs)
        self._live: Live | None = None
        self._line = ""
        self._accuracies = ""
        self._status = ""

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start the line."""
        super().begin(title, num_rounds, done)
        self._line = f"{title}: round {done + 1}/{num_rounds}"
        self._accuracies = ""
        self._status = ""

        # The terminal is redrawn at its own pace, not after every round.
        self._live = Live(
            get_renderable=self.draw,
            console=Console(stderr=True, highlight=False),
            refresh_per_second=_REDRAWN,
            transient=True,
        )
        self._live.start()

    def round(self, record: Mapping[str, Any]) -> None:
        """Change what is shown at the next redrawing."""
        self._time_left.add(record)
        measured = [text for text in map(_accuracies, record["evaluations"]) if text]
        if measured:
            self._accuracies = measured[-1]

        self._line = self.describe(record["round"])

    def line(self, text: str) -> None:
        """Print a line above."""
        if self._live is None:
            self._preparation.close()
            say(text)
        else:
            self._live.console.print(Text(printable(text)))

    def status(self, text: str) -> None:
        """Show what is going on below the line, from the next redrawing on."""
        self._status = text

    def draw(self) -> Group:
        """Return what the terminal shows now."""
        line = f"{self._line}, {self._accuracies}" if self._accuracies else self._line
        lines = [line, self._status] if self._status else [line]
        return Group(*(Text(printable(text), overflow="fold") for text in lines))

    def end(self) -> None:
        """Remove everything."""
        super().end()
        if self._live is not None:
            self._live.stop()
            self._live = None


def make_progress(runs: int = 1) -> PlainProgress:
    """Return a line that changes where the terminal can do so, plain lines elsewhere.

    Args:
        runs: how many runs it is for, such as one per seed.
    """
    console = Console(stderr=True)
    is_live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(runs) if is_live else PlainProgress(runs)


def _accuracies(evaluation: Mapping[str, Any]) -> str:
    """Return the accuracies of an evaluation in words; nothing if no client had test examples."""
    accuracy = evaluation["metrics"].get("accuracy")
    if accuracy is None:
        return ""

    mean = percent(accuracy["mean"])
    return f"{name_of(evaluation)} {mean} % (worst tenth {percent(accuracy['worst10'])} %)"


def name_of(evaluation: Mapping[str, Any]) -> str:
    """Return which models an evaluation tested, on what, in words."""
    point = evaluation["point"]
    names = {"clients": point, "complete": f"{point} on the whole test part"}
    name = names.get(evaluation["test_set"], "validation")
    return f"{name} of new clients" if evaluation["group"] == "new" else name
