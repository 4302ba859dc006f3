"""A site while it is connected: its processes, and what a person sees of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.deployment.flower.processes import SiteProcesses, explain
from fedtailor.deployment.init import CERTIFICATE, SITE_KEY, check_address
from fedtailor.deployment.options import FLOWER_FOLDER, SITE_FILE, load_site
from fedtailor.deployment.supervise import LogFile, NewLines

_PAUSE = 0.5
"""Seconds between two looks at the processes."""


def supervise_site(folder: Path, show: Callable[[str], None]) -> None:
    """Keep a site connected until it is interrupted; what stops is started again.

    Args:
        folder: of the site.
        show: is called with every sentence for a person.

    Raises:
        ConfigError: ``site.toml`` is wrong, or a file is missing.
        KeyboardInterrupt: the site was stopped.
        RunError: Flower is missing.
    """
    options = load_site(folder)
    _check_files(folder, options.server)
    _check_data(folder, options.data)
    host, port = check_address(options.server)
    log = LogFile(folder / "logs" / "site.log")

    def say(text: str) -> None:
        log.write(text)
        show(text)

    # The resident process writes its log into a file; its new lines are shown here.
    processes = SiteProcesses(folder, host, port, folder / CERTIFICATE, folder / SITE_KEY)
    path = folder / FLOWER_FOLDER / "resident.log"
    work = NewLines(path, start=path.stat().st_size if path.is_file() else 0)
    connection = ""
    try:
        processes.start()
        say(f"{options.name}: connecting to {options.server}")
        while True:
            for ended in processes.watch():
                say(f"{explain(ended)}; trying again in {ended.restart_in:.0f} s")

            # Said when it changes only.
            state = _connection(processes, options.server)
            if state not in ("", connection):
                connection = state
                say(state)

            for line in work.read():
                show(line.decode(errors="replace"))

            time.sleep(_PAUSE)
    finally:
        processes.stop()
        log.write("stopped")


def _check_files(folder: Path, server: str) -> None:
    """Check that a site knows its server, and has what it needs to connect.

    Raises:
        ConfigError: something is missing.
    """
    path = folder / SITE_FILE
    if not server:
        message = f"'{path}' does not say where the server is: server = \"host:port\"."
        allowed = "host:port"
        raise ConfigError(message, key="site.server", path=path, allowed=allowed, got="''")

    for name in (CERTIFICATE, SITE_KEY):
        path = folder / name
        if not path.is_file():
            message = f"'{path}' is missing: 'fedtailor site check' says where it comes from."
            raise ConfigError(message, key=name, path=path)


def _check_data(folder: Path, data: str) -> None:
    """Check that the data of a site are there: the server asks for them when a run begins.

    Raises:
        DataError: they are not.
    """
    path = folder / os.path.expanduser(data)
    if ":" not in data and not path.exists():
        message = f"the data of this site are not there: '{path}' ('data' in site.toml)."
        raise DataError(message, key="site.data", path=path)


def _connection(processes: SiteProcesses, server: str) -> str:
    """Return in words whether the site is connected; empty while that is not known."""
    problem = processes.problem()
    if problem is not None:
        return f"not connected to {server}: {problem}; trying again"
    return f"connected to {server}" if processes.is_connected() else ""
