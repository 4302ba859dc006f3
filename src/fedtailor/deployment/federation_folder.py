"""The folder of a server: ``federation.toml``, who is registered, the runs, and who is there.

No torch, because several commands only look at it.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import safe_name, write_json
from fedtailor.core.errors import ConfigError, DataError, unknown_name
from fedtailor.core.folders import lives, locked, this_process
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import content_of, read_object
from fedtailor.deployment.options import FEDERATION_FILE, FLOWER_FOLDER
from fedtailor.experiment.reader import holds_run

SITES_FILE = "sites.json"
ATTENDANCE_FILE = "attendance.json"
"""Who is there: the process of the round loop writes it, others read it."""
SERVING_FILE = "serving.json"
"""What the process of the round loop is to do: the run, and the nodes of the sites."""
APP_FILE = "app.json"
"""Which process runs the round loop, and how it ended."""
RUNS = "runs"
"""Folder of the runs."""
_NUMBER = re.compile(r"\d{4,}")
_LONGEST_NAME = 100


class Registered(NamedTuple):
    """A site that may connect."""

    name: str
    key: str
    """Its public key, as one line of OpenSSH."""
    new: bool
    """Whether it never takes part in training: it gets a model when a run ends."""
    paused: bool = False
    """Whether nothing is asked of it until it is resumed."""


class FederationFolder:
    """The folder of a server."""

    def __init__(self, path: Path) -> None:
        """Use a folder that ``fedtailor deploy init`` has made.

        Raises:
            ConfigError: it is another folder.
        """
        self.path = path
        if not (path / FEDERATION_FILE).is_file():
            hint = "make a folder with 'fedtailor deploy init'"
            message = f"'{path}' holds no {FEDERATION_FILE}: {hint}."
            allowed = FEDERATION_FILE
            raise ConfigError(message, key="folder", path=path, allowed=allowed, got="none")

    def sites(self) -> list[Registered]:
        """Return the registered sites, in the order of a run: by name, new ones last.

        Raises:
            DataError: the file is damaged.
        """
        sites = []
        with content_of(self.path / SITES_FILE):
            for record in self._register()["sites"]:
                site = Registered(
                    str(record["name"]),
                    str(record["key"]),
                    bool(record["new"]),
                    bool(record.get("paused", False)),
                )
                sites.append(site)

        return sorted(sites, key=lambda site: (site.new, site.name))

    def changing(self) -> AbstractContextManager[None]:
        """Keep other commands from changing the register while the block runs."""
        return locked(self.path)

    def register(self, site: Registered) -> None:
        """Add a site.

        Raises:
            ConfigError: the name is taken or not usable, or the key is or was that of a site.
        """
        sites = self.sites()
        check_name(site.name)
        for other in sites:
            if other.name == site.name:
                raise wrong_value("the name of a site", "a new name", site.name)

            # The comment of a key does not tell it from another.
            if other.key.split()[:2] == site.key.split()[:2]:
                message = f"this key is that of site '{other.name}': every site makes its own."
                raise ConfigError(message, key="key", allowed="a new key", got=other.name)

        # Flower takes no key again that it has forgotten.
        for removed in self._removed():
            if removed["key"].split()[:2] == site.key.split()[:2]:
                name = removed["name"]
                message = (
                    f"this key is that of site '{name}', which was removed, and no key is used "
                    "twice: the site must make a new one ('fedtailor site init', in a new folder)."
                )
                raise ConfigError(message, key="key", allowed="a new key", got=name)

        self._write_sites([*sites, site])

    def remove(self, name: str) -> None:
        """Remove a site: it cannot connect any more.

        Once the server has been started for the first time, its key is not used again. Before that,
        it can be registered again, such as under the right name.

        Raises:
            ConfigError: there is no such site.
        """
        sites = self.sites()
        removed = find_site(name, sites)
        is_known = (self.path / FLOWER_FOLDER).exists()
        remaining = [site for site in sites if site.name != name]
        self._write_sites(remaining, removed if is_known else None)

    def pause(self, name: str, *, paused: bool) -> None:
        """Pause a site, or let it take part again.

        Raises:
            ConfigError: there is no such site, or it is paused or takes part already.
        """
        sites = self.sites()
        site = find_site(name, sites)
        if site.paused == paused:
            state = "is paused already" if paused else "is not paused"
            raise ConfigError(f"site '{name}' {state}.", key="name", got=name)

        changed = site._replace(paused=paused)
        self._write_sites([changed if other.name == name else other for other in sites])

    def away(self, names: Sequence[str]) -> dict[int, str]:
        """Return which sites of a run take no part at the moment, and why.

        Args:
            names: of the sites, by number.
        """
        present = {site.name: site.paused for site in self.sites()}
        reasons = {}
        for number, name in enumerate(names):
            if name not in present:
                reasons[number] = "it was removed"
            elif present[name]:
                reasons[number] = "it was paused"

        return reasons

    def runs(self) -> list[Path]:
        """Return the folders of the runs, the oldest first."""
        return numbered_runs(self.path / RUNS)

    def next_run(self) -> Path:
        """Return the folder for the next run, which does not exist yet."""
        # Not the count: folders may have been moved away.
        numbers = [int(path.name) for path in self.runs()]
        return self.path / RUNS / f"{max(numbers, default=0) + 1:04d}"

    def _register(self) -> dict[str, Any]:
        """Return the content of the register, which is made when the first site is added."""
        path = self.path / SITES_FILE
        return read_object(path, within=self.path) if path.is_file() else {"sites": []}

    def _removed(self) -> list[dict[str, str]]:
        """Return names and keys of the sites that were removed."""
        with content_of(self.path / SITES_FILE):
            records = self._register().get("removed", ())
            return [{key: str(record[key]) for key in ("name", "key")} for record in records]

    def _write_sites(self, sites: Sequence[Registered], left: Registered | None = None) -> None:
        removed = self._removed()
        if left is not None:
            removed.append({"name": left.name, "key": left.key})

        record = {"sites": [site._asdict() for site in sites], "removed": removed}
        write_json(self.path / SITES_FILE, record, indent=2)


def numbered_runs(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder whose names are numbers, in their order."""
    paths = folder.iterdir() if folder.is_dir() else ()
    runs = [path for path in paths if _NUMBER.fullmatch(path.name) and holds_run(path)]
    return sorted(runs, key=lambda path: (int(path.name), path.name))


def find_site(name: str, sites: Sequence[Registered]) -> Registered:
    """Return the registered site with a name.

    Raises:
        ConfigError: there is none.
    """
    for site in sites:
        if site.name == name:
            return site

    raise unknown_name("site", name, [site.name for site in sites], key="name")


def check_name(name: str) -> None:
    """Check the name of a site.

    Raises:
        ConfigError: it is not usable.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or safe_name(name) != name:
        characters = "the characters a-z A-Z 0-9 _ - . ~, without a dot at the start"
        allowed = f"1 to {_LONGEST_NAME} of {characters}"
        raise wrong_value("the name of a site", allowed, name, _similar_name(name))


def _similar_name(name: str) -> str:
    """Return ``"How about 'x'?"`` with a usable name that looks like this one, or nothing."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", errors="ignore").decode()
    usable = re.sub(r"[^A-Za-z0-9_.~-]+", "-", plain).strip("-.")[:_LONGEST_NAME]
    return f"How about '{usable}'?" if usable else ""


def check_enough(sites: Sequence[Registered]) -> None:
    """Check that a run can begin with these sites.

    Raises:
        ConfigError: none of them trains.
    """
    if all(site.new for site in sites):
        hint = "Add one with 'fedtailor deploy add'."
        raise wrong_value("the number of sites that train", "1 or more", 0, hint)


def write_attendance(folder: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
    """Write who is there, by the name of the site."""
    record = {"process": this_process(), "time": time.time(), "sites": sites}
    write_json(folder / ATTENDANCE_FILE, record)


def read_attendance(folder: Path) -> dict[str, dict[str, Any]]:
    """Return who is there, by the name of the site; nothing if that is not known.

    While no server runs, no site is connected, and none is waited for.
    """
    try:
        record = read_object(folder / ATTENDANCE_FILE, within=folder)
    except DataError:
        return {}

    sites = record.get("sites")
    if not isinstance(sites, dict):
        return {}

    is_served = lives(record.get("process"))
    attendance = {}
    for name, site in sites.items():
        if isinstance(site, dict):
            # The file may be that of a server that was killed.
            absent = {} if is_served else {"online": False, "waiting_since": None}
            attendance[str(name)] = {**site, **absent}

    return attendance
