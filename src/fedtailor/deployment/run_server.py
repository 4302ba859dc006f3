"""A server while it serves: Flower's processes, the process of the round loop, and what a person
sees of both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedtailor.core.atomic import discard, to_json, write_whole
from fedtailor.core.errors import ConfigError, DataError, FedtailorError, RunError
from fedtailor.core.process import lives
from fedtailor.core.reading import read_lines, read_object
from fedtailor.deployment.attendance import read_attendance
from fedtailor.deployment.federation_folder import FederationFolder, Registered, check_enough
from fedtailor.deployment.init import KEYS, SERVER_CERTIFICATE
from fedtailor.deployment.keys import days_left
from fedtailor.deployment.log_file import LogFile
from fedtailor.deployment.options import FEDERATION_FILE, load_federation
from fedtailor.deployment.server import APP_FILE, OUTCOME_FILE, SERVING_FILE
from fedtailor.experiment.records import holds_run

_LOOK = 0.5
"""Seconds between two looks at the processes."""
_START = 120.0
"""Seconds that the process of the round loop may take to start."""
_MOST_STARTS = 5
"""Starts of that process without a round in between, after which there is no hope."""
_FEWEST_DAYS = 30
_ERRORS: Mapping[str, type[FedtailorError]] = {
    each.kind: each for each in (ConfigError, DataError, RunError)
}


class Messages(Protocol):
    """What a person sees of a server."""

    def say(self, text: str) -> None:
        """Say a sentence."""

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Say which run it is, and how many of its rounds are done."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Show a round that has ended."""

    def attendance(self, sites: Mapping[str, Mapping[str, Any]]) -> None:
        """Show who is there."""


def run_server(folder: Path, messages: Messages, *, new: bool = False) -> dict[str, Any]:
    """Serve until the run has finished, and return its result; the last run goes on if it has not
    finished.

    Args:
        folder: of the server.
        messages: are told what happens.
        new: whether to begin another run after one that has finished.

    Raises:
        ConfigError: the configuration is wrong, or no site is registered.
        DataError: the sites do not fit together.
        RunError: Flower is missing or does not start, or the run cannot go on.
    """
    place = FederationFolder(folder)
    file = load_federation(folder / FEDERATION_FILE)
    sites = place.sites()
    check_enough(sites)
    run = _choose_run(place, new=new)
    log = LogFile(folder / "logs" / "serve.log")
    told = _Logged(messages, log)
    _note_changes(folder, run, told)
    finished = _result_of(run)

    if finished is not None:
        told.say(f"the last run has finished: '{run}'. To begin another: --new.")
        return finished

    from fedtailor.deployment.flower.processes import ServerProcesses, explain

    options = file.deploy
    days = days_left(folder / KEYS / SERVER_CERTIFICATE)
    if days < _FEWEST_DAYS:
        told.say(
            f"the server's certificate ends in {days:.0f} days: fedtailor deploy renew {folder}"
        )

    processes = ServerProcesses(
        folder / "flower", folder / KEYS, options.listening_address, options.port
    )
    try:
        told.say(f"starting the server on {options.listening_address}, port {options.port}")
        processes.start()
        nodes = processes.register(_key_files(folder / "flower" / "sites", sites))
        told.say(f"{len(sites)} sites are registered: {', '.join(site.name for site in sites)}")
        watcher = _Watcher(folder, run, told)
        app = _App(folder, run, processes, nodes)
        app.start()

        while True:
            for ended in processes.watch():
                told.say(f"{explain(ended)}; it is started again")

            watcher.look()
            outcome = app.outcome()
            if outcome is not None:
                watcher.look()
                return _finish(outcome)

            if app.has_died():
                told.say(
                    "the process of the round loop has ended: it is started again, and goes on"
                )
                app.start_again(watcher.rounds)

            time.sleep(_LOOK)
    finally:
        processes.stop()


def _note_changes(folder: Path, run: Path, messages: Messages) -> None:
    """Say if federation.toml was changed since the run began, for only ``[deploy]`` counts then."""
    begun = run / FEDERATION_FILE
    if begun.is_file() and begun.read_bytes() != (folder / FEDERATION_FILE).read_bytes():
        messages.say(
            f"{FEDERATION_FILE} was changed since this run began. The run goes on as it began, but for [deploy]; the "
            "next run takes the changes."
        )


def has_finished(folder: Path) -> bool:
    """Return whether the last run of a server's folder has finished; False if there is none."""
    known = FederationFolder(folder).runs()
    return bool(known) and _result_of(known[-1]) is not None


def _key_files(folder: Path, sites: Sequence[Registered]) -> dict[str, Path]:
    """Write the public keys of the sites as files, and return where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for site in sites:
        files[site.name] = folder / f"{site.name}.pub"
        write_whole(files[site.name], site.key + "\n")
    return files


def _choose_run(place: FederationFolder, *, new: bool) -> Path:
    """Return the folder of the run that is served.

    Raises:
        ConfigError: a new run is asked for, and the last one has not finished.
    """
    known = place.runs()
    if not known:
        return place.next_run()
    if not new:
        return known[-1]

    if _result_of(known[-1]) is None:
        message = f"'{known[-1]}' has not finished: go on without --new, or move its folder away."
        raise ConfigError(message, key="new", path=str(known[-1]))

    return place.next_run()


def _result_of(run: Path) -> dict[str, Any] | None:
    if not holds_run(run) or not (run / "result.json").is_file():
        return None
    return {**read_object(run / "result.json", within=run), "run": str(run)}


def _finish(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an outcome.

    Raises:
        FedtailorError: the run could not go on.
    """
    error = outcome.get("error")
    if error is None:
        return dict(outcome["result"])

    raise _ERRORS.get(str(error.get("kind")), RunError)(
        str(error.get("message")),
        key=error.get("key"),
        path=error.get("path"),
        allowed=error.get("allowed"),
        got=error.get("got"),
    )


class _App:
    """The process of the round loop, which Flower starts."""

    def __init__(self, folder: Path, run: Path, processes: Any, nodes: Mapping[str, int]) -> None:
        self._folder = folder
        self._run = run
        self._processes = processes
        self._nodes = nodes
        self._submission = 0
        self._starts = 0
        self._rounds = -1
        self._started = 0.0
        self._flower_id = ""

    def start(self) -> None:
        """Ask Flower to start it."""
        self._submission += 1
        for name in (APP_FILE, OUTCOME_FILE):
            discard(self._folder / name)

        serving = {
            "submission": self._submission,
            "run": self._run.name,
            "nodes": {name: str(node) for name, node in self._nodes.items()},
        }
        write_whole(self._folder / SERVING_FILE, to_json(serving) + "\n")
        self._flower_id = self._processes.submit(self._folder)
        self._started = time.monotonic()

    def start_again(self, rounds: int) -> None:
        """Start it again after it has died.

        Raises:
            RunError: it died several times, and no round was done in between.
        """
        self._starts = 1 if rounds > self._rounds else self._starts + 1
        self._rounds = rounds
        if self._starts > _MOST_STARTS:
            log = self._folder / "flower" / "superexec.log"
            message = f"the process of the round loop has ended {self._starts} times without a round: see '{log}'."
            raise RunError(message, path=str(log))
        self.start()

    def outcome(self) -> Mapping[str, Any] | None:
        """Return how it ended; None if it has not ended by itself."""
        found = self._read(OUTCOME_FILE)
        return found if found.get("submission") == self._submission else None

    def has_died(self) -> bool:
        """Return whether it has ended without an outcome."""
        found = self._read(APP_FILE)
        if found.get("submission") == self._submission:
            return not lives(found.get("process")) and self.outcome() is None
        return time.monotonic() - self._started > _START

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return read_object(self._folder / name, within=self._folder)
        except DataError:  # it is not there yet
            return {}


class _Watcher:
    """Reads what the process of the round loop writes, and shows what is new."""

    def __init__(self, folder: Path, run: Path, messages: _Logged) -> None:
        self._folder = folder
        self._run = run
        self._messages = messages
        self._has_begun = False
        self.rounds = 0
        """Rounds that were shown."""
        self._events = 0

    def look(self) -> None:
        """Show what is new."""
        self._messages.attendance(read_attendance(self._folder))
        if not (self._run / "plan.json").is_file():
            return

        try:
            if not self._has_begun:
                self._begin()

            self._show_new()
        except DataError:  # a line is being written
            return

    def _begin(self) -> None:
        from fedtailor.experiment.config import load_config

        config = load_config(self._run / "experiment.toml")
        done = sum(1 for _ in self._lines("rounds.jsonl"))
        self.rounds = done
        self._events = sum(1 for _ in self._lines("events.jsonl")) if done else 0
        self._has_begun = True
        self._messages.begin(config.algorithm.name, config.schedule.rounds, done)

    def _show_new(self) -> None:
        events = list(self._lines("events.jsonl"))
        for event in events[self._events :]:
            self._messages.say(_in_words(event))
        self._events = max(self._events, len(events))
        for record in list(self._lines("rounds.jsonl"))[self.rounds :]:
            self._messages.round(record)
            self.rounds += 1

    def _lines(self, name: str) -> Any:
        path = self._run / name
        return read_lines(path, within=self._run) if path.is_file() else ()


def _in_words(event: Mapping[str, Any]) -> str:
    """Return an event of a run as a sentence."""
    if event.get("kind") == "note":
        return str(event.get("text"))
    where = f"round {event.get('round')}" if "round" in event else "run"
    who = f", site {event['client']}" if "client" in event else ""
    return f"{where}{who}: {event.get('kind')}, {event.get('reason', '')}"


class _Logged:
    """Messages that go to a person and into a log file."""

    def __init__(self, messages: Messages, log: LogFile) -> None:
        self._messages = messages
        self._log = log

    def say(self, text: str) -> None:
        self._log.write(text)
        self._messages.say(text)

    def begin(self, title: str, rounds: int, done: int) -> None:
        self._log.write(f"{title}: {done} of {rounds} rounds are done")
        self._messages.begin(title, rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        self._log.write(f"round {record['round']}: {sum(record['seconds'].values()):.1f} s")
        self._messages.round(record)

    def attendance(self, sites: Mapping[str, Mapping[str, Any]]) -> None:
        self._messages.attendance(sites)
