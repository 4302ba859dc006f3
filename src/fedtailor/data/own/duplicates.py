"""Examples that are there more than once: within a site, at several sites, in training and test part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.data.own.place import show
from fedtailor.data.own.report import Findings


class Occurrence(NamedTuple):
    """Where an example is."""

    site: str
    part: str
    """``train`` or ``test``; ``train`` where the data do not come divided."""
    label: str
    path: str


def report_duplicates(digests: Sequence[bytes], where: Sequence[Occurrence], findings: Findings) -> None:
    """Warn once of every example but the first that has the content of another; all are kept.

    Args:
        digests: of the content of every example.
        where: every example is; as many.
        findings: the problems are added to it.
    """
    groups: dict[bytes, list[Occurrence]] = defaultdict(list)
    for digest, occurrence in zip(digests, where, strict=True):
        groups[digest].append(occurrence)
    for group in groups.values():
        trained = next((one for one in group if one.part == "train"), group[0])
        for other in (one for one in group if one is not trained):
            first = _nearest(other, group, trained)
            kind, why = _compare(first, other)
            message = f"The same content as {show(first.path)}{why}."
            findings.add("warning", kind, other.site, other.path, message)


def _nearest(other: Occurrence, group: Sequence[Occurrence], trained: Occurrence) -> Occurrence:
    """Return the occurrence to compare with: for training the first of the same site, if an earlier one is there."""
    if other.part == "test":
        return trained
    first = next(one for one in group if one.part == "train" and one.site == other.site)
    return trained if first is other else first


def _compare(first: Occurrence, other: Occurrence) -> tuple[str, str]:
    """Return the kind of problem, the most serious that applies, and what it means."""
    if first.part != other.part:
        meaning = ", which is for training: the test is not of unseen data, and its accuracy is too high"
        return "duplicate_train_test", meaning
    if first.label != other.label:
        return "duplicate_other_class", f", but of another class: {show(first.label)} there, {show(other.label)} here"
    if first.site != other.site:
        return "duplicate_across_sites", ", at another site: what one site trains on, another may be tested on"
    return "duplicate_in_site", ", at the same site: it counts twice, or in training and test if they are drawn"
