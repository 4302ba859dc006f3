"""One table of a user's own data: which column is what, and what its cells may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import did_you_mean
from fedtailor.data.own.place import Place, show

SPLIT = "split"
IMAGE = "image"
PARTS = ("train", "test")

MISSING = ("", "na", "n/a", "nan", "null", "none")
"""Cells of a feature, in lower case, that stand for a value that is not there."""

MISSING_LABEL = ("", "nan")
"""Labels that stand for none; the other words of ``MISSING`` may well be classes."""


class Columns(NamedTuple):
    """Where in a table's header each thing is."""

    header: tuple[str, ...]
    label: int
    split: int | None
    """Column that says which rows are for training and which for testing."""
    image: int | None
    """Column of the images' files; the table has no features then."""
    features: tuple[int, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the order of the header."""
        return tuple(self.header[index] for index in self.features)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of all columns that are used, but for the label."""
        others = (self.header[index] for index in (self.split, self.image) if index is not None)
        return (*self.feature_names, *others)


@dataclass
class Cells:
    """What the rows of a table hold, as read; row k of all lists is in line ``lines[k]`` of the file."""

    values: np.ndarray  # (rows, features), float32; NaN where there is none
    lines: Sequence[int]
    labels: list[str]
    splits: list[str] | None = None
    images: list[str] | None = None
    texts: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """Features with cells that are no number: how many, line of the first, its text."""


class Table(NamedTuple):
    """A table that can be used."""

    place: Place
    columns: Columns
    cells: Cells
    is_test: np.ndarray | None  # (rows,), bool; None where there is no column of the split


def find_columns(header: Sequence[str], place: Place, label_column: str) -> Columns | None:
    """Return which column is what; None, with the problem added, if the header cannot be used."""
    names = tuple(name.strip() for name in header)
    shown = ", ".join(show(name) for name in names[:20]) + (", …" if len(names) > 20 else "")
    if "" in names:
        place.error("unnamed_column", f"Column {names.index('') + 1} has no name; columns there are: {shown}.")
        return None
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        place.error("duplicate_column", f"Column {show(twice)} is there more than once.")
        return None
    if label_column not in names:
        hint = did_you_mean(label_column, names).rstrip("?")
        message = (
            f"No column {show(label_column)} for the labels (data.label_column){hint}; columns there are: {shown}."
        )
        place.error("missing_label_column", message)
        return None
    label = names.index(label_column)
    split, image = (names.index(name) if name in names and name != label_column else None for name in (SPLIT, IMAGE))
    others = tuple(index for index in range(len(names)) if index not in (label, split, image))
    if image is None and not others:
        place.error("no_features", f"No column besides the label holds a feature or an {IMAGE}; columns are: {shown}.")
        return None
    if image is not None and others:
        unused = ", ".join(show(names[index]) for index in others[:20])
        place.warning("unused_column", f"With a column '{IMAGE}', {len(others)} columns are not used: {unused}.")
    return Columns(names, label, split, image, others if image is None else ())


def check_table(place: Place, columns: Columns, cells: Cells) -> Table | None:
    """Return the table if every cell can be used; else None, with the problems added, one per column and kind."""
    names = columns.feature_names
    for column, (count, line, text) in cells.texts.items():
        message = f"Column {show(column)} must hold numbers: {count} cells do not, the first is {show(text)}."
        place.error("not_a_number", message, line)
    fine = not cells.texts
    missing, infinite = np.isnan(cells.values), np.isinf(cells.values)
    for kind, what, wrong in (
        ("missing_value", "has {} cells without a value", missing),
        ("not_finite", "has {} values that are infinite or beyond 32-bit floats", infinite),
    ):
        for index in np.flatnonzero(wrong.any(axis=0)):
            rows = np.flatnonzero(wrong[:, index])
            message = (
                f"Column {show(names[index])} {what.format(len(rows))}; the first is in row {cells.lines[rows[0]]}."
            )
            place.error(kind, message, cells.lines[rows[0]])
            fine = False
    unlabeled = [row for row, label in enumerate(cells.labels) if label.lower() in MISSING_LABEL]
    if unlabeled:
        line = cells.lines[unlabeled[0]]
        place.error("missing_label", f"{len(unlabeled)} rows have no label; the first is row {line}.", line)
    is_test = None if cells.splits is None else _check_split(place, cells.splits, cells.lines)
    if not fine or unlabeled or (is_test is None and cells.splits is not None):
        return None
    return Table(place, columns, cells, is_test)


def _check_split(place: Place, splits: Sequence[str], lines: Sequence[int]) -> np.ndarray | None:
    """Return which rows are for testing (rows,); None, with the problem added, if a row says neither."""
    wrong = [row for row, split in enumerate(splits) if split.lower() not in PARTS]
    if wrong:
        line, got = lines[wrong[0]], splits[wrong[0]]
        message = f"Column '{SPLIT}' must say train or test: {len(wrong)} rows do not, the first says {show(got)}."
        place.error("wrong_split", message, line)
        return None
    return np.array([split.lower() == "test" for split in splits], dtype=bool)
