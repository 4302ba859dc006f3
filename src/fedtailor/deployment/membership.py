"""Sites that come and go while a run is under way.

``fedtailor deploy add``, ``pause``, ``resume`` and ``remove`` change the register of the server.
Between two rounds, the server compares it with ``history.json`` of the run, and notes there what
has changed, and from which round on. This file comes before the round, so that a server that was
killed continues with the same sites. A simulation with the same ``federation.history`` has the same
bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import write_json
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.history import Change, ChangeKind, History
from fedtailor.core.reading import content_of, read_object
from fedtailor.deployment.conduct import excluded_sites
from fedtailor.deployment.federation_folder import FederationFolder, Registered, find_site
from fedtailor.deployment.options import PLAN_FILE
from fedtailor.experiment.config import load_config
from fedtailor.experiment.reader import (
    CONFIG_FILE,
    PROVENANCE_FILE,
    holds_run,
    read_provenance,
)

HISTORY_FILE = "history.json"
"""In the folder of a run: which sites came and went."""
_REGISTERED_AS = {"there": False, "paused": True}
"""Whether a site is registered as paused, by what it is in a run."""


class Member(NamedTuple):
    """A site of a run, and what it said of itself."""

    name: str
    new: bool
    share: tuple[str, ...]
    torch: str
    capability: str
    num_train: int = 0
    """Training examples; 1 if it has any, and does not say how many."""
    num_val: int = 0
    num_test: int = 0
    test_groups: int = 0
    """Groups, such as patients, of the test examples; without groups, each example is one."""
    counts_known: bool = True
    """Whether it says how many examples it has."""


class Membership:
    """The sites of a run over time."""

    def __init__(self, folder: FederationFolder, run: Path, names: Sequence[str]) -> None:
        """Continue what is noted.

        Args:
            folder: of the server.
            run: the folder of the run.
            names: of its sites, by number; those who have joined included.

        Raises:
            DataError: the note is damaged.
        """
        self._folder = folder
        self._run = run
        self._names = names
        self.lines = read_history(run)

    def update(self, round: int) -> bool:
        """Note which sites have gone or come back by a round that has not begun.

        Returns:
            Whether there are any.

        Raises:
            RunError: the note cannot be written.
        """
        history = History(self.lines, self._names)
        registered = {site.name: site.paused for site in self._folder.sites()}

        # An earlier process may have noted changes for a later round, and lost the rounds between.
        round = max([round, *history.rounds])
        changes = []
        for name, standing in zip(self._names, history.standing(round), strict=True):
            kind = _change(standing, registered.get(name))
            if kind is not None:
                changes.append(str(Change(round, kind, name)))

        if changes:
            self._write([*self.lines, *changes], read_joined(self._run))
        return bool(changes)

    def candidates(self) -> list[Registered]:
        """Return the sites that are registered and do not belong to the run yet."""
        excluded = excluded_sites(self._folder.path)
        candidates = []
        for site in self._folder.sites():
            is_able = not site.new and not site.paused and site.name not in excluded
            if is_able and site.name not in self._names:
                candidates.append(site)

        return candidates

    def join(self, round: int, member: Member) -> None:
        """Note that a site takes part from a round on that has not begun.

        Args:
            round: the first one.
            member: the site.

        Raises:
            RunError: the note cannot be written.
        """
        round = max([round, *History(self.lines, self._names).rounds])
        lines = [*self.lines, str(Change(round, "join", member.name))]
        self._write(lines, [*read_joined(self._run), member])

    def _write(self, lines: Sequence[str], joined: Sequence[Member]) -> None:
        record = {"changes": lines, "joined": [member._asdict() for member in joined]}
        write_json(self._run / HISTORY_FILE, record, indent=2)
        self.lines = tuple(lines)


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
    record = _read(run)
    with content_of(run / HISTORY_FILE):
        return tuple(str(line) for line in record.get("changes", ()))


def read_joined(run: Path) -> list[Member]:
    """Return the sites that have joined a run, in the order of their numbers.

    Raises:
        DataError: the file is damaged.
    """
    record = _read(run)
    with content_of(run / HISTORY_FILE):
        return [_read_member(member) for member in record.get("joined", ())]


def _read(run: Path) -> dict[str, Any]:
    """Return what is noted; nothing if nobody has come or gone."""
    path = run / HISTORY_FILE
    return read_object(path, within=run) if path.is_file() else {}


def register_site(folder: FederationFolder, site: Registered) -> None:
    """Register a site; it joins the run that is under way, if one is that can take it in.

    Raises:
        ConfigError: its name or key is taken or not usable, it has the name of a site that has left
            that run, or that run has secure sums.
    """
    with folder.changing():
        refuse_to_join(folder, site.name)
        folder.register(site)


def refuse_to_join(folder: FederationFolder, name: str) -> None:
    """Check that a site can be registered while a run is under way, if one is.

    Raises:
        ConfigError: it has the name of one that has left, or the run has secure sums.
    """
    run = unfinished_run(folder)
    if run is None:
        return

    if load_config(run / CONFIG_FILE).privacy.secure_sums:
        raise ConfigError(
            f"the secure sums of '{run}' are over the sites of a roster that all of them trust: "
            "let it finish, or give it up by moving its folder away. Then 'fedtailor deploy "
            "roster' and 'fedtailor site trust' again.",
            key="name",
            got=name,
        )

    is_registered = any(site.name == name for site in folder.sites())
    if not is_registered and name in names_of(run):
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
    with folder.changing():
        refuse_too_few(folder, name)
        folder.pause(name, paused=True)


def resume_site(folder: FederationFolder, name: str) -> None:
    """Ask a paused site again.

    Raises:
        ConfigError: there is no such site, or it is not paused.
    """
    with folder.changing():
        folder.pause(name, paused=False)


def remove_site(folder: FederationFolder, name: str) -> None:
    """Remove a site.

    Raises:
        ConfigError: there is no such site, or too few would be left for a round.
    """
    with folder.changing():
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

    training = [member.name for member in members_of(run) if member.num_train > 0]
    left = []
    for other in folder.sites():
        is_there = not (other.new or other.paused)
        if is_there and other.name in training and other.name != name:
            left.append(other.name)

    needed = _fewest_sites(run)
    if name in training and len(left) < needed:
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


def refuse_unfinished(run: Path) -> None:
    """Check that a folder is that of a run across sites that has finished.

    Raises:
        ConfigError: it is not.
    """
    is_run = holds_run(run) and (run / PLAN_FILE).is_file()
    if not is_run or not (run / "result.json").is_file():
        raise ConfigError(
            f"'{run}' cannot be continued: it is not the folder of a run across sites that has "
            "finished.",
            key="from",
            path=run,
            allowed="a folder such as FOLDER/runs/0001",
            got=str(run),
        )


def names_of(run: Path) -> list[str]:
    """Return the names of the sites of a run, by number, those who have joined included.

    Raises:
        DataError: a file is damaged.
    """
    return [member.name for member in members_of(run)]


def members_of(run: Path) -> list[Member]:
    """Return the sites of a run, by number, those who have joined included.

    Raises:
        DataError: a file is damaged.
    """
    with content_of(run / PROVENANCE_FILE):
        members = [_read_member(record) for record in read_provenance(run)["sites"]]

    # Those who joined come into the provenance a moment later than into the history.
    names = {member.name for member in members}
    return [*members, *(member for member in read_joined(run) if member.name not in names)]


def _read_member(record: Mapping[str, Any]) -> Member:
    """Return the site of a record that ``Member._asdict`` has made."""
    values = {
        **record,
        "name": str(record["name"]),
        "num_train": int(record["num_train"]),
        "share": tuple(record["share"]),
    }
    return Member(**values)


def joins_run(folder: FederationFolder, name: str) -> bool:
    """Return whether a registered site takes part in the run under way, or joins it."""
    run = unfinished_run(folder)
    if run is None or find_site(name, folder.sites()).new:
        return False
    if name in names_of(run):
        return True

    # It imports torch, which other commands do without.
    from fedtailor.deployment.plan import read_plan_of

    # A run of another version, or of a method that is not here, cannot be continued here.
    try:
        return read_plan_of(run / PLAN_FILE).admits
    except (ConfigError, DataError):
        return False


def _fewest_sites(run: Path) -> int:
    """Return how many sites that train a round of a run needs."""
    config = load_config(run / CONFIG_FILE)
    fewest = config.schedule.fewest_members
    if config.privacy.secure_sums:
        # They need torch and the package cryptography, which other commands do without.
        from fedtailor.deployment.roster import ROSTER_FILE, read_roster
        from fedtailor.deployment.secure_sums import MASKS

        roster = run / MASKS / ROSTER_FILE
        if roster.is_file():
            trusted = read_roster(roster)
            fewest = max(fewest, trusted.fewest, trusted.threshold)

    return fewest
