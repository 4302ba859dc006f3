"""New folders: of a server, with its certificates, and of a site, with its key."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tomli_w

from fedtailor.core.atomic import make_folder, write_whole
from fedtailor.core.options import wrong_value
from fedtailor.deployment.federation_folder import FederationFolder, Registered, check_name
from fedtailor.deployment.membership import register_site
from fedtailor.deployment.options import (
    FEDERATION_FILE,
    SITE_FILE,
    SiteOptions,
    load_federation,
)
from fedtailor.deployment.policy import PER_SITE
from fedtailor.experiment.config import read_settings
from fedtailor.experiment.folder import refuse_existing

if TYPE_CHECKING:
    # It needs the package cryptography, which only what makes or reads keys imports.
    from fedtailor.deployment.keys import PublicKey

KEYS = "keys"
"""Folder of the server's keys and certificates."""
SERVER_CERTIFICATE = "server.pem"
"""The certificate that the server shows to sites, signed by the authority of ``ca.crt``."""
CERTIFICATE = "ca.crt"
"""The certificate by which sites know the server; it is not secret."""
SITE_KEY = "site.key"
"""The site's private key; the public one is ``site.key.pub``."""

SMALLEST_BATCH = 10
"""``training.smallest_batch`` of new folders: the policy of a site allows no smaller one."""

_ADDRESS = re.compile(r"(?P<host>[^\s:/]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_FEDERATION = """\
# The experiment: the sections of an experiment file (see howto/running in the documentation).
seed = 0

[algorithm]
name = "pfedfda"

[federation]
rounds = 30

[evaluation]
every = 10

[training]
# A last batch of fewer examples joins the batch before it; sites refuse batches below ten.
smallest_batch = {smallest_batch}

[data]
# The share of its examples on which a site tests its model, if they have no test part.
test_share = 0.2
# Pictures: all sites resize theirs to this side.
# image_size = 32

# How the server runs it (see howto/sites in the documentation).
[deploy]
host = {host}
port = {port}
# Seconds after which a round continues without the sites that have not answered.
deadline = 300
"""
_SITE = """\
# This site's own decisions. Nobody else can change them.
name = {name}
# The labelled data: a folder of pictures by class, a table, arrays. They stay here.
data = {data}
# Where the server is.
server = {server}
# What the server may see beside the messages of the method: scores, metrics, errors, verdict. With
# secure sums, it sees scores and metrics as sums over sites; with "single", those of this site too,
# and how many examples it has.
share = ["scores", "metrics"]
# Methods and models that run here; empty: all of fedtailor's own.
algorithms = []
models = []
# Frozen encoders that may run here, such as "onnx:FILE".
encoders = []

# What this site answers at all; help: howto/site-policy, and 'fedtailor site policy FOLDER'.
[policy]
"""


class NewSite(NamedTuple):
    """The key that was made for a site."""

    key: PublicKey
    public_key: Path
    """The file to send to the server."""


def init_server(folder: Path, host: str, port: int, experiment: Path | None) -> FederationFolder:
    """Make the folder of a server: ``federation.toml``, an authority, the server's certificate.

    Args:
        folder: must not exist, or be empty.
        host: name or address under which sites will reach the server.
        port: of the server.
        experiment: whose sections ``federation.toml`` begins with; None: a plain one.

    Raises:
        ConfigError: the folder is taken, or the host or the experiment is wrong.
        RunError: a file cannot be written.
    """
    from fedtailor.deployment.keys import make_server_keys

    refuse_existing(folder)
    if experiment is None:
        text = _FEDERATION.format(host=_quoted(host), port=port, smallest_batch=SMALLEST_BATCH)
    else:
        text = _from_experiment(experiment, host, port)

    # A folder that is half made would be in the way of the next attempt.
    make_folder(folder, mode=0o700)
    try:
        make_server_keys(folder / KEYS, [host])
        write_whole(folder / FEDERATION_FILE, text)
        load_federation(folder / FEDERATION_FILE)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    return FederationFolder(folder)


def renew_certificate(folder: FederationFolder) -> float:
    """Replace the server's certificate by a new one for the host that ``federation.toml`` names.

    The authority stays, so sites need nothing new.

    Returns:
        The days for which the new certificate is valid.

    Raises:
        ConfigError: ``federation.toml`` is wrong.
        DataError: the files of the authority are missing or damaged.
    """
    from fedtailor.deployment.keys import days_left, renew_server_certificate

    deploy = load_federation(folder.path / FEDERATION_FILE).deploy
    keys = folder.path / KEYS
    renew_server_certificate(keys, [deploy.host])
    return days_left(keys / SERVER_CERTIFICATE)


def add_site(folder: FederationFolder, name: str, key: Path, *, new: bool) -> PublicKey:
    """Register a site with its public key.

    Raises:
        ConfigError: the name or the key is taken, or the name is not usable.
        DataError: the file is not the public key of a site.
    """
    from fedtailor.deployment.keys import read_public_key

    public = read_public_key(key)
    register_site(folder, Registered(name, public.text, new))
    return public


def init_site(folder: Path, name: str, data: str, server: str) -> NewSite:
    """Make the folder of a site: ``site.toml`` and its key, which never leaves it.

    Raises:
        ConfigError: the folder is taken, or a value is not usable.
        RunError: a file cannot be written.
    """
    from fedtailor.deployment.keys import make_node_key

    refuse_existing(folder)
    check_name(name)
    if server:
        check_address(server)

    # What site.toml would not take is refused before anything is made.
    SiteOptions(name=name, data=data, server=server)
    make_folder(folder, mode=0o700)
    try:
        key = make_node_key(folder / SITE_KEY)
        text = _SITE.format(name=_quoted(name), data=_quoted(data), server=_quoted(server))
        write_whole(folder / SITE_FILE, text)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    return NewSite(key, folder / f"{SITE_KEY}.pub")


def check_address(text: str) -> tuple[str, int]:
    """Return host and port of an address.

    Raises:
        ConfigError: it is none.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise wrong_value("server", "host:port, such as fl.example.org:8000", text)
    return match["host"], int(match["port"])


def _from_experiment(experiment: Path, host: str, port: int) -> str:
    """Return ``federation.toml`` from an experiment file, without what each site sets itself."""
    values = read_settings(experiment)
    for name in ("engine", "checkpoint", "serve"):
        values.pop(name, None)

    data = values.get("data")
    if isinstance(data, dict):
        for key in (*PER_SITE, "partition", "clients", "new_clients"):
            data.pop(key, None)

    # Sites refuse a last batch of few examples, which a simulation may have.
    training = values.setdefault("training", {})
    if isinstance(training, dict) and training.get("smallest_batch", 1) in range(SMALLEST_BATCH):
        training["smallest_batch"] = SMALLEST_BATCH

    # Its other options stay.
    values["deploy"] = {**values.get("deploy", {}), "host": host, "port": port}
    return tomli_w.dumps(values)


def _quoted(text: str) -> str:
    """Return a text as TOML writes it."""
    return tomli_w.dumps({"value": text}).partition("= ")[2].strip()
