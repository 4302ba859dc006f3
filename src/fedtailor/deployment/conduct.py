"""Sites that have sent what no honest site sends: after three times, they are asked no more.

The file ``excluded.json`` of the server's folder says of each what it sent and when. There is none
where everybody is honest, whatever fails. ``fedtailor deploy allow FOLDER SITE`` forgets what a
site has done, also while the server runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import write_json
from fedtailor.core.errors import one_line, unknown_name
from fedtailor.core.reading import read_object
from fedtailor.deployment.federation_folder import FederationFolder

CONDUCT_FILE = "excluded.json"
MOST_OFFENCES = 3
"""After this many, a site is excluded."""


class Conduct(NamedTuple):
    """What the sites of a run have done wrong."""

    folder: Path
    """Of the server."""
    run: str
    """Name of the run's folder."""
    names: Sequence[str]
    """Of the sites, by number."""

    def note(self, client: int, stage: str, round: int, reason: str) -> None:
        """Note what a site has sent. A round that is done again counts once.

        Raises:
            DataError: the file of what is noted is damaged.
        """
        request = {"run": self.run, "round": round, "stage": stage}
        with FederationFolder(self.folder).changing():
            offences = read_offences(self.folder)
            mine = offences.setdefault(self.names[client], [])
            if not any(request.items() <= offence.items() for offence in mine):
                mine.append({**request, "reason": one_line(reason)})
                write_offences(self.folder, offences)

    def excluded(self) -> dict[int, str]:
        """Return the excluded sites by number, each with the reason."""
        reasons = excluded_sites(self.folder)
        return {client: reasons[name] for client, name in enumerate(self.names) if name in reasons}


def excluded_sites(folder: Path) -> dict[str, str]:
    """Return the excluded sites by name, each with the reason in one sentence."""
    reasons = {}
    for name, offences in read_offences(folder).items():
        if len(offences) >= MOST_OFFENCES:
            last = str(offences[-1].get("reason", "")).rstrip(".")
            reasons[name] = (
                f"excluded after {len(offences)} answers that no honest site gives; the last: "
                f"{last}. To ask it again: fedtailor deploy allow FOLDER {name}"
            )

    return reasons


def allow(folder: Path, name: str) -> int:
    """Forget what a site has done, and return how much that was.

    Raises:
        ConfigError: nothing is noted of it.
    """
    # A server may be noting the next one.
    with FederationFolder(folder).changing():
        offences = read_offences(folder)
        if name not in offences:
            raise unknown_name("site with wrong answers", name, sorted(offences), key="name")

        removed = offences.pop(name)
        write_offences(folder, offences)

    return len(removed)


def read_offences(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what is noted, by site.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / CONDUCT_FILE
    record = read_object(path, within=folder) if path.is_file() else {}
    return {str(name): list(offences) for name, offences in record.items()}


def write_offences(folder: Path, offences: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write what is noted."""
    write_json(folder / CONDUCT_FILE, offences, indent=2)
