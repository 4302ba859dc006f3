"""Examples that are there more than once: within a site, at several sites, in training and test part."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.own.place import show
from fedtailor.data.own.report import Findings

KINDS = ("duplicate_train_test", "duplicate_other_class", "duplicate_across_sites", "duplicate_in_site")
"""What two examples with the same content can be to each other, the most serious first."""

MEANINGS = (
    ", which is for training: the test is not of unseen data, and its accuracy is too high",
    ", but of another class",
    ", at another site: what one site trains on, another may be tested on",
    ", at the same site: it counts twice, or in training and test if they are drawn",
)
"""What that means, for each of ``KINDS``: the end of a sentence."""


class Occurrence(NamedTuple):
    """Where an example is."""

    site: str
    part: str
    """``train`` or ``test``; ``train`` where the data do not come divided."""
    label: str
    path: str


class Duplicates(NamedTuple):
    """The examples that have the content of another one."""

    rows: np.ndarray  # (duplicates,), in ascending order
    firsts: np.ndarray  # (duplicates,), the row that each is the same as
    kinds: np.ndarray  # (duplicates,), positions in KINDS


def find_duplicates(contents: np.ndarray, sites: np.ndarray, is_test: np.ndarray, labels: np.ndarray) -> Duplicates:
    """Return every example but the first that has the content of another.

    Test examples are compared with the first training example of their content, training examples with the first one
    of the same site, and the first one at a site with that of all sites.

    Args:
        contents: (rows,), equal numbers where examples are equal; the others likewise.
        sites: number of each example's site.
        is_test: which examples are for testing.
        labels: number of each example's class.
    """
    rows = np.arange(len(contents))
    everywhere = _first_of(is_test, contents)
    at_site = _first_of(is_test, contents, sites)
    firsts = np.where(is_test | (at_site == rows), everywhere, at_site)
    rows = np.flatnonzero(firsts != rows)
    firsts = firsts[rows]
    differs = [values[firsts] != values[rows] for values in (is_test, labels, sites)]
    return Duplicates(rows, firsts, np.select(differs, [0, 1, 2], 3))


def _first_of(is_test: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return for every row (rows,) the first with the same keys, those for training before those for testing."""
    order = np.lexsort((is_test, *keys))  # stable: equal rows stay in order
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    firsts = np.empty_like(order)
    firsts[order] = order[starts]
    return firsts


def report_duplicates(digests: Sequence[bytes], where: Sequence[Occurrence], findings: Findings) -> None:
    """Warn once of every example but the first that has the content of another; all are kept.

    Args:
        digests: of the content of every example.
        where: every example is; as many.
        findings: the problems are added to it.
    """
    is_test = np.array([one.part == "test" for one in where], dtype=bool)
    sites, labels = _numbered(one.site for one in where), _numbered(one.label for one in where)
    for row, same, kind in zip(*find_duplicates(_numbered(digests), sites, is_test, labels), strict=True):
        other, first = where[row], where[same]
        classes = f": {show(first.label)} there, {show(other.label)} here" if first.label != other.label else ""
        message = f"The same content as {show(first.path)}{MEANINGS[kind]}{classes}."
        findings.add("warning", KINDS[kind], other.site, other.path, message)


def _numbered(values: Iterable[Hashable]) -> np.ndarray:
    """Return a number for every value, equal ones for equal values."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
