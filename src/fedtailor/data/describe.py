"""Descriptions of data, ready for JSON: a division, and findings about a user's data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from fedtailor.data.division import Division
from fedtailor.data.own.findings import Findings, OwnData
from fedtailor.data.own.kinds import KINDS, Severity


def describe_division(division: Division, split: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many examples of which class every client has.

    Args:
        division: the examples of every client.
        split: the record of the division, see :class:`fedtailor.data.split.SplitRecord`.
    """
    dataset = division.dataset
    clients = []
    for number, client in enumerate(division.positions):
        name = division.client_names[number] if division.client_names else str(number)
        lengths = {"train": len(client.train), "val": len(client.val), "test": len(client.test)}
        counts = _count_by_name(dataset.y[client.train], dataset.class_names)
        clients.append({"name": name, **lengths, "class_counts": counts})

    sizes = [len(client.train) for client in division.positions]
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


def _count_by_name(labels: np.ndarray, names: Sequence[str]) -> dict[str, int]:
    """Return the count of every class that occurs in labels (n,), by its name or number."""
    classes, counts = np.unique(labels, return_counts=True)
    named = [names[label] if names else str(label) for label in classes]
    return dict(zip(named, counts.tolist(), strict=True))


def describe_findings(path: str, own: OwnData) -> dict[str, Any]:
    """Return the findings about a user's data, by severity and kind, errors first."""
    findings = own.findings
    problems = Counter(problem.site for problem in findings.problems)
    sites = []
    for site in findings.sites:
        counts = {"train": dict(site.train), "test": dict(site.test)}
        sites.append({"name": site.name, **counts, "problems": problems[site.name]})

    return {
        "path": path,
        "layout": findings.layout,
        "usable": own.dataset is not None and not findings.has_errors,
        "sites": sites,
        "problems": _groups(findings),
        "notes": list(findings.notes),
    }


def _groups(findings: Findings) -> list[dict[str, Any]]:
    """Return each kind of problem with its count and its problems, what to do first before others.

    Problems beyond the limit of the findings are only counted.
    """
    groups = []
    for severity in get_args(Severity):
        for kind, entry in KINDS.items():
            if (severity, kind) not in findings.counts:
                continue

            problems = []
            for problem in findings.problems:
                if (problem.severity, problem.kind) == (severity, kind):
                    where = {"site": problem.site, "path": problem.path}
                    problems.append({**where, "message": problem.message})

            groups.append(
                {
                    "severity": severity,
                    "kind": kind,
                    "words": entry.words,
                    "count": findings.counts[severity, kind],
                    "problems": problems,
                }
            )

    return groups
