"""The status of a site, for its operator: what it has sent and when, and how well its models do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.reading import content_of
from fedtailor.deployment.audit import AUDIT_FILE, sent_lines, totals_of
from fedtailor.deployment.options import FLOWER_FOLDER, load_site
from fedtailor.deployment.site_curve import read_curves
from fedtailor.deployment.site_models import describe_version, versions
from fedtailor.deployment.site_privacy import describe_told
from fedtailor.deployment.status import thinned
from fedtailor.deployment.supervise import is_supervised, latest_sentences
from fedtailor.experiment.site_rows import OWN

_MOST_MESSAGES = 10
"""Of the latest messages."""
_CONNECTION = ("connected to", "not connected to", "stopped")
"""How sentences of the log begin that say whether a site is connected."""


def read_site_status(folder: Path) -> dict[str, Any]:
    """Return the status of a site, ready for JSON.

    Args:
        folder: of the site.

    Raises:
        ConfigError: ``site.toml`` is missing or wrong.
        DataError: a file is damaged.
    """
    options = load_site(folder)
    sent = sent_lines(folder)
    with content_of(folder / AUDIT_FILE):
        messages = [_message(line) for line in sent[-_MOST_MESSAGES:]]
        totals = totals_of(sent)

    curves = read_curves(folder)
    run = list(curves)[-1] if curves else ""
    points = curves.get(run, {})
    return {
        "site": options.name,
        "server": options.server,
        "started": is_supervised(folder / FLOWER_FOLDER),
        "connection": _connection(folder),
        "messages": messages,
        "sent": totals,
        "run": run,
        "curves": {point: thinned(curve) for point, curve in points.items()},
        "own": _own_model(folder),
        "told": describe_told(folder, options.privacy),
    }


def _message(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was sent, as a line of the log has it."""
    return {
        "time": str(line["time"]),
        "kind": str(line.get("kind", "")),
        "round": line.get("round"),
        "bytes": int(line["bytes"]),
        "refused": str(line.get("refused", "")),
    }


def _connection(folder: Path) -> str:
    """Return what the site has last said of its connection."""
    said = ""
    for _, text in latest_sentences(folder / "logs" / "site.log"):
        if text.startswith(_CONNECTION):
            said = text
    return said


def _own_model(folder: Path) -> dict[str, Any] | None:
    """Return the best model of the site alone, from its newest verdict; None: there is none.

    Raises:
        DataError: the folder of a model is damaged.
    """
    for version in reversed(versions(folder)):
        record = describe_version(version)
        worth_it = record["worth_it"]
        if worth_it:
            (site,) = worth_it["sites"]
            name = next(iter(site["own"]), "")
            accuracy = site["scores"].get(OWN, {}).get("accuracy")
            return {"version": version.number, "name": name, "accuracy": accuracy}
    return None
