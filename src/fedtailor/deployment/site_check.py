"""The checks of a site before it connects: data, key, certificate, server, versions."""

from __future__ import annotations

import dataclasses
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor import __version__
from fedtailor.core.errors import WARNING, DataError, FedtailorError, RunError
from fedtailor.core.extras import install_command
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.deployment.audit import broken_line
from fedtailor.deployment.flower.processes import require_flower
from fedtailor.deployment.init import CERTIFICATE, SITE_KEY, check_address
from fedtailor.deployment.options import SiteOptions, load_site
from fedtailor.deployment.site_data import read_dataset
from fedtailor.deployment.site_privacy import describe_told

_FEWEST_DAYS = 30
"""Days before the end of the certificate from which the check says so."""
_SECONDS = 10
"""For the server to answer."""
_MOST_CLASSES = 8
"""Classes whose examples are counted in the answer."""


class Check(NamedTuple):
    """What one check found."""

    what: str
    ok: bool
    text: str


def check_site(folder: Path) -> Iterator[Check]:
    """Check everything that a site needs, one thing after the other.

    Nothing is sent but a question for the server's health.

    Raises:
        ConfigError: ``site.toml`` is missing or wrong.
    """
    options = load_site(folder)
    shares = ", ".join(options.share) or "nothing"
    yield Check("site.toml", True, f"name {options.name}, shares {shares}")
    yield Check("policy", True, " ".join(options.policy.describe()))

    steps: dict[str, Callable[[], str]] = {
        "data": lambda: _data(folder, options),
        "key": lambda: _key(folder),
        "privacy": lambda: _privacy(folder, options),
        "certificate": lambda: _certificate(folder),
        "server": lambda: _server(folder, options),
        "log": lambda: _log(folder),
        "Flower": _flower,
        "versions": _versions,
    }
    for what, step in steps.items():
        try:
            yield Check(what, True, step())
        except FedtailorError as error:
            yield Check(what, False, error.message)
        except ModuleNotFoundError as error:
            # It comes with Flower. The steps that need it import it, so that the others go on.
            if error.name != "cryptography":
                raise
            hint = install_command("flower")
            yield Check(what, False, f"this needs the package cryptography: {hint}.")


def _privacy(folder: Path, options: SiteOptions) -> str:
    from fedtailor.deployment.trust import describe_trust

    told = describe_told(folder, options.privacy)
    return " ".join([describe_trust(folder, options), *told[-1:]])


def _data(folder: Path, options: SiteOptions) -> str:
    """Read the data as they are, without what federation.toml will say of them."""
    dataset, unclear = _read_as_far_as_known(folder, options)
    tested = len(dataset.y) - dataset.num_official_train
    text = f"{len(dataset.y)} examples"
    if tested:
        text += f", {tested} of them for testing"

    counts = np.bincount(dataset.y, minlength=dataset.num_classes)
    numbered = zip(dataset.names, counts, strict=True)
    classes = [f"{name} {count}" for name, count in numbered]
    text += f": {', '.join(classes[:_MOST_CLASSES])}"
    more = len(classes) - _MOST_CLASSES

    if more > 0:
        text += f" and {more} more classes"

    warnings = [note for note in dataset.notes if note.startswith(WARNING)]
    return " ".join([f"{text}.", *unclear, *warnings])


def _read_as_far_as_known(folder: Path, options: SiteOptions) -> tuple[Dataset, list[str]]:
    """Return the data, and what is unclear unless federation.toml says what a comma is.

    Raises:
        DataError: the data cannot be used, whatever federation.toml says.
    """
    data = DataOptions(path="each-site")
    try:
        return read_dataset(options, data, folder), []
    except DataError as error:
        with suppress(DataError):
            with_commas = dataclasses.replace(data, decimal="comma")
            dataset = read_dataset(options, with_commas, folder)
            return dataset, [f"Unless the server says what a comma is: {error.message}"]
        raise


def _key(folder: Path) -> str:
    path = folder / SITE_KEY
    if not path.is_file():
        raise RunError(f"'{path}' is missing: make a folder with 'fedtailor site init'.")

    # Whoever reads the key can take part in the name of this site.
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise RunError(f"others can read '{path}' (mode {mode:o}): chmod 600.")
    return "only you can read it"


def _certificate(folder: Path) -> str:
    from fedtailor.deployment.keys import days_left

    path = folder / CERTIFICATE
    if not path.is_file():
        hint = "copy the file of this name from the server's folder 'keys'"
        raise RunError(f"'{path}' is missing: {hint}.")

    days = days_left(path)
    if days < 0:
        raise RunError(f"'{path}' ended {-days:.0f} days ago: ask for a new one.")
    if days < _FEWEST_DAYS:
        return f"ends in {days:.0f} days: ask for a new one"
    return f"valid for {days:.0f} days"


def _server(folder: Path, options: SiteOptions) -> str:
    """Ask the server for its health, and see whether it is the one of the certificate."""
    name = options.server
    if not name:
        raise RunError('site.toml does not say where the server is: server = "host:port".')

    host, port = check_address(name)
    path = folder / CERTIFICATE
    if not path.is_file():
        raise RunError("not asked: there is no certificate to know it by.")

    url = f"https://{host}:{port}/health"
    try:
        # The certificate of this folder only, none of the machine.
        context = ssl.create_default_context(cafile=path)
        with urllib.request.urlopen(url, timeout=_SECONDS, context=context):
            return f"{name} answers"
    except urllib.error.HTTPError as reason:
        problem = f"{name} answers with status {reason.code}: is it another program?"
        raise RunError(problem) from reason
    except (OSError, ValueError) as reason:
        # The library wraps what went wrong on the way.
        cause: Any = getattr(reason, "reason", reason)
        if not isinstance(cause, ssl.SSLError):
            problem = f"{name} does not answer ({cause}): is it running, is the port open?"
            raise RunError(problem) from reason

        text = getattr(cause, "verify_message", "") or str(cause)
        remedy = "compare the file with the server's, and the clocks"
        raise RunError(
            f"{name} is not the server of '{CERTIFICATE}' ({text}): {remedy}."
        ) from reason


def _log(folder: Path) -> str:
    line = broken_line(folder)
    if line is not None:
        where = f"line {line} is not the one that was written, or is missing"
        raise RunError(f"audit.jsonl was changed: {where}.")
    return "complete"


def _flower() -> str:
    require_flower()
    return "installed"


def _versions() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"fedtailor {__version__}, torch {torch.__version__}, {capability}"
