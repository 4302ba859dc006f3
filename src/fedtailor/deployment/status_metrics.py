"""A status as metrics in the text format of Prometheus (version 0.0.4). No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from fedtailor.deployment.status import SiteState

Sample = tuple[Mapping[str, object], float | None]
"""Labels and a value; None: it is not known, and left out."""


def to_metrics(status: Mapping[str, Any]) -> str:
    """Return the metrics of a status.

    Args:
        status: of :class:`fedtailor.deployment.status.StatusReader`.
    """
    sites = status["sites"]
    counts = Counter(site["state"] for site in sites)
    run = {"run": status["run"], "algorithm": status["algorithm"], "state": status["state"]}
    means = [({"point": point}, curve[-1][1]) for point, curve in sorted(status["curves"].items())]

    def of_sites(key: str) -> list[Sample]:
        return [({"site": site["name"]}, site[key]) for site in sites]

    blocks = [
        _metric("run_info", "The run that is served.", [(run, 1)]),
        _metric("status_timestamp_seconds", "When this was written.", [({}, status["time"])]),
        _metric("rounds", "Rounds of the run.", [({}, status["rounds"])]),
        _metric("rounds_done", "Rounds that are done.", [({}, status["round"])]),
        _metric("round_seconds", "How long the last round took.", [({}, status["round_seconds"])]),
        _metric("seconds_left", "How long the run still takes.", [({}, status["seconds_left"])]),
        _metric(
            "message_bytes_total",
            "Bytes of all messages from the sites (up) and to them (down).",
            [({"way": way}, size) for way, size in status["bytes"].items()],
            kind="counter",
        ),
        _metric("accuracy", "Mean over sites, by evaluation point.", means),
        _metric(
            "sites",
            "Sites by state.",
            [({"state": state}, counts[state]) for state in get_args(SiteState)],
        ),
        _metric("site_connected", "Whether a site is connected.", of_sites("connected")),
        _metric("site_heard_timestamp_seconds", "When a site last answered.", of_sites("heard")),
        _metric(
            "site_accuracy", "Of the models of sites that show their scores.", of_sites("accuracy")
        ),
    ]
    return "".join(blocks)


def _metric(name: str, text: str, samples: Iterable[Sample], *, kind: str = "gauge") -> str:
    """Return a metric with its samples; nothing without any."""
    lines = []
    for labels, value in samples:
        if value is not None:
            pairs = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
            where = f"{{{pairs}}}" if pairs else ""
            lines.append(f"fedtailor_{name}{where} {float(value)!r}\n")

    if not lines:
        return ""
    head = f"# HELP fedtailor_{name} {text}\n# TYPE fedtailor_{name} {kind}\n"
    return head + "".join(lines)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
