"""The folder of a server: ``federation.toml``, who is registered, and the runs. No torch."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import safe_name, to_json, write_whole
from fedtailor.core.errors import ConfigError, DataError, did_you_mean
from fedtailor.core.reading import damaged, read_json
from fedtailor.deployment.options import FEDERATION_FILE
from fedtailor.experiment.records import holds_run

SITES_FILE = "sites.json"
RUNS = "runs"
"""Folder of the runs."""
_RUN = re.compile(r"\d{4,}")
_LONGEST_NAME = 100


class Registered(NamedTuple):
    """A site that may connect."""

    name: str
    key: str
    """Its public key, as one line of OpenSSH."""
    new: bool
    """Whether it never takes part in training: it gets a model when a run ends."""


class FederationFolder:
    """The folder of a server."""

    def __init__(self, path: Path) -> None:
        """Use a folder that ``fedtailor deploy init`` has made.

        Raises:
            ConfigError: it is another folder.
        """
        self.path = path
        if not (path / FEDERATION_FILE).is_file():
            message = (
                f"'{path}' holds no {FEDERATION_FILE}: make a folder with 'fedtailor deploy init'."
            )
            raise ConfigError(
                message, key="folder", path=str(path), allowed=FEDERATION_FILE, got="none"
            )

    def sites(self) -> list[Registered]:
        """Return the registered sites, in the order of a run: by name, new ones last.

        Raises:
            DataError: the file is damaged.
        """
        path = self.path / SITES_FILE
        if not path.is_file():
            return []

        record = read_json(path, within=self.path)
        try:
            found = [
                Registered(str(each["name"]), str(each["key"]), bool(each["new"]))
                for each in record["sites"]
            ]
        except (KeyError, TypeError) as reason:
            raise damaged(path, f"{type(reason).__name__}: {reason}") from reason

        return sorted(found, key=lambda site: (site.new, site.name))

    def register(self, site: Registered) -> None:
        """Add a site; it belongs to the runs that begin after this.

        Raises:
            ConfigError: the name or the key is taken, or the name is not usable.
        """
        known = self.sites()
        check_name(site.name)
        for other in known:
            if other.name == site.name:
                message = f"there is a site '{site.name}' already: choose another name."
                raise ConfigError(message, key="name", allowed="a new name", got=site.name)

            if other.key.split()[:2] == site.key.split()[:2]:
                message = (
                    f"this key is that of site '{other.name}' already: every site makes its own."
                )
                raise ConfigError(message, key="key", allowed="a new key", got=other.name)

        record = {"sites": [each._asdict() for each in [*known, site]]}
        write_whole(self.path / SITES_FILE, to_json(record, indent=2) + "\n")

    def remove(self, name: str) -> None:
        """Remove a site: it cannot connect any more once the server has been started again.

        Raises:
            ConfigError: there is no such site.
        """
        known = self.sites()
        kept = [each for each in known if each.name != name]
        if len(kept) == len(known):
            allowed = ", ".join(each.name for each in known) or "none"
            hint = did_you_mean(name, [each.name for each in known]) or "."
            message = f"there is no site '{name}'{hint} Registered: {allowed}."
            raise ConfigError(message, key="name", allowed=allowed, got=name)

        write_whole(
            self.path / SITES_FILE,
            to_json({"sites": [each._asdict() for each in kept]}, indent=2) + "\n",
        )

    def runs(self) -> list[Path]:
        """Return the folders of the runs, the oldest first."""
        place = self.path / RUNS
        found = sorted(place.iterdir()) if place.is_dir() else []
        return [path for path in found if _RUN.fullmatch(path.name) and holds_run(path)]

    def next_run(self) -> Path:
        """Return the folder for the next run, which does not exist yet."""
        numbers = [int(path.name) for path in self.runs()]
        return self.path / RUNS / f"{max(numbers, default=0) + 1:04d}"


def check_name(name: str) -> None:
    """Check the name of a site.

    Raises:
        ConfigError: it is not usable.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or safe_name(name) != name:
        allowed = f"1 to {_LONGEST_NAME} of the characters a-z A-Z 0-9 _ - . ~, without a dot at the start"
        message = f"the name of a site must be {allowed}, got {name!r:.120}{_similar_name(name)}"
        raise ConfigError(message, key="name", allowed=allowed, got=name)


def _similar_name(name: str) -> str:
    """Return ``"; how about 'x'?"`` with a usable name that looks like this one, or a full stop."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", errors="ignore").decode()
    usable = re.sub(r"[^A-Za-z0-9_.~-]+", "-", plain).strip("-.")[:_LONGEST_NAME]
    return f"; how about '{usable}'?" if usable else "."


def check_enough(sites: Sequence[Registered]) -> None:
    """Check that a run can begin with these sites.

    Raises:
        ConfigError: none of them trains.
    """
    if not any(not site.new for site in sites):
        message = "no site is registered that takes part in training: add one with 'fedtailor deploy add'."
        raise ConfigError(message, key="sites", allowed="1 or more", got=0)


def read_members(path: Path) -> list[dict[str, Any]]:
    """Read who takes part in a run.

    Raises:
        DataError: the file is missing or damaged.
    """
    record = read_json(path, within=path.parent)
    if not isinstance(record, dict) or not isinstance(record.get("members"), list):
        raise DataError(f"'{path}' is damaged: it names no members.", path=str(path))
    return list(record["members"])
