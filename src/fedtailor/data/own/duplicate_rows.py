"""Examples of arrays and tables that are there more than once, counted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.own.duplicates import KINDS, MEANINGS, find_duplicates
from fedtailor.data.own.place import show
from fedtailor.data.own.report import Findings

MAX_ROWS = 2_000_000
"""Duplicates are not looked for among more rows."""

_SHOWN = 3
"""Examples named in a message; all are counted."""


class Rows(NamedTuple):
    """Some examples and where they are from."""

    path: str
    """What they are named by in messages, with the number of the row."""
    numbers: Sequence[int]
    x: np.ndarray  # (rows, ...), of one type and shape for all that are compared
    y: np.ndarray  # (rows,)
    sites: np.ndarray  # (rows,), number of the site of each
    is_test: np.ndarray  # (rows,), bool


def report_duplicate_rows(pieces: Sequence[Rows], findings: Findings) -> None:
    """Warn once of every kind of duplicates there are, with how many and the first; all are kept."""
    ends = np.cumsum([len(piece.y) for piece in pieces])
    if ends[-1] > MAX_ROWS:
        findings.notes.append(f"Duplicates were not looked for: there are more than {MAX_ROWS} rows.")
        return
    contents = np.concatenate([_digests(piece.x) for piece in pieces])
    sites, is_test = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("sites", "is_test"))
    found = find_duplicates(contents, sites, is_test, np.concatenate([piece.y for piece in pieces]))

    def name(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        piece = pieces[number]
        return show(f"{piece.path}:{piece.numbers[row - int(ends[number])]}")  # counted from the end of the piece

    for kind in np.unique(found.kinds):
        alike = np.flatnonzero(found.kinds == kind)
        pairs = [f"{name(found.rows[one])} as {name(found.firsts[one])}" for one in alike[:_SHOWN]]
        more = f" and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
        chance = " Rows of few distinct values may be the same by chance." if pieces[0].x.ndim == 2 else ""
        message = f"The same content as another example{MEANINGS[kind]}. {len(alike)} found: {', '.join(pairs)}{more}."
        findings.add("warning", KINDS[kind], "", "", message + chance)


def _digests(x: np.ndarray) -> np.ndarray:
    """Return a digest of every example (rows,), uint64.

    With 64 bits two examples that differ are taken for equal once in tens of millions of data sets of a million rows.
    """
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in x)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
