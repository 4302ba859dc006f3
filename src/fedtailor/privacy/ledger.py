"""The ledger of a run: every release of a noisy sum, written before the sum is used.

A line of ``privacy.jsonl`` is one release. A round that is run again after a kill has the same sum
and the same noise, so it tells nothing new: the release is known, and it is not counted twice. An
equal sum of another round has another noise, and is a release of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.atomic import (
    append_lines,
    cut_unfinished_line,
    synchronize_folder,
    writing,
)
from fedtailor.core.errors import DataError
from fedtailor.core.reading import UNEXPECTED, read_lines

LEDGER_FILE = "privacy.jsonl"


class LedgerEntry(NamedTuple):
    """One release."""

    round: int
    attempt: int
    noise: float
    """Standard deviation of the noise over the bound of what a client or an example adds."""
    rate: float
    """Probability with which the client or example takes part."""
    clip: float
    """The bound."""
    cohort: tuple[int, ...]
    """The clients of the sum, or those whose examples it tells of."""
    digest: str
    """Of the sum before noise, or of what leads to it, in hexadecimal."""
    steps: int = 1
    """Of training with this noise and rate."""
    run: str = ""
    """Of a site, whose ledger has all of its runs."""

    @property
    def key(self) -> tuple[int, int, str]:
        """What tells it from other releases: the noise follows from round and attempt."""
        return self.round, self.attempt, self.digest


class Spent(NamedTuple):
    """What the releases of a ledger tell of one client at most."""

    epsilon: float
    """As if nobody knew who took part in which round."""
    epsilon_known_cohort: float
    """For those who know it, such as the server of real sites."""


class Ledger:
    """The releases of a run."""

    def __init__(self, path: Path | None = None) -> None:
        """Read a ledger, or begin it.

        Args:
            path: its file; None: it stays in memory.

        Raises:
            DataError: the file cannot be read, or is no ledger.
        """
        self._path = path
        self.entries: list[LedgerEntry] = []
        if path is not None and path.exists():
            # What a kill has left of a line was never whole.
            cut_unfinished_line(path)
            self.entries = read_entries(path)
        self._keys = {entry.key for entry in self.entries}

    def add(self, *entries: LedgerEntry) -> None:
        """Write releases that are not known already. Only then may what they release be used.

        Raises:
            RunError: the file cannot be written.
        """
        new = self._new(entries)
        if not new:
            return

        if self._path is not None:
            append_lines(self._path, [entry._asdict() for entry in new])
            if not self.entries:  # the file is new, and its name must survive too
                with writing(self._path):
                    synchronize_folder(self._path.parent)

        self.entries += new
        self._keys.update(entry.key for entry in new)

    def _new(self, entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
        return [entry for entry in entries if entry.key not in self._keys]

    def steps_by_client(self, *more: LedgerEntry) -> dict[int, Counter[tuple[float, float]]]:
        """Return how many steps tell of the examples of every client, by noise and rate.

        Args:
            more: releases that would come on top, unless they are known.
        """
        steps: defaultdict[int, Counter[tuple[float, float]]] = defaultdict(Counter)
        for entry in [*self.entries, *self._new(more)]:
            for client in entry.cohort:
                steps[client][entry.noise, entry.rate] += entry.steps
        return dict(steps)

    def steps(self, *more: LedgerEntry, run: str | None = None) -> Counter[tuple[float, float]]:
        """Return how many steps the releases have, by noise and rate.

        Args:
            more: releases that would come on top, unless they are known.
            run: whose releases count; None: those of all runs.
        """
        steps: Counter[tuple[float, float]] = Counter()
        for entry in [*self.entries, *self._new(more)]:
            if run in (None, entry.run):
                steps[entry.noise, entry.rate] += entry.steps
        return steps

    def spent(self, delta: float, entry: LedgerEntry | None = None) -> Spent:
        """Return what the releases tell.

        Args:
            delta: probability with which they may tell more.
            entry: the last release that counts, which may be a new one; None: all count.
        """
        # It imports SciPy, which a run without noise does not need.
        from fedtailor.privacy.accountant import Release, epsilon_of

        entries = self.entries if entry is None else self._until(entry)
        times = Counter((entry.noise, entry.rate) for entry in entries)
        releases = [Release(noise, rate, count) for (noise, rate), count in times.items()]

        # Whoever knows the cohorts knows in which releases a client is.
        by_client: dict[int, Counter[float]] = {}
        for entry in entries:
            for client in entry.cohort:
                by_client.setdefault(client, Counter())[entry.noise] += 1
        histories = {tuple(sorted(counts.items())) for counts in by_client.values()}
        largest = max(
            (
                epsilon_of(delta, [Release(noise, 1.0, count) for noise, count in history])
                for history in histories
            ),
            default=0.0,
        )
        return Spent(epsilon_of(delta, releases), largest)

    def _until(self, entry: LedgerEntry) -> list[LedgerEntry]:
        """Return the releases up to one of them, or all and a new one."""
        for number, other in enumerate(self.entries):
            if other.key == entry.key:
                return self.entries[: number + 1]

        return [*self.entries, entry]


def read_entries(path: Path) -> list[LedgerEntry]:
    """Return the releases in a file, to which another process may be writing.

    Raises:
        DataError: it cannot be read, or is no ledger.
    """
    entries = []
    for number, record in enumerate(read_lines(path), start=1):
        try:
            entry = LedgerEntry(**record)
            entries.append(entry._replace(cohort=tuple(entry.cohort)))
        except UNEXPECTED as error:
            message = f"line {number} is not a release of a noisy sum"
            raise DataError(f"'{path}': {message}.", path=str(path)) from error

    return entries
