"""The progress of a run on stderr: a line that changes on a terminal, some lines elsewhere."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fedtailor.cli.show.console import duration, line_of_note, say
from fedtailor.core.errors import printable
from fedtailor.core.text import percent
from fedtailor.experiment.tracking import RunProgress

_SECONDS_BETWEEN = 5.0
_SHORT = 1.0
"""Seconds of work about which nothing is said where lines stay."""
_REDRAWN = 4
"""Times a second that a terminal is redrawn."""
_MOST_LINES = 10
_MOST_NOTES = 8
_LATEST = 20
"""How many of the latest rounds decide the time that is left."""


class CountLine:
    """How much of some work is done: a line that changes on a terminal, some lines elsewhere.

    Elsewhere there is a line at most every few seconds and every tenth, and none about short work.
    """

    says_the_start = False
    """Whether there is a line as soon as work begins."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._what = ""
        self._started = 0.0
        self._last_line = 0.0
        self._tenths = 0
        self._finished: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how much of ``total`` is done of something, such as ``reading pictures``.

        The total is 0 if it is not known.
        """
        now = time.monotonic()
        is_new = what != self._what
        if is_new:
            self._what = what
            self._started = self._last_line = now
            self._tenths = 0

        text = printable(self.describe(what, done, total))
        is_done = 0 < total == done
        if _can_redraw():
            self._redraw(text)
            if is_done:
                self.close()
        elif is_done:
            # Folds and seeds do the same work again, and one line says so.
            if now - self._started >= _SHORT and text not in self._finished:
                say(text)
                self._finished.add(text)
        elif (is_new and self.says_the_start) or self._is_due(now, done, total):
            say(text)

    def describe(self, what: str, done: int, total: int) -> str:
        """Return the line, with the speed and the time left where that is known."""
        line = f"{what}: {done:,} of {total:,}"
        seconds = time.monotonic() - self._started
        if seconds < _SHORT or not 0 < done < total:
            return line

        if done >= seconds:
            line += f", {done / seconds:,.0f} a second"
        return f"{line}, {duration(seconds * (total - done) / done)} left"

    def close(self) -> None:
        """Remove the line that changes."""
        self._what = ""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _redraw(self, text: str) -> None:
        if self._live is None:
            self._live = _start_live()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))

    def _is_due(self, now: float, done: int, total: int) -> bool:
        tenths = 10 * done // total if total else self._tenths + 1
        if tenths == self._tenths or now - self._last_line <= _SECONDS_BETWEEN:
            return False

        self._last_line = now
        self._tenths = tenths
        return True


class PlainProgress(RunProgress):
    """About ten lines, for logs and pipes: the first round, then rounds at equal distances.

    The distances are those of all rounds of all runs. Up to ten runs have a line at the end of
    each.
    """

    def __init__(self, runs: int = 1) -> None:
        """Start the progress of ``runs`` runs, such as one per seed; they share the lines."""
        self._runs = runs
        self._lines = _MOST_LINES // runs * runs or _MOST_LINES
        self._runs_before = -1
        self._notes: set[str] = set()
        self._preparation = CountLine()
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self._last_end = 0.0
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
        self._last_end = time.monotonic()
        self._preparation.close()
        self._measured = []

    def round(self, record: Mapping[str, Any]) -> None:
        """Print a line if it is time for one; the latest accuracies are in it."""
        done = record["round"]
        self._count_seconds()
        measured = [text for text in map(_accuracies, record["evaluations"]) if text]
        if measured:
            self._measured = measured
            self._measured_at = done

        # The first round says that it works; then come lines at equal distances.
        is_first = done == self._done_before + 1 and self._runs_before == 0
        if is_first or self._part(done) > self._part(done - 1):
            # An accuracy that is older than this line says of which round it is.
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
        done_so_far = f"{self._title}: round {done}/{self._rounds}"
        if done == self._rounds:
            return done_so_far

        # The rounds to come take as long as the latest ones, evaluations included.
        left = self._rounds - done
        seconds = statistics.fmean(self._seconds)
        text = f"{done_so_far}, {duration(left * seconds)} left"
        following = self._runs - self._runs_before - 1
        if following > 0:
            rounds = left + following * self._rounds
            text += f" ({duration(rounds * seconds)} for all runs)"

        return text

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self._seconds.append(now - self._last_end)
        self._last_end = now

    def prepare(self, what: str, done: int, total: int) -> None:
        """Show how many images have been read or corrupted."""
        self._preparation(what, done, total)

    def note(self, text: str) -> None:
        """Print something that a user should know, once; after some, only where the others are."""
        if text in self._notes:
            return

        self._notes.add(text)
        if len(self._notes) < _MOST_NOTES:
            self.line(line_of_note(text))
        elif len(self._notes) == _MOST_NOTES:
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
        self._live = _start_live(get_renderable=self.draw)

    def round(self, record: Mapping[str, Any]) -> None:
        """Change what is shown at the next redrawing."""
        self._count_seconds()
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
    return LiveProgress(runs) if _can_redraw() else PlainProgress(runs)


def _start_live(**what: Any) -> Live:
    """Return a part of the terminal that changes, and goes when it is stopped."""
    console = Console(stderr=True, highlight=False)
    live = Live(console=console, refresh_per_second=_REDRAWN, transient=True, **what)
    live.start()
    return live


def _can_redraw() -> bool:
    """Return whether stderr is a terminal on which a line can change."""
    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


def _accuracies(evaluation: Mapping[str, Any]) -> str:
    """Return the accuracies of an evaluation in words; nothing if no client had test examples."""
    accuracy = evaluation["metrics"].get("accuracy")
    if accuracy is None:
        return ""

    point = evaluation["point"]
    names = {"clients": point, "complete": f"{point} on the whole test part"}
    name = names.get(evaluation["test_set"], "validation")
    if evaluation["group"] == "new":
        name += " of new clients"

    # A mean over fewer clients than usual must not look like one over all.
    clients = f"{evaluation['metrics']['clients']['evaluated']:.0f} clients"
    if "worst10" in accuracy:
        clients += f", worst tenth {percent(accuracy['worst10'])} %"
    return f"{name} {percent(accuracy['mean'])} % ({clients})"
