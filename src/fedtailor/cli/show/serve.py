"""The output of ``fedtailor serve``: rounds, who is there, who is late."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import Any

from fedtailor.cli.show.console import duration, percent, say, table
from fedtailor.cli.show.progress import make_progress

_LATE = 20.0
"""Seconds after which a site that has not answered is named."""
_AGAIN = 60.0
"""Seconds after which it is named again."""


class ServeMessages:
    """What the server says while it runs."""

    def __init__(self) -> None:
        """Begin."""
        self.progress = make_progress(runs=1)
        self._named: dict[str, float] = {}
        self._absent: set[str] = set()

    def say(self, text: str) -> None:
        """Say a sentence; unlike notes of a simulation, each of them counts, however long the server runs."""
        self.progress.line(text)

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Say which run it is."""
        self.progress.begin(title, rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        """Show a round that has ended."""
        self.progress.round(record)

    def attendance(self, sites: Mapping[str, Mapping[str, Any]]) -> None:
        """Say who is late, and who is there again."""
        now = time.time()
        late = set()
        for name, seen in sites.items():
            since = seen.get("waiting_since")
            if since is None or now - since < _LATE:
                continue
            late.add(name)
            if now - self._named.get(name, -_AGAIN) < _AGAIN:
                continue
            self._named[name] = now
            heard = seen.get("heard")
            last = "never heard of yet" if heard is None else f"last heard of {duration(now - heard)} ago"
            state = "connected" if seen.get("online") else "not connected"
            is_told = seen.get("online") and seen.get("problem")  # without a connection, that is the problem
            problem = f" ({seen['problem']})" if is_told else ""
            self.say(f"waiting for {name}: {state}, {last}{problem}")
        for name in sorted(self._absent - late):
            heard = sites.get(name, {}).get("heard")
            if heard is not None and now - heard < _LATE:
                self.say(f"{name} has answered")
            self._named.pop(name, None)
        self._absent = late

    def close(self) -> None:
        """End the display."""
        self.progress.end()


def show_finished(folder: str, result: Mapping[str, Any]) -> None:
    """Print the scores of the sites."""
    rows = []
    for name, site in result.get("sites", {}).items():
        accuracy = percent(site["accuracy"]) if "accuracy" in site else "-"
        rows.append([name, "new" if site["new"] else "", str(site["num_train"]), str(site["num_test"]), accuracy])
    if rows:
        columns = ["site", "", "training\nexamples", "test\nexamples", "its own model\naccuracy %"]
        table(f"{result['algorithm']}, {result['rounds']} rounds", columns, rows, left=2)
    say(f"The run is in {shlex.quote(str(result['run']))}. Every site keeps its own model.")
    say(f"Another run: fedtailor serve {shlex.quote(folder)} --new")
