"""The checks of a site before it connects: data, key, certificate, server, versions."""

from __future__ import annotations

import ssl
import stat
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor import __version__
from fedtailor.core.errors import FedtailorError
from fedtailor.data.options import DataOptions
from fedtailor.deployment.audit import broken_line
from fedtailor.deployment.init import CERTIFICATE, SITE_KEY, check_address
from fedtailor.deployment.keys import days_left
from fedtailor.deployment.options import SiteOptions, load_site
from fedtailor.deployment.site_data import read_dataset

_FEWEST_DAYS = 30
_SECONDS = 10


class Check(NamedTuple):
    """What one check found."""

    what: str
    ok: bool
    text: str


def check_site(folder: Path) -> Iterator[Check]:
    """Check everything that a site needs, one thing after the other; nothing is sent but a question
    for its health.

    Raises:
        ConfigError: ``site.toml`` is missing or wrong.
    """
    options = load_site(folder)
    yield Check(
        "site.toml", True, f"name {options.name}, shares {', '.join(options.share) or 'nothing'}"
    )
    steps: list[tuple[str, Callable[[], str]]] = [
        ("data", lambda: _data(folder, options)),
        ("key", lambda: _key(folder)),
        ("certificate", lambda: _certificate(folder)),
        ("server", lambda: _server(folder, options)),
        ("log", lambda: _log(folder)),
        ("Flower", _flower),
        ("versions", _versions),
    ]

    for what, step in steps:
        try:
            yield Check(what, True, step())
        except FedtailorError as error:
            yield Check(what, False, error.message)
        except _Problem as problem:
            yield Check(what, False, str(problem))


class _Problem(Exception):
    """Something that a person must put right; its text says what."""


def _data(folder: Path, options: SiteOptions) -> str:
    """Read the data as they are, without what federation.toml will say of them."""
    dataset = read_dataset(options, DataOptions(path="each-site"), folder)
    counts = np.bincount(dataset.y, minlength=dataset.num_classes)
    classes = ", ".join(
        f"{name} {count}" for name, count in list(zip(dataset.class_names, counts, strict=True))[:8]
    )
    more = "" if dataset.num_classes <= 8 else f" and {dataset.num_classes - 8} more classes"
    tested = len(dataset.y) - dataset.num_official_train
    given = f", {tested} of them for testing" if tested else ""

    return f"{len(dataset.y)} examples{given}: {classes}{more}"


def _key(folder: Path) -> str:
    path = folder / SITE_KEY
    if not path.is_file():
        raise _Problem(f"'{path}' is missing: make a folder with 'fedtailor site init'.")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise _Problem(f"others can read '{path}' (mode {mode:o}): chmod 600.")
    return "only you can read it"


def _certificate(folder: Path) -> str:
    path = folder / CERTIFICATE
    if not path.is_file():
        raise _Problem(
            f"'{path}' is missing: copy the file of this name from the server's folder 'keys'."
        )

    days = days_left(path)
    if days < 0:
        raise _Problem(f"'{path}' ended {-days:.0f} days ago: ask for a new one.")
    if days < _FEWEST_DAYS:
        return f"ends in {days:.0f} days: ask for a new one"

    return f"valid for {days:.0f} days"


def _server(folder: Path, options: SiteOptions) -> str:
    if not options.server:
        raise _Problem('site.toml does not say where the server is: server = "host:port".')

    host, port = check_address(options.server)
    path = folder / CERTIFICATE
    if not path.is_file():
        raise _Problem("not asked: there is no certificate to know it by.")

    try:
        context = ssl.create_default_context(cafile=path)
        with urllib.request.urlopen(
            f"https://{host}:{port}/health", timeout=_SECONDS, context=context
        ) as answer:
            if answer.status == 200:
                return f"{options.server} answers"
            raise _Problem(f"{options.server} answers with status {answer.status}.")
    except ssl.SSLError as reason:
        raise _Problem(_of_certificate(options.server, reason)) from reason
    except urllib.error.HTTPError as reason:
        raise _Problem(
            f"{options.server} answers with status {reason.code}: is it another program?"
        ) from reason
    except urllib.error.URLError as reason:
        if isinstance(reason.reason, ssl.SSLError):
            raise _Problem(_of_certificate(options.server, reason.reason)) from reason

        text = (
            f"{options.server} does not answer ({reason.reason}): is it running, is the port open?"
        )
        raise _Problem(text) from reason
    except (OSError, ValueError) as reason:
        raise _Problem(f"{options.server} does not answer ({reason}).") from reason


def _of_certificate(server: str, reason: Any) -> str:
    text = getattr(reason, "verify_message", "") or str(reason)
    remedy = "compare the file with the server's, and the clocks"
    return f"{server} is not the server of '{CERTIFICATE}' ({text}): {remedy}."


def _log(folder: Path) -> str:
    line = broken_line(folder)
    if line is not None:
        raise _Problem(
            f"audit.jsonl was changed: line {line} does not follow from the line before."
        )
    return "complete"


def _flower() -> str:
    path = Path(sys.executable).parent / "flower-supernode"
    if not path.is_file():
        raise _Problem(
            f"it is not installed beside {sys.executable}: pip install 'fedtailor[flower]'."
        )
    return "installed"


def _versions() -> str:
    import torch

    return f"fedtailor {__version__}, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
