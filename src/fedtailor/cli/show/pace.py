"""When a line about long work is due, and how long the work will still take."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

_SECONDS_BETWEEN = 5.0
_LATEST = 10
"""How many of the latest rounds, and of the latest evaluations of a kind, decide the time that is
left."""


class Pace:
    """Whether a line about long work is due: at the end, and every few seconds and every tenth."""

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
        kind = tuple(
            sorted(
                f"{each['point']} {each['test_set']} {each['group']}"
                for each in record["evaluations"]
            )
        )

        if kind:
            self._evaluations.setdefault(kind, deque(maxlen=_LATEST)).append(evaluating)
            self._times[kind] += 1

    def of_rounds(self, rounds: int) -> float:
        """Return the seconds that more rounds will take; at least one must have been counted."""
        each = statistics.median(self._rounds)
        for kind, seconds in self._evaluations.items():
            each += statistics.median(seconds) * self._times[kind] / self._seen
        return each * rounds
