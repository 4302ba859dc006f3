"""A site while it is connected: its processes, and what a person sees of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedtailor.core.errors import ConfigError
from fedtailor.deployment.audit import write_page
from fedtailor.deployment.init import CERTIFICATE, SITE_KEY, check_address
from fedtailor.deployment.log_file import LogFile
from fedtailor.deployment.options import SITE_FILE, load_site

if TYPE_CHECKING:
    from fedtailor.deployment.flower.processes import SiteProcesses

_LOOK = 0.5
"""Seconds between two looks at the processes."""


class Messages(Protocol):
    """What a person sees of a site."""

    def say(self, text: str) -> None:
        """Say a sentence."""


def run_site(folder: Path, messages: Messages) -> None:
    """Keep a site connected until it is interrupted; what stops is started again.

    Raises:
        ConfigError: ``site.toml`` is wrong, or a file is missing.
        KeyboardInterrupt: the site was stopped.
        RunError: Flower is missing.
    """
    options = load_site(folder)
    if not options.server:
        message = (
            f"'{folder / SITE_FILE}' does not say where the server is: server = \"host:port\"."
        )
        raise ConfigError(
            message,
            key="site.server",
            path=str(folder / SITE_FILE),
            allowed="host:port",
            got="nothing",
        )

    host, port = check_address(options.server)
    for name in (CERTIFICATE, SITE_KEY):
        if not (folder / name).is_file():
            message = (
                f"'{folder / name}' is missing: 'fedtailor site check' says where it comes from."
            )
            raise ConfigError(message, key=name, path=str(folder / name))

    from fedtailor.deployment.flower.processes import SiteProcesses, explain

    log = LogFile(folder / "logs" / "site.log")

    def say(text: str) -> None:
        log.write(text)
        messages.say(text)

    processes = SiteProcesses(folder, host, port, folder / CERTIFICATE, folder / SITE_KEY)
    work = _NewLines(folder / "flower" / "resident.log")
    said = ""
    try:
        processes.start()
        say(f"{options.name}: connecting to {options.server}")
        while True:
            for ended in processes.watch():
                say(f"{explain(ended)}; trying again in {ended.restart_in:.0f} s")

            state = _state(processes, options.server)
            if state not in ("", said):
                said = state
                say(state)

            for line in work.read():
                messages.say(line)

            time.sleep(_LOOK)
    finally:
        processes.stop()
        write_page(folder, options.name, options.share)
        log.write("stopped")


def _state(processes: SiteProcesses, server: str) -> str:
    """Return in words whether the site is connected; nothing while that is not known."""
    problem = processes.problem()
    if problem is not None:
        return f"not connected to {server}: {problem}; trying again"
    return f"connected to {server}" if processes.is_connected() else ""


class _NewLines:
    """The lines that are appended to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = path.stat().st_size if path.is_file() else 0

    def read(self) -> list[str]:
        """Return the whole lines since the last call."""
        if not self._path.is_file():
            return []

        size = self._path.stat().st_size
        if size < self._place:  # the file was replaced by a new one
            self._place = 0

        with self._path.open("rb") as file:
            file.seek(self._place)
            raw = file.read()

        end = raw.rfind(b"\n") + 1
        self._place += end
        return raw[:end].decode(errors="replace").splitlines()
