"""The two files that people write: ``federation.toml`` at the server, ``site.toml`` at a site.

No torch, because several commands only look at them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range, build, check_options, wrong_value
from fedtailor.core.schedule import spell_baselines
from fedtailor.data.columns import Decimal
from fedtailor.deployment.policy import PER_SITE, SitePolicy
from fedtailor.deployment.site_privacy import SitePrivacy
from fedtailor.experiment.config import (
    Config,
    check_section,
    make_config,
    read_settings,
    with_tuples,
)

T = TypeVar("T")

FEDERATION_FILE = "federation.toml"
FLOWER_FOLDER = "flower"
"""Of Flower's programs, in the folder of a server or a site; the first start makes it."""
SITE_FILE = "site.toml"
PLAN_FILE = "plan.json"
"""In the folder of a run across sites: what server and sites have agreed on."""

_Shared = Literal["scores", "metrics", "single", "errors", "verdict"]
SHARED: tuple[str, ...] = get_args(_Shared)
"""What a site may share beside the messages of the method."""
_ONE_MACHINE_ONLY = {
    "partition": "every site is one client",
    "clients": "every registered site is a client",
    "new_clients": "'fedtailor deploy add --new' registers a new site",
    "folds": "a federation of real sites trains once; 'fedtailor run' has folds",
    "fold": "a federation of real sites trains once; 'fedtailor run' has folds",
    "subset": "it chooses among the examples of all sites",
    "subsampling": "it draws for all sites in turn",
    "shift": "it corrupts images for a study",
    "split": "it names examples of all sites",
}
"""Keys of ``[data]`` that need the data of all sites, and why they have no place here."""


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """The ``[deploy]`` section of ``federation.toml``; it does not change what a site computes."""

    host: str = "localhost"
    """Name or address under which sites reach the server."""
    port: Annotated[int, Range(ge=1, le=65535)] = 8000
    """Port of the server."""
    listen: str = ""
    """Address on which the server listens; empty: all of the machine's, or only its own if ``host``
    is local."""
    deadline: Annotated[float, Range(gt=0, le=86400)] = 300.0
    """Seconds after which a round continues without the sites that have not answered."""
    quorum: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of the asked sites that must have answered before the others are given only ``grace``
    seconds more."""
    grace: Annotated[float, Range(ge=0, le=86400)] = 10.0
    """Seconds that the others are given then."""
    resend: Annotated[float, Range(gt=0, le=86400)] = 20.0
    """Seconds after which a request is sent again to a site that has not answered; each time after
    twice as long.

    If the request is known to be lost, the first wait counts again. A site answers twice the same.
    """
    allow_mixed: bool = False
    """Whether sites may have other versions of torch. Then the last bits of results depend on who
    computed them."""
    classes: tuple[str, ...] = ()
    """Names of all classes, in order; empty: those that the sites have, sorted."""

    @property
    def listening_address(self) -> str:
        """The address on which the server listens."""
        if self.listen:
            return self.listen
        if ":" in self.host:  # IPv6
            return "::1" if self.host == "::1" else "::"
        return "127.0.0.1" if self.host in ("localhost", "127.0.0.1") else "0.0.0.0"

    def __post_init__(self) -> None:
        check_options(self, owner="deploy")
        if len(set(self.classes)) < len(self.classes):
            raise wrong_value("deploy.classes", "different names", self.classes)


@dataclass(frozen=True, kw_only=True)
class SiteOptions:
    """What ``site.toml`` says: everything that is the site's own decision."""

    name: str
    """Of the site, as it is registered at the server."""
    data: str
    """Its labelled data: everything that ``data.path`` can be; a relative path begins at the site's
    folder."""
    server: str = ""
    """Where the server is: ``host:port``."""
    label_column: str = ""
    """Of a table: the column with the class; empty: the one whose name says so."""
    group: str = ""
    """Which examples must stay together, such as those of a patient; see ``data.group``."""
    decimal: Decimal = "auto"
    """What a comma in a number of its tables is, see ``data.decimal``; auto: as the server says."""
    share: tuple[_Shared, ...] = ("scores", "metrics")
    """What the server may see beside the messages of the method. In a run with secure sums, scores
    and metrics are summed over sites; ``single``: it sees those of this site too, and how many
    examples it has."""
    baselines: str = "auto"
    """What the site would use alone, to which it compares its model: names with commas, ``none``,
    or ``auto``, which means all."""
    fallback: Literal["personal", "best"] = "personal"
    """Which model the site uses: ``serve.fallback`` of a simulation, for models made from now
    on."""
    algorithms: tuple[str, ...] = ()
    """Methods that the site runs; empty: all of fedtailor's. Your own must be named:
    ``package.module:Class``."""
    models: tuple[str, ...] = ()
    """Models that the site trains; empty: all of fedtailor's. Your own must be named:
    ``package.module:function``."""
    encoders: tuple[str, ...] = ()
    """Frozen encoders that the site may run, and whose features it uses; empty: none. See
    ``data.encoder``."""
    policy: SitePolicy = field(default_factory=SitePolicy)
    """What the site answers at all."""
    privacy: SitePrivacy = field(default_factory=SitePrivacy)
    """Which sites it trusts in secure sums, and what it asks of them."""

    def __post_init__(self) -> None:
        check_options(self, owner="site")
        for key in ("name", "data"):
            if not getattr(self, key).strip():
                raise wrong_value(f"site.{key}", "a text that is not empty", getattr(self, key))

        baselines = spell_baselines(self.baselines, "site.baselines")
        object.__setattr__(self, "baselines", baselines)


@dataclass(frozen=True)
class FederationFile:
    """What ``federation.toml`` says: an experiment file with a section ``[deploy]``."""

    config: Config
    deploy: DeployOptions


def load_federation(path: Path) -> FederationFile:
    """Read ``federation.toml``.

    An experiment file of a simulation can be used as it is: what every site sets for itself, such
    as ``data.path``, is left out.

    Raises:
        ConfigError: the file is missing or no TOML, or a value is wrong or needs the data of all
            sites in one place.
    """
    values = read_settings(path)
    deploy = _build_section(DeployOptions, "deploy", values)
    data = check_section("data", values.get("data", {}))
    for key, why in _ONE_MACHINE_ONLY.items():
        if key in data:
            allowed = f"left out in {path.name}: {why}"
            raise wrong_value(f"data.{key}", allowed, data[key], path=path)

    # The data of a site stand for those of one client of a simulation.
    data = {key: value for key, value in data.items() if key not in PER_SITE}

    if values.get("serve", {}).get("fallback", "personal") != "personal":
        hint = 'It is the decision of every site: fallback = "best" in site.toml.'
        raise wrong_value("serve.fallback", "personal", "best", hint, path=path)

    # Sites compute on the CPU with the reference engine, so that bits are those of a simulation.
    values = {key: value for key, value in values.items() if key != "deploy"}
    values |= {"data": {**data, "path": "each-site"}, "engine": {"name": "reference"}}
    config = make_config(values)
    _check_one_seed(path, config)
    config.privacy.check_for_sites()

    # A server may be stopped at any time, and sites hold the states of few rounds.
    checkpoint = dataclasses.replace(config.checkpoint, every=1)
    return FederationFile(dataclasses.replace(config, checkpoint=checkpoint), deploy)


def load_site(folder: Path) -> SiteOptions:
    """Read the ``site.toml`` of a site's folder.

    Raises:
        ConfigError: the file is missing or no TOML, or a value is wrong.
    """
    path = folder / SITE_FILE
    if not path.is_file():
        message = f"'{folder}' holds no {SITE_FILE}: make a folder with 'fedtailor site init'."
        raise ConfigError(message, key="folder", path=folder, allowed=SITE_FILE, got="none")

    values = read_settings(path)
    values = {"name": "", "data": "", **values}
    values["policy"] = _build_section(SitePolicy, "policy", values)
    values["privacy"] = _build_section(SitePrivacy, "privacy", values)
    return build(SiteOptions, with_tuples(values), section="site")


def _build_section(cls: type[T], name: str, values: Mapping[str, Any]) -> T:
    """Return the options of a section of a file, which may be missing."""
    section = check_section(name, values.get(name, {}))
    return build(cls, with_tuples(section), section=name)


def _check_one_seed(path: Path, config: Config) -> None:
    """Refuse what a simulation has, and a deployment has not."""
    if len(config.seeds) > 1:
        raise wrong_value("seeds", "one seed across sites", config.seeds, path=path)

    if config.schedule.client_timeout:
        key = "federation.client_timeout"
        allowed = "0 across sites, where deploy.deadline limits a round"
        raise wrong_value(key, allowed, config.schedule.client_timeout, path=path)

    if config.schedule.history:
        allowed = "left out across sites, where 'fedtailor deploy pause' and 'remove' make it"
        raise wrong_value("federation.history", allowed, config.schedule.history, path=path)
