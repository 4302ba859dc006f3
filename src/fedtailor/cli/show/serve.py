"""The output of ``fedtailor serve``: rounds, who is there, who is late."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.cli.show.console import duration, say, table
from fedtailor.cli.show.progress import make_progress
from fedtailor.cli.show.results import show_claims
from fedtailor.core.text import counted, percent
from fedtailor.experiment.worth_it import sentence

_LATE = 20.0
"""Seconds after which a site that has not answered is named."""
_AGAIN = 60.0
"""Seconds after which it is named again."""
_MOST_NAMED = 8
"""Sites that a line names."""


class ServeOutput:
    """What the server says while it runs."""

    def __init__(self) -> None:
        """Begin."""
        self.progress = make_progress(runs=1)
        self._named: dict[str, float] = {}
        self._late: set[str] = set()
        self._online: dict[str, bool] = {}

    def say(self, text: str) -> None:
        """Say a sentence; unlike notes of a simulation, none of them is ever left out."""
        self.progress.line(text)

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Say which run it is."""
        self.progress.begin(title, rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        """Show a round that has ended."""
        self.progress.round(record)

    def attendance(self, sites: Mapping[str, Mapping[str, Any]]) -> None:
        """Say who has connected and who is late, and show for whom the server waits."""
        now = time.time()
        self._say_connections(sites, now)
        self._say_late(sites, now)
        self.progress.status(_status(sites, now))

    def _say_connections(self, sites: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Say who has connected, and who is no longer connected."""
        for name, seen in sites.items():
            is_online = bool(seen.get("online"))
            if is_online and not self._online.get(name, False):
                self.say(f"{name} is connected")
            elif not is_online and self._online.get(name, False):
                what = "was stopped" if seen.get("stopped") else "is no longer connected"
                self.say(f"{name} {what}, {_last_heard(seen, now)}")
            self._online[name] = is_online

    def _say_late(self, sites: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Say who is late, from time to time, and who has answered at last."""
        late = {name for name, seen in sites.items() if _waited(seen, now) >= _LATE}
        named = [
            name
            for name in sites
            if name in late and now - self._named.get(name, -_AGAIN) >= _AGAIN
        ]

        if named:
            self._named.update(dict.fromkeys(named, now))
            self.say(f"waiting for {_in_words(named, sites, now)}")

        # A site that is no longer late has answered, or the server has given it up.
        for name in sorted(self._late - late):
            heard = sites.get(name, {}).get("heard")
            if heard is not None and now - heard < _LATE:
                self.say(f"{name} has answered")

            self._named.pop(name, None)

        self._late = late

    def close(self) -> None:
        """End the display."""
        self.progress.end()


def _waited(seen: Mapping[str, Any], now: float) -> float:
    """Return for how many seconds the server has waited for a site."""
    since = seen.get("waiting_since")
    return 0.0 if since is None else now - float(since)


def _last_heard(seen: Mapping[str, Any], now: float) -> str:
    heard = seen.get("heard")
    if heard is None:
        return "never heard from yet"

    return f"last heard from {duration(max(now - heard, 0.0))} ago"


def _in_words(names: Sequence[str], sites: Mapping[str, Mapping[str, Any]], now: float) -> str:
    """Return sites, with what is known of each; the first few of many."""
    described = []
    for name in names[:_MOST_NAMED]:
        seen = sites[name]
        state = "connected" if seen.get("online") else "not connected"
        if seen.get("stopped"):
            state = "stopped"
        problem = ""
        # Without a connection, that is the problem.
        if seen.get("online") and seen.get("problem"):
            problem = f", {seen['problem']}"

        described.append(f"{name} ({state}, {_last_heard(seen, now)}{problem})")

    more = len(names) - _MOST_NAMED
    if more > 0:
        described.append(f"{more} more")

    return ", ".join(described)


def _status(sites: Mapping[str, Mapping[str, Any]], now: float) -> str:
    """Return a line about all sites."""
    online = sum(bool(seen.get("online")) for seen in sites.values())
    waiting = [name for name, seen in sites.items() if seen.get("waiting_since") is not None]
    text = f"{online} of {len(sites)} sites are connected"
    return f"{text}; waiting for {_in_words(waiting, sites, now)}" if waiting else text


def show_finished(folder: Path, result: Mapping[str, Any]) -> None:
    """Print the scores of the sites."""
    rows = []
    for name, site in result.get("sites", {}).items():
        role = "new" if site["new"] else ""
        numbers = [str(site["num_train"]), str(site["num_test"]), percent(site.get("accuracy"))]
        rows.append([name, role, *numbers])

    if rows:
        columns = ["site", "", "training\nexamples", "test\nexamples", "personalized\naccuracy %"]
        table(f"{result['algorithm']}, {result['rounds']} rounds", columns, rows, left=2)

    show_means(result)
    shared = result.get("shared_verdicts")
    if shared:
        show_shared_verdicts(shared, len(result["sites"] or shared["sites"]))

    show_claims(result)
    say(f"The run is in {shlex.quote(str(result['run']))}. Every site keeps its own model.")
    say(f"Another run: fedtailor serve {shlex.quote(str(folder))} --new")


def show_means(result: Mapping[str, Any]) -> None:
    """Print the mean accuracies over sites of which only a sum is known."""
    for point, metrics in result.get("metrics", {}).items():
        if "missing" in metrics and "accuracy" in metrics:
            sites = counted(round(metrics["clients"]["evaluated"]), "site")
            accuracy = percent(metrics["accuracy"]["mean"])
            say(f"{point}: accuracy {accuracy} %, the mean over {sites}, of which a sum is known")


def show_shared_verdicts(shared: Mapping[str, Any], count: int) -> None:
    """Print the verdicts of the sites that share theirs, out of ``count``."""
    from fedtailor.report.worth_it import with_interval

    rows = []
    for name, site in shared["sites"].items():
        difference = with_interval(site, shared["measure"])
        own = site["own"].replace("_", " ")
        rows.append([name, site["verdict"], difference, f"{site['examples']:,}", own])

    columns = ["site", "verdict", "difference\n(95 % interval)", "test\nexamples"]
    columns.append("best\nown model")
    title = f"Is it worth it? What {len(rows)} of {count} sites share"
    below = f"{sentence(shared)}. {shared['rule']}"
    table(title, columns, rows, below=below, left=2)
