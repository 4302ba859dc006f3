"""Descriptions of data, ready for JSON: a division among clients, and the findings about a user's
own data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor.data.division import Division
from fedtailor.data.own.findings import Findings, OwnData

_SEVERITIES = ("error", "skipped", "warning")
_FIRST = 3
"""Problems of each kind that are listed in full."""


def describe_division(division: Division, split: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many examples of which class every client has.

    Args:
        division: the examples of every client.
        split: the record of the division, see :class:`fedtailor.data.split.SplitRecord`.
    """
    dataset = division.dataset
    names = division.client_names
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
    """Return the count of every class that occurs in labels (n,), by its name or number.

    >>> count_by_name(np.array([1, 0, 1]), ["no", "yes"])
    {'no': 1, 'yes': 2}
    """
    found, counts = np.unique(labels, return_counts=True)
    shown = [names[label] if names else str(label) for label in found]
    return dict(zip(shown, counts.tolist(), strict=True))


def describe_findings(path: str, own: OwnData) -> dict[str, Any]:
    """Return the findings about a user's data, with problems grouped by severity and kind, errors
    first.
    """
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
        "usable": own.dataset is not None
        and not any(group["severity"] == "error" for group in groups),
        "sites": sites,
        "problems": groups,
        "notes": list(findings.notes),
    }


def _groups(findings: Findings) -> list[dict[str, Any]]:
    """Return each kind of problem with its count and the first few problems."""
    kinds = sorted(findings.counts, key=lambda kind: (_SEVERITIES.index(kind[0]), kind[1]))
    groups = []
    for severity, kind in kinds:
        alike = [
            problem
            for problem in findings.problems
            if (problem.severity, problem.kind) == (severity, kind)
        ]
        first = [
            {"site": each.site, "path": each.path, "message": each.message}
            for each in alike[:_FIRST]
        ]
        groups.append(
            {
                "severity": severity,
                "kind": kind,
                "count": findings.counts[severity, kind],
                "first": first,
            }
        )

    return groups
