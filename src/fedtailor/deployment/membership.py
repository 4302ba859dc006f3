"""Sites that come and go while a run is under way.

``fedtailor deploy pause``, ``resume`` and ``remove`` change the register of the server. Between two
rounds, the server compares it with ``history.json`` of the run, and notes there what has changed,
and from which round on. This file comes before the round, so that a server that was killed goes on
with the same sites. A simulation with the same ``federation.history`` has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtailor.core.atomic import to_json, write_whole
from fedtailor.core.errors import ConfigError
from fedtailor.core.history import Change, ChangeKind, History
from fedtailor.core.reading import content_of, read_object
from fedtailor.deployment.federation_folder import FederationFolder, find_site
from fedtailor.deployment.options import PLAN_FILE
from fedtailor.experiment.config import load_config
from fedtailor.experiment.reader import CONFIG_FILE, PROVENANCE_FILE, read_provenance

HISTORY_FILE = "history.json"
"""In the folder of a run: which sites came and went."""
_REGISTERED_AS = {"there": False, "paused": True}
"""Whether a site is registered as paused, by what it is in a run."""


class Membership:
    """The sites of a run over time."""

    def __init__(self, folder: FederationFolder, run: Path, names: Sequence[str]) -> None:
        """Continue what is noted.

        Args:
            folder: of the server.
            run: the folder of the run.
            names: of its sites, by number.

        Raises:
            DataError: the note is damaged.
        """
        self._folder = folder
        self._run = run
        self._names = names
        self.lines = read_history(run)

    def update(self, round: int) -> bool:
        """Note which sites have come and gone by a round that has not begun; return whether any.

        Raises:
            RunError: the note cannot be written.
        """
        history = History(self.lines, self._names)
        registered = {site.name: site.paused for site in self._folder.sites()}

        # An earlier process may have noted changes for a later round, and lost the rounds between.
        round = max([round, *history.rounds])
        changes = []
        for number, name in enumerate(self._names):
            kind = _change(history.standing(number), registered.get(name))
            if kind is not None:
                changes.append(str(Change(round, kind, name)))

        if changes:
            self.lines = (*self.lines, *changes)
            write_whole(self._run / HISTORY_FILE, to_json({"changes": self.lines}, indent=2) + "\n")
        return bool(changes)


def _change(standing: str, paused: bool | None) -> ChangeKind | None:
    """Return what became of a site; ``paused`` is None if it is not registered any more."""
    if standing == "gone" or paused == _REGISTERED_AS[standing]:
        return None
    if paused is None:
        return "leave"
    return "pause" if paused else "resume"


def read_history(run: Path) -> tuple[str, ...]:
    """Return which sites of a run came and went, as lines of ``federation.history``.

    Raises:
        DataError: the file is damaged.
    """
    path = run / HISTORY_FILE
    if not path.is_file():
        return ()

    with content_of(path):
        return tuple(str(line) for line in read_object(path, within=run)["changes"])


def refuse_taken_name(folder: FederationFolder, name: str) -> None:
    """Check that a new site does not have the name of one that has left the run under way.

    Raises:
        ConfigError: it has.
    """
    run = unfinished_run(folder)
    is_registered = any(site.name == name for site in folder.sites())
    if run is not None and not is_registered and name in names_of(run):
        raise ConfigError(
            f"site '{name}' was removed from '{run}', which keeps its number: choose another name, "
            "or wait until this run has finished.",
            key="name",
            allowed="a new name",
            got=name,
        )


def pause_site(folder: FederationFolder, name: str) -> None:
    """Ask a site no more until it is resumed.

    Raises:
        ConfigError: there is no such site, it is paused, or too few would be left for a round.
    """
    refuse_too_few(folder, name)
    folder.pause(name, paused=True)


def remove_site(folder: FederationFolder, name: str) -> None:
    """Remove a site for good.

    Raises:
        ConfigError: there is no such site, or too few would be left for a round.
    """
    refuse_too_few(folder, name)
    folder.remove(name)


def refuse_too_few(folder: FederationFolder, name: str) -> None:
    """Check that the unfinished run, if there is one, can go on without a site.

    Raises:
        ConfigError: too few sites that train would be left, or there is no such site.
    """
    site = find_site(name, folder.sites())
    run = unfinished_run(folder)
    if run is None or site.new or site.paused:
        return

    left = []
    names = names_of(run)
    for other in folder.sites():
        if other.name in names and other.name != name and not (other.new or other.paused):
            left.append(other.name)

    needed = _fewest_sites(run)
    if name in names and len(left) < needed:
        raise ConfigError(
            f"without '{name}', {len(left)} sites would take part in '{run}', and its rounds need "
            f"{needed}: let it finish, or give it up by moving its folder away.",
            key="name",
            allowed=f"{needed} sites or more",
            got=len(left),
        )


def unfinished_run(folder: FederationFolder) -> Path | None:
    """Return the folder of the run that is under way; None if there is none."""
    runs = folder.runs()
    if not runs or not (runs[-1] / PLAN_FILE).is_file() or (runs[-1] / "result.json").is_file():
        return None
    return runs[-1]


def names_of(run: Path) -> list[str]:
    """Return the names of the sites of a run, by number.

    Raises:
        DataError: a file is damaged.
    """
    with content_of(run / PROVENANCE_FILE):
        return [str(site["name"]) for site in read_provenance(run)["sites"]]


def _fewest_sites(run: Path) -> int:
    """Return how many sites that train a round of a run needs."""
    config = load_config(run / CONFIG_FILE)
    fewest = config.schedule.fewest_members
    if config.privacy.secure_sums:
        # Most runs have no secure sums, and do not need the package cryptography.
        from fedtailor.deployment.roster import ROSTER_FILE, read_roster
        from fedtailor.deployment.secure_sums import MASKS

        roster = run / MASKS / ROSTER_FILE
        if roster.is_file():
            trusted = read_roster(roster)
            fewest = max(fewest, trusted.fewest, trusted.threshold)

    return fewest
