"""Repeated examples: within a site, at several sites, or in the training and test part."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.core.text import quoted
from fedtailor.data.own.findings import Findings

MEANINGS = {
    "duplicate_train_test": (
        "which is for training: the test is not on unseen data, and its accuracy is too high"
    ),
    "duplicate_other_class": "but of another class",
    "duplicate_across_sites": (
        "at another site: one site may train on an example on which another is tested"
    ),
    "duplicate_in_site": (
        "at the same site: it counts twice, and may be both in training and in test"
    ),
}
"""The relations between two examples with the same content, the most serious first, and what they
mean."""

DUPLICATE_KINDS = tuple(MEANINGS)


class Occurrence(NamedTuple):
    """The place of an example."""

    site: str
    part: str
    """``train`` or ``test``; ``train`` if the data does not come divided."""
    label: str
    path: str


class Duplicates(NamedTuple):
    """The examples with the same content as another one."""

    rows: np.ndarray  # (duplicates,), in ascending order
    firsts: np.ndarray  # (duplicates,), the row with the same content
    kinds: np.ndarray  # (duplicates,), positions in MEANINGS


def find_duplicates(
    contents: np.ndarray, sites: np.ndarray, is_test: np.ndarray, labels: np.ndarray
) -> Duplicates:
    """Find every example, except the first, with the same content as another.

    Test examples are compared with the first training example of their content, training examples
    with the first one of the same site, and the first one at a site with the first one of all
    sites.

    Args:
        contents: (rows,), equal numbers for equal examples.
        sites: (rows,), number of each example's site.
        is_test: (rows,), whether each example is for testing.
        labels: (rows,), number of each example's class.
    """
    rows = np.arange(len(contents))
    # Training rows are first, so a test example is compared with one of those.
    everywhere = _first_of(is_test, contents)
    at_site = _first_of(is_test, contents, sites)
    firsts = np.where(is_test | (at_site == rows), everywhere, at_site)
    rows = np.flatnonzero(firsts != rows)
    firsts = firsts[rows]
    # The most serious relation of a pair wins: part, then class, then site.
    differs = [values[firsts] != values[rows] for values in (is_test, labels, sites)]
    return Duplicates(rows, firsts, np.select(differs, [0, 1, 2], 3))


def _first_of(is_test: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return the first row with the keys of each row (rows,); training rows are before others."""
    # Equal keys become neighbors; the first of each run stands for all of it.
    order = np.lexsort((is_test, *keys))  # stable: equal rows stay in order
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    firsts = np.empty_like(order)
    firsts[order] = order[starts]
    return firsts


def report_duplicate_files(
    digests: Sequence[bytes], where: Sequence[Occurrence], findings: Findings
) -> None:
    """Add a warning for every file, except the first, with the same content as another.

    Args:
        digests: digest of the content of every file.
        where: the place of every file.
        findings: the problems are added to it.
    """
    is_test = np.array([one.part == "test" for one in where], dtype=bool)
    sites = _number_values(one.site for one in where)
    labels = _number_values(one.label for one in where)
    duplicates = find_duplicates(_number_values(digests), sites, is_test, labels)
    for row, same, number in zip(*duplicates, strict=True):
        other = where[row]
        first = where[same]
        kind = DUPLICATE_KINDS[number]
        message = f"The same content as {quoted(first.path)}, {MEANINGS[kind]}"
        if first.label != other.label:
            message += f": {quoted(first.label)} there, {quoted(other.label)} here"

        findings.add(kind, f"{message}.", site=other.site, path=other.path)


def _number_values(values: Iterable[Hashable]) -> np.ndarray:
    """Return a number for every value, equal numbers for equal values."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def digest_rows(x: np.ndarray) -> np.ndarray:
    """Return a digest of every example (rows,), uint64.

    With 64 bits, two different examples have the same digest in one of tens of millions of data
    sets of a million rows.
    """
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in x)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
