"""The roster of a federation: names and public keys of its sites, which every site pins itself.

Secure sums rest on it. A server that could invent sites would know all values of a sum but one. So
a roster has one fingerprint, which people compare, and a site takes part only with the sites of the
roster that it has pinned. No torch, because several commands only look at it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import to_json, write_whole
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.reading import UNEXPECTED, damaged, is_missing, read_file, strict_json
from fedtailor.deployment.federation_folder import FederationFolder, check_name
from fedtailor.deployment.keys import PublicKey, parse_public_key
from fedtailor.deployment.options import FEDERATION_FILE, load_federation
from fedtailor.privacy.masks.primitives import digest_of, pack
from fedtailor.privacy.masks.session import Session
from fedtailor.privacy.options import colluding_of, threshold_of

ROSTER_FILE = "roster.json"
"""In the folder of a site: the roster that it has pinned."""

_FORMAT = 1
_LARGEST = 2**24
"""Bytes of a roster."""
_LARGEST_NUMBER = 2**32 - 1
"""The largest number that a fingerprint covers."""
_PREFIX = "sha256:"
_GROUP = 4
"""Hex digits of a group of a fingerprint."""
_SHORT = 4 * _GROUP


class RosterSite(NamedTuple):
    """A site of a roster; its place is its number."""

    name: str
    key: PublicKey


@dataclass(frozen=True)
class SiteRoster:
    """The sites of a federation, and how many of them may fail to answer or to be honest."""

    sites: tuple[RosterSite, ...]
    """In the order of their names, so that the number of a site is that of a run."""
    colluding: int
    """How many of them may work with the server."""
    smallest_sum: int
    """Sites that a sum is over at least, as the server says; see :attr:`fewest`."""

    @property
    def threshold(self) -> int:
        """Sites that must answer before a sum is opened."""
        return threshold_of(len(self.sites), self.colluding)

    @property
    def fewest(self) -> int:
        """Sites that a sum is over at least: two of them do not work with the server."""
        return max(self.smallest_sum, self.colluding + 2)

    def session(self, run: str, smallest: int = 0) -> Session:
        """Return a run as masks know it; ``smallest``: a larger sum that a site asks for."""
        points = tuple(site.key.point for site in self.sites)
        return Session(run, points, self.threshold, self.colluding, max(self.fewest, smallest))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all that the roster says: points, names, and the three numbers."""
        numbers = (self.colluding, self.threshold, self.smallest_sum)
        points = [site.key.point for site in self.sites]
        names = [site.name.encode() for site in self.sites]
        return digest_of("roster", *points, *names, *map(pack, numbers))

    @property
    def pin(self) -> str:
        """The digest as ``site.toml`` has it: ``sha256:`` and 64 hex digits."""
        return _PREFIX + self.digest.hex()

    def to_text(self) -> str:
        """Return the roster as JSON; :func:`read_roster` reads it."""
        record = {
            "format": _FORMAT,
            "sites": [{"name": site.name, "key": site.key.text} for site in self.sites],
            "colluding": self.colluding,
            "threshold": self.threshold,
            "smallest_sum": self.smallest_sum,
        }
        return to_json(record, indent=2) + "\n"

    def summary(self) -> dict[str, Any]:
        """Return what the commands print as JSON."""
        return {
            "sites": [site.name for site in self.sites],
            "fingerprint": self.pin,
            "colluding": self.colluding,
            "threshold": self.threshold,
            "smallest_sum": self.fewest,
        }

    def describe(self) -> str:
        """Return in sentences what its numbers mean."""
        count = len(self.sites)
        helpers = f"{self.colluding or 'none'} may work with the server"
        sentences = [
            f"Sums over at least {self.fewest} sites; {self.threshold} of {count} sites must "
            f"answer; {helpers}."
        ]
        if self.fewest == count:
            sentences.append(f"No site may miss a round: the sum of {count - 1} is refused.")
        if self.fewest == 2:
            sentences.append("Of a sum over two sites, each of the two knows the other's value.")

        return " ".join(sentences)


def spell(pin: str, *, short: bool = False) -> str:
    """Return a fingerprint as people compare it: groups of four hex digits, upper case.

    Args:
        pin: ``sha256:`` and the hex digits.
        short: whether to show its beginning only.

    Example:
        >>> spell("sha256:4f2a91c077de0b13aa")
        '4F2A 91C0 77DE 0B13 AA'
    """
    digits = pin.removeprefix(_PREFIX).upper()
    shown = digits[:_SHORT] if short else digits
    groups = [shown[start : start + _GROUP] for start in range(0, len(shown), _GROUP)]
    return " ".join([*groups, "..."] if short else groups)


def parse_fingerprint(text: str) -> str | None:
    """Return a fingerprint that a person has typed in the form of a pin; None if it is none.

    Blanks, capitals and ``sha256:`` do not matter.
    """
    digits = "".join(text.lower().split()).removeprefix(_PREFIX)
    is_whole = len(digits) == 64 and set(digits) <= set("0123456789abcdef")
    return _PREFIX + digits if is_whole else None


def roster_of(folder: FederationFolder) -> SiteRoster:
    """Return the roster of the sites that train, with the numbers of ``federation.toml``.

    Sites that were registered as new take part in no sum, and so are not in it.

    Raises:
        ConfigError: ``federation.toml`` is wrong, or a sum needs more sites than there are.
        DataError: a file of the folder is damaged.
    """
    privacy = load_federation(folder.path / FEDERATION_FILE).config.privacy
    registered = [site for site in folder.sites() if not site.new]
    count = len(registered)
    colluding = colluding_of(count, privacy.colluding)
    fewest = max(privacy.smallest_sum, colluding + 2)
    if count < fewest:
        raise ConfigError(
            f"a sum is over {fewest} sites at least (privacy.smallest_sum, privacy.colluding + 2), "
            f"and '{folder.path}' has {count} that train: register more with 'fedtailor deploy "
            "add'.",
            key="privacy.smallest_sum",
            allowed=f"{count} or less",
            got=fewest,
        )

    sites = []
    for site in registered:
        key = parse_public_key(site.key.encode())
        if key is None:
            raise damaged(folder.path, f"the key of {site.name} is not the public key of a site")
        sites.append(RosterSite(site.name, key))

    return SiteRoster(tuple(sites), colluding, privacy.smallest_sum)


def write_roster(path: Path, roster: SiteRoster, *, replace: bool) -> None:
    """Write a roster; the same one may be there already.

    Args:
        path: the file.
        roster: to write.
        replace: whether another roster may be overwritten. Other files never are.

    Raises:
        ConfigError: there is another roster.
        DataError: there is another file.
        RunError: the file cannot be written.
    """
    try:
        other = read_roster(path)
    except DataError as error:
        if not is_missing(error):
            message = f"'{path}' is not a roster, and is not overwritten: {error.message}"
            raise DataError(message, path=path) from error
    else:
        if other != roster and not replace:
            spelled = spell(other.pin, short=True)
            message = f"'{path}' holds another roster ({spelled}): --replace overwrites it."
            raise ConfigError(message, key="out", path=path, got=other.pin)

    write_whole(path, roster.to_text())


def read_roster(path: Path) -> SiteRoster:
    """Read a roster; it may come from a stranger.

    Raises:
        DataError: the file cannot be read, or is not a roster as :func:`write_roster` writes it.
    """
    raw = read_file(path, limit=_LARGEST)
    try:
        record = strict_json(raw.decode())
    except (ValueError, RecursionError) as reason:
        raise damaged(path, str(reason)) from reason

    another = damaged(path, "it is not what 'fedtailor deploy roster' writes")
    try:
        sites = tuple(_read_site(site, path) for site in record["sites"])
        roster = SiteRoster(sites, int(record["colluding"]), int(record["smallest_sum"]))
        text = to_json(record, indent=2) + "\n"
    except UNEXPECTED as reason:  # fields are missing, or of other types
        raise another from reason

    # Another format or threshold, other fields, and comments of keys would be in no fingerprint.
    if text != roster.to_text():
        raise another

    _check_roster(roster, path)
    return roster


def _read_site(record: Any, path: Path) -> RosterSite:
    name = record["name"]
    try:
        check_name(name)
    except ConfigError as error:
        raise damaged(path, error.message) from error

    key = parse_public_key(record["key"].encode())
    if key is None:
        raise damaged(path, f"the key of {name} is not the public key of a site")
    return RosterSite(name, key)


def _check_roster(roster: SiteRoster, path: Path) -> None:
    names = [site.name for site in roster.sites]
    for name, count in Counter(names).items():
        if count > 1:
            raise damaged(path, f"{count} sites are called {name}")

    if names != sorted(names):
        raise damaged(path, "its sites are not in the order of their names")

    owners: dict[bytes, str] = {}
    for site in roster.sites:
        other = owners.setdefault(site.key.point, site.name)
        if other != site.name:
            raise damaged(path, f"{other} and {site.name} have the same key")

    # Before any message names a number, which may have thousands of digits.
    if max(roster.smallest_sum, roster.colluding) > _LARGEST_NUMBER:
        raise damaged(path, f"smallest_sum and colluding must be at most {_LARGEST_NUMBER}")
    if roster.smallest_sum < 2 or roster.colluding < 0:
        raise damaged(path, "smallest_sum must be at least 2, and colluding at least 0")

    count = len(names)
    if roster.fewest > count:
        raise damaged(path, f"it has {count} sites, and a sum is over {roster.fewest} at least")
