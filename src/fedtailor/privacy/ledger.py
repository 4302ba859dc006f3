"""The ledger of a run: every release of a noisy sum, written before the sum is used.

A line of ``privacy.jsonl`` is one release. A round that is run again after a kill has the same sum
and the same noise, so it tells nothing new: its digest is known, and it is not counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.atomic import append_lines, cut_unfinished_line
from fedtailor.core.errors import DataError
from fedtailor.core.reading import UNEXPECTED, read_lines

LEDGER_FILE = "privacy.jsonl"


class LedgerEntry(NamedTuple):
    """One release."""

    round: int
    attempt: int
    noise: float
    """Standard deviation of the noise over the bound of a client's contribution."""
    rate: float
    """Probability with which a client takes part."""
    clip: float
    """The bound."""
    cohort: tuple[int, ...]
    """The clients of the sum."""
    digest: str
    """Of the sum before noise, in hexadecimal."""


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
            self.entries = _read(path)

    def add(self, entry: LedgerEntry) -> None:
        """Write a release, unless it is known already. Only then may its noisy sum be used.

        Raises:
            RunError: the file cannot be written.
        """
        if any(other.digest == entry.digest for other in self.entries):
            return
        if self._path is not None:
            append_lines(self._path, [entry._asdict()])
        self.entries.append(entry)

    def spent(self, delta: float, also: Sequence[LedgerEntry] = ()) -> Spent:
        """Return what the releases tell.

        Args:
            delta: probability with which they may tell more.
            also: releases that are not in the ledger yet.
        """
        # It imports SciPy, which a run without noise does not need.
        from fedtailor.privacy.accountant import Release, epsilon_of

        known = {entry.digest for entry in self.entries}
        entries = [*self.entries, *(entry for entry in also if entry.digest not in known)]
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


def _read(path: Path) -> list[LedgerEntry]:
    """Read a ledger; what a kill left of a line that was never whole is cut off."""
    cut_unfinished_line(path)
    entries = []
    for number, record in enumerate(read_lines(path), start=1):
        try:
            entry = LedgerEntry(**record)
            entries.append(entry._replace(cohort=tuple(entry.cohort)))
        except UNEXPECTED as error:
            message = f"line {number} is not a release of a noisy sum"
            raise DataError(f"'{path}': {message}.", path=str(path)) from error

    return entries
