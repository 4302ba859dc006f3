"""Verdicts that sites share with the server, where ``share`` in their ``site.toml`` says so.

A site judges its own model at the end of a run (:mod:`fedtailor.deployment.site_verdict`). The
server corrects the p-values for the number of sites that share theirs, by the rule of a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtailor.core.errors import DataError
from fedtailor.core.schedule import BASELINE_NAMES, Measure
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange
from fedtailor.deployment.site_models import versions
from fedtailor.deployment.wire import answers_to, whole, wrong
from fedtailor.experiment.paired import holm
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.site_rows import decide, rule
from fedtailor.experiment.worth_it import count_verdicts

SHARE = "verdict"
"""What ``share`` names."""
_NUMBERS = {"difference": -1.0, "low": -1.0, "high": -1.0, "p_value": 0.0}
"""Numbers of a verdict, at most 1, and their smallest values."""
_DIGITS = 5
"""Decimal places that a site sends of a difference."""


def verdict_of(folder: Path, run: str) -> dict[str, Any] | None:
    """Return what a site shares of its verdict on the model of a run; None if it has none."""
    existing = versions(folder)
    records = read_run(existing[-1].path) if existing else None
    if records is None or records.provenance.get("site", {}).get("run") != run:
        return None

    worth_it = (records.result or {}).get("worth_it")
    if not worth_it or worth_it["sites"][0]["difference"] is None:
        return None

    (site,) = worth_it["sites"]
    difference = site["difference"]
    paired = {key: round(difference[key], _DIGITS) for key in ("difference", "low", "high")}
    own = next(iter(site["own"]))
    return {"own": own, "examples": site["examples"], "p_value": site["p_value"], **paired}


def ask_verdicts(
    exchange: Exchange, run: str, names: Sequence[str], sharing: Sequence[int], measure: Measure
) -> dict[str, Any]:
    """Ask sites for their verdicts, and return all of them, ready for JSON; empty without any.

    Args:
        exchange: with the sites.
        run: the name of the run.
        names: of all sites, by number.
        sharing: the numbers of those that share their verdict.
        measure: that all compare.
    """
    if not sharing:
        return {}

    requests = {}
    for client in sharing:
        requests[client] = Envelope({"kind": SHARE, "run": run, "client": client})

    rows: dict[int, dict[str, Any]] = {}
    for client, answer in exchange.ask(requests, needed=0, accept=answers_to(requests)).items():
        # Whatever a site says, it changes its own row only.
        with suppress(DataError):
            if isinstance(answer, Envelope):
                rows[client] = _check(answer.head.get("verdict"))
    if not rows:
        return {}

    clients = sorted(rows)
    corrected = holm([rows[client]["p_value"] for client in clients])
    sites = {}
    for client, p_value in zip(clients, corrected, strict=True):
        verdict = decide(rows[client]["difference"], p_value)
        row = {**rows[client], "corrected_p_value": p_value, "verdict": verdict}
        sites[names[client]] = row

    return {
        "verdicts": count_verdicts(site["verdict"] for site in sites.values()),
        "measure": measure,
        "rule": rule(measure, len(sites)),
        "sites": sites,
    }


def _check(value: Any) -> dict[str, Any]:
    """Return a verdict that a site sent.

    Raises:
        DataError: it is something else.
    """
    keys = {"own", "examples", *_NUMBERS}
    if not isinstance(value, Mapping) or set(value) != keys or value["own"] not in BASELINE_NAMES:
        raise wrong("verdict", "a verdict", value)

    whole("verdict.examples", value["examples"], 2**53)
    for name, smallest in _NUMBERS.items():
        number = value[name]
        if not isinstance(number, int | float) or not smallest <= number <= 1:
            raise wrong(f"verdict.{name}", f"a number from {smallest:g} to 1", number)

    return dict(value)
