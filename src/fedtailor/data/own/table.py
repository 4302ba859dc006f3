"""One table of a user's own data: the roles of its columns, and the checks of its cells."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import did_you_mean
from fedtailor.data.own.cells import MISSING, Words
from fedtailor.data.own.findings import Place, counted, show
from fedtailor.data.own.names import safe_name

SPLIT = "split"
IMAGE = "image"
PARTS = ("train", "test")

MISSING_LABEL = ("", "nan")
"""Labels that mean a missing one; the other words of ``MISSING`` may be classes."""


class Roles(NamedTuple):
    """The positions of the columns in a table's header."""

    header: tuple[str, ...]
    """Names of the columns, safe to print."""
    label: int | None
    """None: a table to predict."""
    features: tuple[int, ...]
    split: int | None = None
    """Column that marks rows for training and rows for testing."""
    image: int | None = None
    """Column with paths of images; a table with it has no features."""
    group: int | None = None
    """Column with the group of each example, such as its patient."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the order of the header."""
        return tuple(self.header[index] for index in self.features)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of all used columns except label and group."""
        others = [self.header[index] for index in (self.split, self.image) if index is not None]
        return (*self.feature_names, *others)


class Wanted(NamedTuple):
    """What is read of a table."""

    find_roles: Callable[[Sequence[str], Place], Roles | None]
    """Returns the roles of the columns of a header; None, with the problem added, if it cannot be
    used."""
    expected: Callable[[Collection[str]], int]
    """Returns how many of the columns that are looked for are among the names of a header."""
    as_text: frozenset[str] = frozenset()
    """Features that are read as text although all their cells in this table may be numbers."""
    only_known: bool = False
    """Whether text in other columns is a problem, and all texts of these columns are kept."""


@dataclass
class Cells:
    """The cells of a table; row k of all lists is in line ``lines[k]`` of the file."""

    values: (
        np.ndarray
    )  # (rows, features), float32: a number, or the code of a text; NaN for empty cells
    lines: Sequence[int]
    labels: list[str]
    """Empty if the table has no column of labels."""
    splits: list[str] | None = None
    images: list[str] | None = None
    groups: list[str] | None = None
    texts: dict[str, Words] = field(default_factory=dict)
    """The features that hold text."""
    wrong: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """Features with text that was not read: how many cells, line of the first, its text."""


class Table(NamedTuple):
    """A usable table."""

    place: Place
    roles: Roles
    cells: Cells
    is_test: np.ndarray | None  # (rows,), bool; None without a column of the split


def header_names(header: Sequence[str], place: Place) -> tuple[str, ...] | None:
    """Return the names of a header, safe to print; None, with the problem added, if one is empty or
    appears twice.
    """
    names = tuple(safe_name(name.strip()) for name in header)
    if "" in names:
        place.error(
            "unnamed_column",
            f"Column {names.index('') + 1} has no name; the columns are: {listed_columns(names)}.",
        )

        return None

    if len(set(names)) < len(names):
        counts = Counter(names)
        twice = next(name for name in names if counts[name] > 1)
        place.error("duplicate_column", f"Column {show(twice)} appears more than once.")
        return None

    return names


def listed_columns(names: Sequence[str]) -> str:
    """Return the first names of columns in quotes."""
    shown = ", ".join(show(name) for name in names[:20])
    return f"{shown}, …" if len(names) > 20 else shown


def option_text(key: str, value: str) -> str:
    """Return what to type for an option of the data.

    >>> option_text("label_column", "tumor stage")
    "--set 'data.label_column=tumor stage'"
    """
    return f"--set {shlex.quote(f'data.{key}={value}')}"


def find_roles(
    header: Sequence[str], place: Place, label_column: str, group: str = ""
) -> Roles | None:
    """Return the roles of the columns; None, with the problem added, if the header cannot be
    used.
    """
    names = header_names(header, place)
    if names is None:
        return None

    shown = listed_columns(names)
    if label_column not in names:
        hint = did_you_mean(label_column, names).rstrip("?")
        message = f"No column {show(label_column)} for the labels (data.label_column){hint}; the columns are: {shown}."
        place.error("missing_label_column", message)
        return None

    if group and (group not in names or group == label_column):
        hint = did_you_mean(group, [name for name in names if name != label_column]).rstrip("?")
        message = (
            f"No column {show(group)} for the groups (data.group){hint}; the columns are: {shown}."
        )
        if group == label_column:
            message = f"Column {show(group)} holds the labels, so it cannot be the column of groups (data.group)."

        place.error("missing_group_column", message)
        return None

    label = names.index(label_column)
    split = names.index(SPLIT) if SPLIT in names and SPLIT not in (label_column, group) else None
    image = names.index(IMAGE) if IMAGE in names and IMAGE not in (label_column, group) else None
    with_group = names.index(group) if group else None
    roles = (label, split, image, with_group)
    others = tuple(index for index in range(len(names)) if index not in roles)

    if image is None and not others:
        place.error(
            "no_features", f"No column is left for features; an {IMAGE} is missing too: {shown}."
        )
        return None

    if image is not None and others:
        unused = ", ".join(show(names[index]) for index in others[:20])
        message = f"Because there is a column '{IMAGE}', {counted(len(others), 'column is', 'columns are')} not used"
        place.warning("unused_column", f"{message}: {unused}.")

    return Roles(names, label, others if image is None else (), split, image, with_group)


def check_table(place: Place, roles: Roles, cells: Cells) -> Table | None:
    """Return the table if every cell can be used; else None, with the problems added, one per
    column and kind.
    """
    usable = _check_numbers(place, roles, cells)
    if roles.label is not None:
        usable &= _check_filled(place, "label", cells.labels, MISSING_LABEL, cells.lines)
    if cells.groups is not None:
        usable &= _check_filled(place, "group", cells.groups, MISSING, cells.lines)

    is_test = None
    if cells.splits is not None:
        is_test = _check_split(place, cells.splits, cells.lines)
        if is_test is None:
            usable = False

    return Table(place, roles, cells, is_test) if usable else None


def _check_numbers(place: Place, roles: Roles, cells: Cells) -> bool:
    """Return whether no feature has text in place of numbers, or a number that is too large."""
    for column, (count, line, text) in cells.wrong.items():
        wrong_cells = counted(count, "cell has", "cells have")
        message = f"Column {show(column)} must hold numbers: {wrong_cells} another value, first {show(text)}."
        place.error("not_a_number", message, line)

    names = roles.feature_names
    infinite = np.isinf(cells.values)
    large = np.flatnonzero(infinite.any(axis=0))
    for index in large:
        rows = np.flatnonzero(infinite[:, index])
        line = cells.lines[rows[0]]
        values = counted(len(rows), "value")
        message = f"Column {show(names[index])} has {values} beyond 32-bit floats; the first is in row {line}."
        place.error("not_finite", message, line)

    return not cells.wrong and not len(large)


def refuse_missing_values(table: Table) -> None:
    """Add an error for every column with empty cells."""
    empty = np.isnan(table.cells.values)
    names = table.roles.feature_names
    for index in np.flatnonzero(empty.any(axis=0)):
        rows = np.flatnonzero(empty[:, index])
        line = table.cells.lines[rows[0]]
        message = (
            f"Column {show(names[index])} has {counted(len(rows), 'empty cell')}; the first is in row {line} "
            '(data.missing = "refuse").'
        )
        table.place.error("missing_value", message, line)


def _check_filled(
    place: Place, what: str, texts: Sequence[str], missing: Collection[str], lines: Sequence[int]
) -> bool:
    """Return whether every row has a label, or a group; add the problem if not."""
    empty = [row for row, text in enumerate(texts) if text.lower() in missing]
    if empty:
        line = lines[empty[0]]
        rows = counted(len(empty), "row has", "rows have")
        place.error(f"missing_{what}", f"{rows} no {what}; the first is row {line}.", line)
    return not empty


def _check_split(place: Place, splits: Sequence[str], lines: Sequence[int]) -> np.ndarray | None:
    """Return which rows are for testing (rows,); None, with the problem added, if a row says
    neither.
    """
    wrong = [row for row, split in enumerate(splits) if split.lower() not in PARTS]
    if wrong:
        got = show(splits[wrong[0]])
        rows = counted(len(wrong), "row has", "rows have")
        message = f"Column '{SPLIT}' must say train or test: {rows} another value, first {got}."
        place.error("wrong_split", message, lines[wrong[0]])
        return None
    return np.array([split.lower() == "test" for split in splits], dtype=bool)
