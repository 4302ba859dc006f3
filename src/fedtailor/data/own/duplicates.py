"""Repeated examples: within a site, at several sites, or in the training and test part."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.own.findings import Findings, show

KINDS = (
    "duplicate_train_test",
    "duplicate_other_class",
    "duplicate_across_sites",
    "duplicate_in_site",
)
"""The relations between two examples with the same content, the most serious first."""

MEANINGS = (
    ", which is for training: the test is not on unseen data, and its accuracy is too high",
    ", but of another class",
    ", at another site: one site may train on an example on which another is tested",
    ", at the same site: it counts twice, and may be both in training and in test",
)
"""The consequence of each of ``KINDS``, as the end of a sentence."""


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
    kinds: np.ndarray  # (duplicates,), positions in KINDS


def find_duplicates(
    contents: np.ndarray, sites: np.ndarray, is_test: np.ndarray, labels: np.ndarray
) -> Duplicates:
    """Return every example, except the first, with the same content as another.

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
    everywhere = _first_of(is_test, contents)
    at_site = _first_of(is_test, contents, sites)
    firsts = np.where(is_test | (at_site == rows), everywhere, at_site)
    rows = np.flatnonzero(firsts != rows)
    firsts = firsts[rows]
    differs = [values[firsts] != values[rows] for values in (is_test, labels, sites)]
    return Duplicates(rows, firsts, np.select(differs, [0, 1, 2], 3))


def _first_of(is_test: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return for every row (rows,) the first row with the same keys; training rows come before test
    rows.
    """
    order = np.lexsort((is_test, *keys))  # stable: equal rows stay in order
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    firsts = np.empty_like(order)
    firsts[order] = order[starts]
    return firsts


def report_duplicates(
    digests: Sequence[bytes], where: Sequence[Occurrence], findings: Findings
) -> None:
    """Add a warning for every example, except the first, with the same content as another; all are
    kept.

    Args:
        digests: digest of the content of every example.
        where: the place of every example.
        findings: the problems are added to it.
    """
    is_test = np.array([one.part == "test" for one in where], dtype=bool)
    sites = _number_values(one.site for one in where)
    labels = _number_values(one.label for one in where)
    found = find_duplicates(_number_values(digests), sites, is_test, labels)
    for row, same, kind in zip(found.rows, found.firsts, found.kinds, strict=True):
        other = where[row]
        first = where[same]
        message = f"The same content as {show(first.path)}{MEANINGS[kind]}"
        if first.label != other.label:
            message += f": {show(first.label)} there, {show(other.label)} here"

        findings.add("warning", KINDS[kind], other.site, other.path, f"{message}.")


def _number_values(values: Iterable[Hashable]) -> np.ndarray:
    """Return a number for every value, equal numbers for equal values."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


MAX_ROWS = 2_000_000
"""Most rows among which duplicates are searched for."""

_SHOWN = 3
"""Most examples named in a message; all are counted."""


class Rows(NamedTuple):
    """Examples from one source."""

    path: str
    """Name of the source in messages, before the number of the row."""
    numbers: Sequence[int]
    x: np.ndarray  # (rows, ...), with the same type and shape in all sources
    y: np.ndarray  # (rows,)
    sites: np.ndarray  # (rows,), number of the site of each
    is_test: np.ndarray  # (rows,), bool


def report_duplicate_rows(pieces: Sequence[Rows], findings: Findings) -> None:
    """Add a warning for every kind of duplicates, with their number and the first; all are kept."""
    ends = np.cumsum([len(piece.y) for piece in pieces])
    if ends[-1] > MAX_ROWS:
        findings.notes.append(
            f"Duplicates were not searched for: there are more than {MAX_ROWS} rows."
        )
        return

    found = find_duplicates(
        contents=np.concatenate([_digests(piece.x) for piece in pieces]),
        sites=np.concatenate([piece.sites for piece in pieces]),
        is_test=np.concatenate([piece.is_test for piece in pieces]),
        labels=np.concatenate([piece.y for piece in pieces]),
    )

    def name(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        piece = pieces[number]
        return show(
            f"{piece.path}:{piece.numbers[row - int(ends[number])]}"
        )  # counted from the end of the piece

    for kind in np.unique(found.kinds):
        alike = np.flatnonzero(found.kinds == kind)
        pairs = [f"{name(found.rows[one])} as {name(found.firsts[one])}" for one in alike[:_SHOWN]]
        shown = ", ".join(pairs)
        if len(alike) > _SHOWN:
            shown += f" and {len(alike) - _SHOWN} more"

        message = (
            f"The same content as another example{MEANINGS[kind]}. {len(alike)} found: {shown}."
        )
        if pieces[0].x.ndim == 2:
            message += " Rows with few distinct values can be equal by chance."

        findings.add("warning", KINDS[kind], "", "", message)


def _digests(x: np.ndarray) -> np.ndarray:
    """Return a digest of every example (rows,), uint64.

    With 64 bits, two different examples have the same digest in one of tens of millions of data
    sets of a million rows.
    """
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in x)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
