"""One table of a user's own data: the roles of its columns, and the checks of its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import did_you_mean
from fedtailor.data.own.findings import Place, counted, show

SPLIT = "split"
IMAGE = "image"
PARTS = ("train", "test")

MISSING = ("", "na", "n/a", "nan", "null", "none")
"""Cells of a feature, in lower case, that mean a missing value."""

MISSING_LABEL = ("", "nan")
"""Labels that mean a missing one; the other words of ``MISSING`` may be classes."""


class Columns(NamedTuple):
    """The positions of the columns in a table's header."""

    header: tuple[str, ...]
    label: int
    split: int | None
    """Column that marks rows for training and rows for testing."""
    image: int | None
    """Column with paths of images; a table with it has no features."""
    features: tuple[int, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the order of the header."""
        return tuple(self.header[index] for index in self.features)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of all used columns except the label."""
        others = [self.header[index] for index in (self.split, self.image) if index is not None]
        return (*self.feature_names, *others)


@dataclass
class Cells:
    """The cells of a table; row k of all lists is in line ``lines[k]`` of the file."""

    values: np.ndarray  # (rows, features), float32; NaN for missing ones
    lines: Sequence[int]
    labels: list[str]
    splits: list[str] | None = None
    images: list[str] | None = None
    texts: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """Features with cells that are not numbers: their count, line of the first, its text."""


class Table(NamedTuple):
    """A usable table."""

    place: Place
    columns: Columns
    cells: Cells
    is_test: np.ndarray | None  # (rows,), bool; None without a column of the split


def find_columns(header: Sequence[str], place: Place, label_column: str) -> Columns | None:
    """Return the roles of the columns; None, with the problem added, if the header cannot be used."""
    names = tuple(name.strip() for name in header)
    shown = ", ".join(show(name) for name in names[:20])
    if len(names) > 20:
        shown += ", …"
    if "" in names:
        place.error("unnamed_column", f"Column {names.index('') + 1} has no name; the columns are: {shown}.")
        return None
    if len(set(names)) < len(names):
        counts = Counter(names)
        twice = next(name for name in names if counts[name] > 1)
        place.error("duplicate_column", f"Column {show(twice)} appears more than once.")
        return None
    if label_column not in names:
        hint = did_you_mean(label_column, names).rstrip("?")
        message = f"No column {show(label_column)} for the labels (data.label_column){hint}; the columns are: {shown}."
        place.error("missing_label_column", message)
        return None
    label = names.index(label_column)
    split = names.index(SPLIT) if SPLIT in names and label_column != SPLIT else None
    image = names.index(IMAGE) if IMAGE in names and label_column != IMAGE else None
    others = tuple(index for index in range(len(names)) if index not in (label, split, image))
    if image is None and not others:
        place.error("no_features", f"Only the label has a column; features or an {IMAGE} are missing: {shown}.")
        return None
    if image is not None and others:
        unused = ", ".join(show(names[index]) for index in others[:20])
        message = f"Because there is a column '{IMAGE}', {counted(len(others), 'column is', 'columns are')} not used"
        place.warning("unused_column", f"{message}: {unused}.")
    return Columns(names, label, split, image, others if image is None else ())


def check_table(place: Place, columns: Columns, cells: Cells) -> Table | None:
    """Return the table if every cell can be used; else None, with the problems added, one per column and kind."""
    usable = True
    for column, (count, line, text) in cells.texts.items():
        wrong_cells = counted(count, "cell has", "cells have")
        message = f"Column {show(column)} must hold numbers: {wrong_cells} another value, first {show(text)}."
        place.error("not_a_number", message, line)
        usable = False
    names = columns.feature_names
    empty = np.isnan(cells.values)
    for index in np.flatnonzero(empty.any(axis=0)):
        line, count = _first_and_count(empty[:, index], cells)
        message = f"Column {show(names[index])} has {counted(count, 'empty cell')}; the first is in row {line}."
        place.error("missing_value", message, line)
        usable = False
    infinite = np.isinf(cells.values)
    for index in np.flatnonzero(infinite.any(axis=0)):
        line, count = _first_and_count(infinite[:, index], cells)
        values = counted(count, "value")
        message = f"Column {show(names[index])} has {values} beyond 32-bit floats; the first is in row {line}."
        place.error("not_finite", message, line)
        usable = False
    unlabeled = [row for row, label in enumerate(cells.labels) if label.lower() in MISSING_LABEL]
    if unlabeled:
        line = cells.lines[unlabeled[0]]
        rows = counted(len(unlabeled), "row has", "rows have")
        place.error("missing_label", f"{rows} no label; the first is row {line}.", line)
        usable = False
    is_test = None
    if cells.splits is not None:
        is_test = _check_split(place, cells.splits, cells.lines)
        if is_test is None:
            usable = False
    return Table(place, columns, cells, is_test) if usable else None


def _first_and_count(wrong: np.ndarray, cells: Cells) -> tuple[int, int]:
    """Return the line of the first wrong row (rows,), and how many there are."""
    rows = np.flatnonzero(wrong)
    return cells.lines[rows[0]], len(rows)


def _check_split(place: Place, splits: Sequence[str], lines: Sequence[int]) -> np.ndarray | None:
    """Return which rows are for testing (rows,); None, with the problem added, if a row says neither."""
    wrong = [row for row, split in enumerate(splits) if split.lower() not in PARTS]
    if wrong:
        got = show(splits[wrong[0]])
        rows = counted(len(wrong), "row has", "rows have")
        message = f"Column '{SPLIT}' must say train or test: {rows} another value, first {got}."
        place.error("wrong_split", message, lines[wrong[0]])
        return None
    return np.array([split.lower() == "test" for split in splits], dtype=bool)
