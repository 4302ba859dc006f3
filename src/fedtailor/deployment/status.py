"""The status of a running federation, for people and programs that look at it. No torch.

``status.json`` and the page ``status.html`` lie in the folder of the server, beside its runs.
Everything in them is read from files, so that they continue after the server was killed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from fedtailor.core.atomic import write_json, write_whole
from fedtailor.core.errors import DataError, FedtailorError, describe_error
from fedtailor.core.folders import this_process
from fedtailor.core.reading import content_of
from fedtailor.deployment.conduct import excluded_sites
from fedtailor.deployment.federation_folder import FederationFolder, read_attendance
from fedtailor.deployment.membership import Member, members_of
from fedtailor.deployment.options import FEDERATION_FILE, PLAN_FILE, load_federation
from fedtailor.deployment.supervise import NewRecords, latest_sentences
from fedtailor.experiment.config import load_config
from fedtailor.experiment.reader import CONFIG_FILE, read_result

STATUS_FILE = "status.json"
PAGE_FILE = "status.html"
LOG_FILE = Path("logs") / "serve.log"
"""What the server has said, in its folder."""
MOST_MESSAGES = 20
"""Sentences of the log that a status holds, the newest ones."""
MOST_SITE_CURVES = 8
"""Sites whose own curves a status holds, if so few show their scores."""
MOST_POINTS = 100
"""Points of a curve; of more, some are left out, evenly."""
_MOST_OVER = 0.9
"""Share of a round that counts as over, at most."""
_LATEST = 20
"""How many of the latest rounds decide the time that is left."""
_SHORTEST = 1.0
"""Fewest seconds between two looks."""
_PAUSE = 100.0
"""Times as long as a look took, before the next one: a status takes 1 % of a processor at most."""
_LONGEST = 10.0
"""Most seconds between two looks. As often, files are written even if nothing has changed, so that
a reader sees that the server lives."""

State = Literal["starting", "running", "finished", "stopped", "failed"]
"""Of a server: ``starting`` until all sites have agreed on the plan."""
SiteState = Literal[
    "excluded",
    "removed",
    "paused",
    "joining",
    "stopped",
    "silent",
    "not connected",
    "working",
    "connected",
]
"""Of a site, the first one that holds; ``joining``: it is registered, and not in the run yet."""
Curve = dict[int, float]
"""Accuracies by round."""


class _Run(NamedTuple):
    """What is known of a run beside its records."""

    algorithm: str
    rounds: int
    has_sums: bool
    sites: Sequence[Member]
    """By number; more can join."""

    def shows_scores_of(self, number: int) -> bool:
        """Return whether a site shows its own scores.

        With secure sums, single scores are shown only where all sites show theirs: otherwise those
        of the last one would follow from the mean.
        """
        if self.has_sums:
            return all({"scores", "single"} <= set(site.share) for site in self.sites)
        return "scores" in self.sites[number].share


class StatusReader:
    """Reads what is known of a run from the folder of a server and that of the run."""

    def __init__(self, folder: Path, run: Path) -> None:
        """Read the folder of a server.

        Args:
            folder: of the server.
            run: the run folder, which need not exist yet.

        Raises:
            ConfigError: ``federation.toml`` is wrong.
        """
        self._folder = folder
        self._path = run
        self._deadline = load_federation(folder / FEDERATION_FILE).deploy.deadline
        self._run = _Run("", 0, False, ())
        """Without the name of a method until there is a plan."""
        self._rounds = NewRecords(run / "rounds.jsonl")
        self._clients = NewRecords(run / "clients.jsonl")
        self._seconds: dict[int, float] = {}
        self._bytes: dict[int, tuple[int, int]] = {}
        self._means: dict[str, Curve] = {}
        self._of_sites: dict[str, Curve] = {}

    def read(self, state: State = "running", message: str = "") -> dict[str, Any]:
        """Return the status, ready for JSON.

        Args:
            state: of the server.
            message: why it ended.
        """
        try:
            self._read_run()
        except DataError as error:  # the page says so, and shows what was read before
            message = message or error.message

        run = self._run
        done = max(self._seconds, default=0)
        now = time.time()
        result = read_result(self._path) if run.algorithm else None
        if state == "running" and not run.algorithm:
            state = "starting"

        said = latest_sentences(self._folder / LOG_FILE)[-MOST_MESSAGES:]
        return {
            "time": round(now, 3),
            "process": this_process(),
            "run": self._path.name,
            "state": state if result is None else "finished",
            "message": message,
            "algorithm": run.algorithm,
            "secure_sums": run.has_sums,
            "round": done,
            "rounds": run.rounds,
            "round_seconds": self._seconds.get(done),
            "seconds_left": self._seconds_left(run.rounds, done, now),
            "bytes": self._num_bytes(),
            "sites": self._sites(now),
            "curves": {point: thinned(curve) for point, curve in self._means.items()},
            "site_curves": self._site_curves(),
            "verdicts": (result or {}).get("shared_verdicts"),
            "messages": [{"time": moment, "text": text} for moment, text in said],
        }

    def _read_run(self) -> None:
        """Read what is new of the run.

        Raises:
            DataError: a file is damaged.
        """
        # The plan is the last file that makes the folder.
        if not (self._path / PLAN_FILE).is_file():
            return

        if not self._run.algorithm:
            config = load_config(self._path / CONFIG_FILE)
            has_sums = config.privacy.secure_sums
            self._run = _Run(config.algorithm.name, config.schedule.rounds, has_sums, ())
        self._run = self._run._replace(sites=members_of(self._path))

        first, records = self._rounds.read()
        if records and first == 0:  # a run that is resumed cuts its files
            self._seconds.clear()
            self._bytes.clear()
            self._means.clear()
        with content_of(self._path / "rounds.jsonl"):
            for record in records:
                self._add_round(record)

        first, records = self._clients.read()
        if records and first == 0:
            self._of_sites.clear()
        with content_of(self._path / "clients.jsonl"):
            for record in records:
                self._add_client(record)

    def _add_round(self, record: Mapping[str, Any]) -> None:
        number = int(record["round"])
        self._seconds[number] = sum(record["seconds"].values())
        self._bytes[number] = (int(record["bytes"]["up"]), int(record["bytes"]["down"]))
        for evaluation in record["evaluations"]:
            accuracy = evaluation["metrics"].get("accuracy")
            is_of_known = evaluation["test_set"] == "clients" and evaluation["group"] == "known"
            if accuracy is not None and is_of_known:
                curve = self._means.setdefault(str(evaluation["point"]), {})
                curve[number] = float(accuracy["mean"])

    def _add_client(self, record: Mapping[str, Any]) -> None:
        """Add the accuracy of a personalized model, if its site shows it."""
        run = self._run
        if record["point"] != "personalized" or record.get("test_set") != "clients":
            return
        if record.get("accuracy") is None or not run.shows_scores_of(record["client"]):
            return

        name = run.sites[record["client"]].name
        self._of_sites.setdefault(name, {})[int(record["round"])] = float(record["accuracy"])

    def _seconds_left(self, rounds: int, done: int, now: float) -> float | None:
        """Return how long the rounds to come take, if they take as long as the latest ones."""
        latest = [self._seconds[number] for number in sorted(self._seconds)[-_LATEST:]]
        if not latest or done >= rounds:
            return None

        # A part of the next round is over; a late one is not said to end at once.
        each = statistics.fmean(latest)
        elapsed = now - (self._path / "rounds.jsonl").stat().st_mtime
        elapsed = min(max(elapsed, 0.0), _MOST_OVER * each)
        return round(each * (rounds - done) - elapsed, 1)

    def _num_bytes(self) -> dict[str, int]:
        pairs = self._bytes.values()
        return {"up": sum(up for up, _ in pairs), "down": sum(down for _, down in pairs)}

    def _sites(self, now: float) -> list[dict[str, Any]]:
        """Return what is known of every site, in the order of the run; then those that join."""
        registered = {site.name: site for site in FederationFolder(self._folder).sites()}
        names = [site.name for site in self._run.sites]
        attendance = read_attendance(self._folder)
        excluded = excluded_sites(self._folder)
        sites = []
        for name in dict.fromkeys([*names, *registered]):
            site = registered.get(name)
            seen = attendance.get(name, {})
            state = self._state_of(seen, now)
            if name in excluded:
                state = "excluded"
            elif site is None:
                state = "removed"
            elif site.paused:
                state = "paused"
            elif names and name not in names:
                state = "joining"

            curve = self._of_sites.get(name, {})
            record = {
                "name": name,
                "new": site is not None and site.new,
                "state": state,
                "since": _since(state, seen),
                "connected": bool(seen.get("online")),
                "heard": seen.get("heard"),
                "problem": excluded.get(name) or str(seen.get("problem") or ""),
                "accuracy": curve[max(curve)] if curve else None,
            }
            sites.append(record)

        return sites

    def _state_of(self, seen: Mapping[str, Any], now: float) -> SiteState:
        """Return the state of a site of the run that is asked."""
        if seen.get("stopped"):
            return "stopped"

        # A round that needs more answers than it has waits beyond the deadline.
        waiting = seen.get("waiting_since")
        is_late = waiting is not None and now - waiting > self._deadline
        if seen.get("silent_since") is not None or is_late:
            return "silent"
        if not seen.get("online"):
            return "not connected"
        return "connected" if waiting is None else "working"

    def _site_curves(self) -> dict[str, list[list[float]]]:
        """Return the curves of single sites, if they are few."""
        if len(self._of_sites) > MOST_SITE_CURVES:
            return {}
        return {name: thinned(curve) for name, curve in self._of_sites.items()}


def _since(state: SiteState, seen: Mapping[str, Any]) -> float | None:
    """Return since when a site is in its state, as far as that is known."""
    if state == "working":
        return seen.get("waiting_since")
    if state == "silent":
        return seen.get("heard") or seen.get("silent_since") or seen.get("waiting_since")
    return None if state == "connected" else seen.get("heard")


def thinned(curve: Mapping[int, float]) -> list[list[float]]:
    """Return a curve as pairs of round and value, at most 100, the last one among them."""
    points = [[number, curve[number]] for number in sorted(curve)]
    step = -(-len(points) // MOST_POINTS) or 1
    return points[::-1][::step][::-1]


class StatusFiles:
    """Writes the status of a run, and a page of it, while a server runs.

    Use it in a ``with`` block::

        with StatusFiles(folder, run, draw, say) as status:
            while ...:
                status.update()

    Whatever goes wrong here, such as a full disk, is said once and never ends a server.
    """

    def __init__(
        self,
        folder: Path,
        run: Path,
        draw: Callable[[Mapping[str, Any]], str],
        say: Callable[[str], None],
    ) -> None:
        """Write into the folder of a server.

        Args:
            folder: of the server.
            run: the run folder.
            draw: makes the page of a status.
            say: is told what goes wrong.

        Raises:
            ConfigError: ``federation.toml`` is wrong.
        """
        self._folder = folder
        self._draw = draw
        self._say = say
        self._reader = StatusReader(folder, run)
        self._problem = ""
        self._before: Mapping[str, Any] = {}
        self._written = 0.0
        self._next = 0.0

    def __enter__(self) -> Self:
        self._look("running")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write how the server ended."""
        self._written = -_LONGEST
        if error is None:
            self._look("running")
        elif isinstance(error, Exception):
            reason = error.message if isinstance(error, FedtailorError) else describe_error(error)
            self._look("failed", reason)
        else:
            self._look("stopped")

    def update(self) -> None:
        """Write what has changed, if the last look was long enough ago."""
        began = time.monotonic()
        if began >= self._next:
            self._look("running")
            now = time.monotonic()
            self._next = now + min(max(_SHORTEST, _PAUSE * (now - began)), _LONGEST)

    def _look(self, state: State, message: str = "") -> None:
        """Read the status, and write it unless the files say the same."""
        try:
            status = self._reader.read(state, message)
            content = {key: status[key] for key in status if key not in ("time", "seconds_left")}
            now = time.monotonic()
            if content != self._before or now - self._written >= _LONGEST:
                write_json(self._folder / STATUS_FILE, status, indent=1)
                write_whole(self._folder / PAGE_FILE, self._draw(status))
                self._before = content
                self._written = now
            self._problem = ""
        except Exception as error:  # it must not end the run
            problem = error.message if isinstance(error, FedtailorError) else describe_error(error)
            if problem != self._problem:
                self._say(f"the status page cannot be written: {problem}")
            self._problem = problem
