"""Trackers as the progress of a run: they are told every round, and none of them can stop or change
it.
"""

from __future__ import annotations

import contextlib
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import safe_name, to_json, write_whole
from fedtailor.core.errors import FedtailorError, describe_error
from fedtailor.core.reading import read_object
from fedtailor.experiment.progress import Silence
from fedtailor.experiment.trackers import TRACKERS, make_tracker
from fedtailor.experiment.trackers.base import TrackedRun, Tracker, Values, final_values, values_of

FOLDER = "tracking"
"""In a run folder: one folder for each tracker."""
_SECONDS_BETWEEN = 2.0
"""Seconds between two times that rounds are written: a database takes some 40 ms each time."""


class Tracked(Silence):
    """Tells one tracker about the run of one seed.

    A file beside the log says up to which round it goes, so that a resumed run writes no round
    twice. Rounds that an earlier process did not come to write, or ran without this tracker, are
    added from the records.

    Whatever the tracker raises, apart from Ctrl-C, is reported once, and the tracker is not used
    any more.
    """

    def __init__(
        self,
        name: str,
        run: TrackedRun,
        *,
        earlier: Callable[[], Iterable[Mapping[str, Any]]],
        warn: Callable[[str], None],
    ) -> None:
        """Prepare; nothing is written before the run begins.

        Args:
            name: of the tracker.
            run: the run; ``folder`` is that of the tracker.
            earlier: returns the records of the rounds that were done before.
            warn: reports that the tracker was switched off.
        """
        self._name = name
        self._run = run
        self._earlier = earlier
        self._warn = warn
        self._tracker: Tracker | None = None
        self._is_on = True
        self._known_as = ""
        self._last = 0
        self._waiting: list[tuple[int, Values]] = []
        self._written = 0.0
        self._finished = False

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start the tracker, and give it the rounds that it does not have."""
        self._attempt(lambda: self._start(title, done))

    def round(self, record: Mapping[str, Any]) -> None:
        """Keep a round until it is time to write."""
        self._attempt(lambda: self._add(record))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Give the tracker the final scores."""
        self._attempt(lambda: self._finish(result))

    def end(self) -> None:
        """Write what is left, and close the log."""
        self._attempt(self._close)
        self._tracker = None

    def _attempt(self, step: Callable[[], None]) -> None:
        """Take a step if the tracker is on; switch it off if that raises. What a library prints
        goes to stderr.
        """
        if not self._is_on:
            return

        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
                warnings.simplefilter("ignore")
                step()
        except (Exception, SystemExit) as error:
            self._is_on = False
            self._tracker = None
            self._waiting = []
            title = TRACKERS[self._name].title
            self._warn(f"{title} is switched off, and the run goes on: {describe_error(error)}")

    def _start(self, title: str, done: int) -> None:
        self._run.folder.mkdir(parents=True, exist_ok=True)
        self._read_mark()
        tracker = make_tracker(self._name)
        log = tracker.start(self._run._replace(title=title), self._known_as, self._last)
        self._known_as = log.known_as
        self._last = log.last
        self._tracker = tracker

        for record in self._earlier() if done > self._last else ():
            if self._last < record["round"] <= done:
                self._keep(record)

        self._write()

    def _add(self, record: Mapping[str, Any]) -> None:
        """Keep a round, unless the log has it, and write what waits if it is time."""
        if record["round"] > self._last:
            self._keep(record)
        if time.monotonic() - self._written > _SECONDS_BETWEEN:
            self._write()

    def _keep(self, record: Mapping[str, Any]) -> None:
        self._waiting.append((record["round"], values_of(record)))
        self._last = record["round"]

    def _finish(self, result: Mapping[str, Any]) -> None:
        self._write()
        if self._tracker is not None:
            self._tracker.finish(final_values(result))
            self._finished = True

    def _close(self) -> None:
        if self._tracker is not None:
            self._write()
            self._tracker.close(finished=self._finished)

    def _write(self) -> None:
        """Write the rounds that wait, and then up to which round the log goes."""
        if self._tracker is None:
            return
        if self._waiting:
            self._tracker.write(self._waiting)
            self._waiting = []
        self._written = time.monotonic()
        write_whole(self._mark, to_json({"round": self._last, "known_as": self._known_as}) + "\n")

    @property
    def _mark(self) -> Path:
        """The file that says up to which round the log goes, and what it is known as."""
        return self._run.folder.with_name(f"{safe_name(f'{self._name}-{self._run.name}')}.json")

    def _read_mark(self) -> None:
        """Read what an earlier process has written; where that cannot be read, the log is a new
        one.
        """
        with contextlib.suppress(FedtailorError):
            mark = read_object(self._mark, within=self._run.folder.parent)
            if isinstance(mark.get("round"), int) and isinstance(mark.get("known_as"), str):
                self._last = mark["round"]
                self._known_as = mark["known_as"]


def tracked_run(seed: int, folder: Path, configuration: str) -> TrackedRun:
    """Return the run of one seed as trackers see it.

    Args:
        seed: of the run.
        folder: the run folder, which all seeds share.
        configuration: of the run, as TOML.
    """
    return TrackedRun(f"seed-{seed}", "", folder / FOLDER, tomllib.loads(configuration))


def make_tracked(
    names: Sequence[str],
    run: TrackedRun,
    *,
    earlier: Callable[[], Iterable[Mapping[str, Any]]],
    warn: Callable[[str], None],
) -> list[Tracked]:
    """Return the trackers of a run by their names, not started; see :class:`Tracked`."""
    return [
        Tracked(name, run._replace(folder=run.folder / name), earlier=earlier, warn=warn)
        for name in names
    ]
