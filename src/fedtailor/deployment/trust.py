"""The roster that a site trusts: what is checked before it is pinned, and afterwards. No torch."""

from __future__ import annotations

from pathlib import Path

from fedtailor.core.atomic import write_whole
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.deployment.init import SITE_KEY
from fedtailor.deployment.keys import read_own_key
from fedtailor.deployment.options import SITE_FILE, SiteOptions, load_site
from fedtailor.deployment.roster import ROSTER_FILE, SiteRoster, read_roster, spell
from fedtailor.deployment.site_file import write_values


def acceptable_roster(folder: Path, path: Path, *, replace: bool) -> SiteRoster:
    """Read a roster that a site is to trust.

    Args:
        folder: of the site.
        path: the roster, as the server has sent it.
        replace: whether the site may trust another one now.

    Raises:
        ConfigError: the site trusts another one, or ``site.toml`` asks for more.
        DataError: the roster is damaged, this site is not in it with its own key, or this site
            has no key.
    """
    options = load_site(folder)
    roster = read_roster(path)
    _check_roster(folder, options, roster)

    trusted = options.privacy.roster
    if trusted and trusted != roster.pin and not replace:
        message = (
            f"this site trusts the roster {spell(trusted, short=True)}, and '{path}' is "
            f"{spell(roster.pin, short=True)}: compare both with the other sites, then --replace."
        )
        raise ConfigError(message, key="privacy.roster", path=path, allowed=trusted, got=roster.pin)

    return roster


def pin_roster(folder: Path, roster: SiteRoster) -> None:
    """Copy a roster into the folder of a site, and write its fingerprint into ``site.toml``.

    From then on, the site refuses plans without secure sums, unless ``site.toml`` allows them.

    Raises:
        RunError: a file cannot be written.
    """
    # A fingerprint without its roster is refused, a roster without its fingerprint is not used.
    write_whole(folder / ROSTER_FILE, roster.to_text())
    values = {"roster": roster.pin}
    missing = {"require_secure_sums": True}
    write_values(folder / SITE_FILE, "privacy", values, missing=missing)


def pinned_roster(folder: Path, options: SiteOptions) -> SiteRoster | None:
    """Return the roster that a site trusts, checked again; None if it trusts none.

    Raises:
        ConfigError: ``site.toml`` asks for more by now.
        DataError: its copy is missing, damaged, or another one, or has not this site's key.
    """
    pin = options.privacy.roster
    if not pin:
        return None

    path = folder / ROSTER_FILE
    roster = read_roster(path)
    if roster.pin != pin:
        message = (
            f"site.toml trusts the roster {spell(pin, short=True)}, and '{path}' is "
            f"{spell(roster.pin, short=True)}: 'fedtailor site trust' with the right one."
        )
        raise DataError(message, key="privacy.roster", path=path, allowed=pin, got=roster.pin)

    _check_roster(folder, options, roster)
    return roster


def describe_trust(folder: Path, options: SiteOptions) -> str:
    """Return in sentences what a site trusts and requires.

    Raises:
        ConfigError: it requires secure sums and trusts no roster, or asks for more than its roster.
        DataError: the roster cannot be used.
    """
    roster = pinned_roster(folder, options)
    required = options.privacy.require_secure_sums
    if roster is None:
        if required:
            message = "secure sums are required, and no roster is trusted: 'fedtailor site trust'."
            raise ConfigError(message, key="privacy.roster", allowed="a roster", got="none")
        return "no roster is trusted: the server sees what this site alone sends"

    names = f"the roster {spell(roster.pin, short=True)} of {len(roster.sites)} sites is trusted"
    if required:
        rule = "Plans without secure sums are refused."
    else:
        rule = "Plans without secure sums are allowed (require_secure_sums = false)."
    return f"{names}. {roster.describe()} {rule}"


def _check_roster(folder: Path, options: SiteOptions, roster: SiteRoster) -> None:
    """Refuse a roster that is not one for this site, or less strict than it asks for."""
    _check_own_key(folder, options.name, roster)
    count = len(roster.sites)
    options.privacy.check_sums("the roster", roster.fewest, roster.colluding, count)


def _check_own_key(folder: Path, name: str, roster: SiteRoster) -> None:
    """Refuse a roster in which somebody else has the place of this site."""
    point = read_own_key(folder / SITE_KEY).point
    names = [site.name for site in roster.sites]
    owner = next((site.name for site in roster.sites if site.key.point == point), None)
    if owner == name:
        return

    if owner is not None:
        problem = f"it calls the key of this site {owner}, and site.toml says {name}"
    elif name in names:
        problem = (
            f"its key of {name} is not that of this site: an older one, or exchanged on its way"
        )
    else:
        problem = f"{name} is not in it (a site that was added with --new is in no sum)"
    raise DataError(f"the roster is not one for this site: {problem}.", key="privacy.roster")
