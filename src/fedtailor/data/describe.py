"""What is said of data: a division among clients, and what was found in a user's own. Ready for JSON, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor.data.division import Division
from fedtailor.data.own.report import Findings, OwnData

_SEVERITIES = ("error", "skipped", "warning")
_FIRST = 3
"""Problems of a kind that are told in full."""


def describe_division(division: Division, split: Mapping[str, Any]) -> dict[str, Any]:
    """Return who has how many examples of which classes.

    Args:
        division: who has which examples.
        split: its record, see :class:`fedtailor.data.split.SplitRecord`.
    """
    dataset, names = division.dataset, division.client_names
    clients = [
        {
            "name": names[number] if names else str(number),
            "train": len(rows.train),
            "val": len(rows.val),
            "test": len(rows.test),
            "class_counts": count_by_name(dataset.y[rows.train], dataset.class_names),
        }
        for number, rows in enumerate(division.rows)
    ]
    sizes = [len(rows.train) for rows in division.rows]
    return {
        "dataset": dataset.name,
        "partition": division.options.partition or division.options.split,
        "seed": division.seed,
        "new_clients": division.num_new,
        "sizes": {"smallest": min(sizes), "largest": max(sizes), "mean": sum(sizes) / len(sizes)},
        "clients": clients,
        "data_sha256": split["data_sha256"],
        "split_sha256": split["split_sha256"],
    }


def count_by_name(labels: np.ndarray, names: Sequence[str]) -> dict[str, int]:
    """Return how many labels (n,) there are of every class that occurs, by its name or number.

    >>> count_by_name(np.array([1, 0, 1]), ["no", "yes"])
    {'no': 1, 'yes': 2}
    """
    found, counts = np.unique(labels, return_counts=True)
    return {names[label] if names else str(label): int(count) for label, count in zip(found, counts, strict=True)}


def describe_findings(path: str, own: OwnData) -> dict[str, Any]:
    """Return what was found in a user's data, problems grouped by severity and kind, errors first."""
    findings = own.findings
    sites = [
        {
            "name": site.name,
            "train": dict(site.train),
            "test": dict(site.test),
            "problems": sum(problem.site == site.name for problem in findings.problems),
        }
        for site in findings.sites
    ]
    groups = _groups(findings)
    return {
        "path": path,
        "layout": findings.layout,
        "usable": own.dataset is not None and not any(group["severity"] == "error" for group in groups),
        "sites": sites,
        "problems": groups,
        "notes": list(findings.notes),
    }


def _groups(findings: Findings) -> list[dict[str, Any]]:
    """Return each kind of problem with how many there are and the first few."""
    kinds = sorted(findings.counts, key=lambda kind: (_SEVERITIES.index(kind[0]), kind[1]))
    groups = []
    for severity, kind in kinds:
        alike = [problem for problem in findings.problems if (problem.severity, problem.kind) == (severity, kind)]
        first = [{"site": each.site, "path": each.path, "message": each.message} for each in alike[:_FIRST]]
        groups.append({"severity": severity, "kind": kind, "count": findings.counts[severity, kind], "first": first})
    return groups
