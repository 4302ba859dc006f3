"""A server while it serves: Flower's processes, the round loop, and what a person sees of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from fedtailor.core.atomic import discard, write_json
from fedtailor.core.errors import ConfigError, DataError, FedtailorError, RunError
from fedtailor.core.folders import lives
from fedtailor.core.reading import read_object
from fedtailor.deployment.federation_folder import (
    APP_FILE,
    SERVING_FILE,
    FederationFolder,
    check_enough,
    read_attendance,
)
from fedtailor.deployment.flower.processes import ServerProcesses, explain
from fedtailor.deployment.init import KEYS, SERVER_CERTIFICATE
from fedtailor.deployment.keys import days_left
from fedtailor.deployment.membership import names_of, refuse_unfinished
from fedtailor.deployment.options import FEDERATION_FILE, FLOWER_FOLDER, PLAN_FILE, load_federation
from fedtailor.deployment.status import LOG_FILE, PAGE_FILE, StatusFiles
from fedtailor.deployment.status_port import TOKEN_FILE, StatusPort
from fedtailor.deployment.supervise import LogFile, NewRecords
from fedtailor.experiment.config import load_config
from fedtailor.experiment.reader import CONFIG_FILE, holds_run, read_result

_PAUSE = 0.5
"""Seconds between two looks at the processes."""
_REGISTER_AGAIN = 60.0
"""Seconds until Flower is asked again to register sites, after it has refused."""
_START = 120.0
"""Seconds that the process of the round loop may take to start."""
_MOST_STARTS = 5
"""Starts of that process without a round in between; then the server gives up."""
_FEWEST_DAYS = 30
"""Days before the end of the certificate from which the server says so."""
_ERRORS: Mapping[str, type[FedtailorError]] = {
    error.kind: error for error in (ConfigError, DataError, RunError)
}


class ServeObserver(Protocol):
    """What a person sees of a server."""

    def say(self, text: str) -> None:
        """Say a sentence."""

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Say which run it is, and how many of its rounds are done."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Show a round that has ended."""

    def attendance(self, sites: Mapping[str, Mapping[str, Any]]) -> None:
        """Show who is there."""


def supervise_server(
    folder: Path,
    observer: ServeObserver,
    *,
    draw_status: Callable[[Mapping[str, Any]], str],
    status_port: int | None = None,
    new: bool = False,
    start: Path | None = None,
) -> dict[str, Any]:
    """Serve until the run has finished, and return its result.

    The last run continues if it has not finished.

    Args:
        folder: of the server.
        observer: is told what happens.
        draw_status: makes the page of a status.
        status_port: of this machine, where the status can be read; None: in files only.
        new: whether to begin another run after one that has finished.
        start: the folder of a finished run that the new one continues; None: of none.

    Raises:
        ConfigError: the configuration is wrong, or no site is registered.
        DataError: the sites do not fit together.
        RunError: Flower is missing or does not start, the port of the status cannot be used, or the
            run cannot continue.
    """
    if start is not None:
        refuse_unfinished(start)

    server_folder = FederationFolder(folder)
    deploy = load_federation(folder / FEDERATION_FILE).deploy
    check_enough(server_folder.sites())
    run = _choose_run(server_folder, new=new)
    logged = _Logged(observer, LogFile(folder / LOG_FILE))

    _say_changes(folder, run, logged)
    result = _result_of(run)
    if result is not None:
        logged.say(f"the last run has finished: '{run}'. To begin another: --new.")
        return result

    # Sites refuse a server whose certificate has ended.
    days = days_left(folder / KEYS / SERVER_CERTIFICATE)
    if days < _FEWEST_DAYS:
        hint = f"fedtailor deploy renew {folder}"
        logged.say(f"the server's certificate ends in {days:.0f} days: {hint}")

    host = deploy.listening_address
    with ExitStack() as stack:
        if status_port is not None:
            port = stack.enter_context(StatusPort(folder, status_port))
            observer.say(_where_status_is(folder, port))

        processes = ServerProcesses(folder / FLOWER_FOLDER, folder / KEYS, host, deploy.port)
        stack.callback(processes.stop)
        status = stack.enter_context(StatusFiles(folder, run, draw_status, logged.say))
        logged.say(f"the status of the run: {folder / PAGE_FILE}")

        logged.say(f"starting the server on {host}, port {deploy.port}")
        processes.start()

        # The folder of Flower is there, so from now on keys of removed sites are remembered.
        with server_folder.changing():
            sites = server_folder.sites()
        nodes = processes.register({site.name: site.key for site in sites})
        logged.say(f"{len(sites)} sites are registered: {', '.join(site.name for site in sites)}")
        app = _ServerApp(folder, run, processes, nodes, start)
        return _supervise(app, logged, status)


def _where_status_is(folder: Path, port: StatusPort) -> str:
    """Return the address of the status; the token is said once, when it is made."""
    token = port.token if port.is_new else f"..., with the token of {folder / TOKEN_FILE}"
    return f"the status at this machine: {port.address}?token={token}"


def _supervise(app: _ServerApp, observer: ServeObserver, status: StatusFiles) -> dict[str, Any]:
    """Keep the ServerApp, which runs the rounds, alive until it ends; return its result."""
    watcher = _Watcher(app.folder, app.run, observer)
    app.start()
    while True:
        for ended in app.processes.watch():
            observer.say(f"{explain(ended)}; it is started again")

        app.follow_register(observer)

        # First the outcome, so that everything before it is shown.
        outcome = app.outcome()
        watcher.show_news()
        status.update()
        if outcome is not None:
            return _result_or_error(outcome)

        if app.has_died():
            observer.say(f"{app.why_died()}: it is started again")
            app.start_again(watcher.rounds)

        time.sleep(_PAUSE)


def has_finished(folder: Path) -> bool:
    """Return whether the last run of a server's folder has finished; False if there is none."""
    runs = FederationFolder(folder).runs()
    return bool(runs) and _result_of(runs[-1]) is not None


def _say_changes(folder: Path, run: Path, observer: ServeObserver) -> None:
    """Say if federation.toml was changed since the run began: only ``[deploy]`` takes effect."""
    begun = run / FEDERATION_FILE
    if begun.is_file() and begun.read_bytes() != (folder / FEDERATION_FILE).read_bytes():
        observer.say(
            f"{FEDERATION_FILE} was changed since this run began. In this run, only [deploy] "
            "takes effect; the other changes count from the next run."
        )


def _choose_run(server_folder: FederationFolder, *, new: bool) -> Path:
    """Return the folder of the run that is served.

    Raises:
        ConfigError: a new run is asked for, and the last one has not finished.
    """
    runs = server_folder.runs()
    if runs and not new:
        return runs[-1]

    if runs and _result_of(runs[-1]) is None:
        hint = "continue it without --new, or move its folder away"
        message = f"'{runs[-1]}' has not finished: {hint}."
        raise ConfigError(message, key="new", path=str(runs[-1]))

    return server_folder.next_run()


def _result_of(run: Path) -> dict[str, Any] | None:
    return read_result(run) if holds_run(run) else None


def _result_or_error(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an outcome.

    Raises:
        FedtailorError: the run could not continue.
    """
    error = outcome.get("error")
    if error is None:
        return dict(outcome["result"])

    cls = _ERRORS.get(str(error.get("kind")), RunError)
    details = {name: error.get(name) for name in ("key", "path", "allowed", "got")}
    raise cls(str(error.get("message")), **details)


class _ServerApp:
    """The process of the round loop, which Flower starts.

    Both sides write files into the folder of the server: here what to do, there who does it, and
    how it ended.
    """

    def __init__(
        self,
        folder: Path,
        run: Path,
        processes: ServerProcesses,
        nodes: Mapping[str, int],
        start: Path | None,
    ) -> None:
        self.folder = folder
        self.run = run
        self.processes = processes
        self._nodes = nodes
        self._start = "" if start is None else str(start.resolve())
        self._registered = set(nodes)
        self._register_after = 0.0
        self._submission = 0
        self._starts = 0
        self._rounds = -1
        self._started = 0.0

    def start(self) -> None:
        """Ask Flower to start it."""
        # The number tells this process from an earlier one that may still write.
        self._submission += 1
        discard(self.folder / APP_FILE)
        self._write_serving()
        self.processes.submit(self.folder)
        self._started = time.monotonic()

    def follow_register(self, observer: ServeObserver) -> None:
        """Let in the sites that were added meanwhile."""
        sites = {site.name: site.key for site in FederationFolder(self.folder).sites()}
        if self._registered == set(sites) or time.monotonic() < self._register_after:
            return

        # Flower may be too busy just now, or refuse again and again.
        try:
            self._nodes = self.processes.register(sites, forget=False)
        except RunError as error:
            self._register_after = time.monotonic() + _REGISTER_AGAIN
            reason = error.message.rstrip(".")
            pause = f"{_REGISTER_AGAIN:.0f} s"
            observer.say(f"the register has changed, and {reason}; the next try is in {pause}")
            return

        self._registered = set(sites)
        self._write_serving()
        observer.say(f"{len(sites)} sites are registered: {', '.join(sites)}")

    def _write_serving(self) -> None:
        """Write what the process is to do; it reads the nodes again between rounds."""
        serving = {
            "submission": self._submission,
            "run": self.run.name,
            "start": self._start,
            "nodes": {name: str(node) for name, node in self._nodes.items()},
        }
        write_json(self.folder / SERVING_FILE, serving)

    def start_again(self, rounds: int) -> None:
        """Start it again after it has died.

        Raises:
            RunError: it died several times, and no round was done in between.
        """
        # A round in between shows that it works; then the count begins again.
        self._starts = 1 if rounds > self._rounds else self._starts + 1
        self._rounds = rounds
        if self._starts > _MOST_STARTS:
            log = self.folder / FLOWER_FOLDER / "superexec.log"
            times = f"{self._starts} times without a round"
            message = f"the process of the round loop has ended {times}: see '{log}'."
            raise RunError(message, path=log)

        self.start()

    def outcome(self) -> Mapping[str, Any] | None:
        """Return how it ended; None if it has not ended by itself."""
        app = self._app()
        return app if app is not None and ("result" in app or "error" in app) else None

    def has_died(self) -> bool:
        """Return whether it has ended without an outcome."""
        app = self._app()
        if app is None:
            return time.monotonic() - self._started > _START
        return not lives(app.get("process")) and self.outcome() is None

    def why_died(self) -> str:
        """Return in words what became of a process that has died."""
        what = "the process of the round loop"
        printed = self.processes.last_words()
        if self._app() is None:
            return f"{what} did not start within {_START:.0f} s ({printed})"
        return (
            f"{what} was killed, as for lack of memory, or has ended without a result ({printed})"
        )

    def _app(self) -> dict[str, Any] | None:
        """Return what the present process has written; None if it has not started yet."""
        try:
            app = read_object(self.folder / APP_FILE, within=self.folder)
        except DataError:
            return None
        return app if app.get("submission") == self._submission else None


class _Watcher:
    """Reads what the process of the round loop writes, and shows what is new."""

    def __init__(self, folder: Path, run: Path, observer: ServeObserver) -> None:
        self._folder = folder
        self._run = run
        self._observer = observer
        self._has_begun = False
        self._events = NewRecords(run / "events.jsonl")
        self._rounds = NewRecords(run / "rounds.jsonl")

    @property
    def rounds(self) -> int:
        """Rounds that were shown, or done before."""
        return self._rounds.count

    def show_news(self) -> None:
        """Show what is new."""
        self._observer.attendance(read_attendance(self._folder))

        # The plan is the last file that makes the folder.
        if not (self._run / PLAN_FILE).is_file():
            return

        try:
            if not self._has_begun:
                self._begin()
                self._has_begun = True

            # Sites may have joined.
            events = self._events.read_unseen()
            names = names_of(self._run) if events else ()
            for event in events:
                self._observer.say(_in_words(event, names))
            for record in self._rounds.read_unseen():
                self._observer.round(record)
        except DataError:  # a file that cannot be shown does not end a server
            return

    def _begin(self) -> None:
        """Say which run it is."""
        config = load_config(self._run / CONFIG_FILE)

        # Rounds of an earlier process were shown by that one.
        self._rounds.read_unseen()
        if self.rounds:
            self._events.read_unseen()

        self._observer.begin(config.algorithm.name, config.schedule.rounds, self.rounds)


def _in_words(event: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return an event of a run as a sentence, with the name of its site."""
    if event.get("kind") == "note":
        return str(event.get("text"))
    where = f"round {event['round']}" if "round" in event else "run"
    site = f", site {names[event['client']]}" if "client" in event else ""
    return f"{where}{site}: {event.get('kind')}, {event.get('reason', '')}"


class _Logged:
    """An observer that also writes a log file."""

    def __init__(self, observer: ServeObserver, log: LogFile) -> None:
        self._observer = observer
        self._log = log
        self.attendance = observer.attendance

    def say(self, text: str) -> None:
        self._log.write(text)
        self._observer.say(text)

    def begin(self, title: str, rounds: int, done: int) -> None:
        self._log.write(f"{title}: {done} of {rounds} rounds are done")
        self._observer.begin(title, rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        self._log.write(f"round {record['round']}: {sum(record['seconds'].values()):.1f} s")
        self._observer.round(record)
