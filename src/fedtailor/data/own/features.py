"""The features of the tables of all sites, joined: one list of columns, and one code for each
category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedtailor.data.columns import MAX_CATEGORIES, RawColumn
from fedtailor.data.own.cells import ColumnNumbers
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.names import counted, joined, show
from fedtailor.data.own.patterns import (
    category_in,
    is_number,
    matches,
    option_text,
    share_like,
)
from fedtailor.data.own.rules import (
    FEATURES,
    FILLED_CELLS,
    SIMILAR_NAMES,
    TEXT_FEATURES,
)
from fedtailor.data.own.sites import Names
from fedtailor.data.own.table import Table

_CELLS_OF_A_CATEGORY = 5
"""A column with fewer cells than this for each of its many texts looks like an identifier."""


class Feature:
    """A column of all tables that is a feature: the facts for ``rules.TEXT_FEATURES``."""

    def __init__(self, name: str, tables: Sequence[Table]) -> None:
        self.name: str = name
        self.tables = tables
        self.cells = [table.columns[name] for table in tables]
        self._text_at = [cells.text_at for cells in self.cells]

    @property
    def title(self) -> str:
        """Its name in quotes."""
        return show(self.name)

    @property
    def is_text(self) -> bool:
        """Whether a cell of any table holds text."""
        return any(at is not None for at in self._text_at)

    @cached_property
    def texts(self) -> list[str]:
        """All categories, in the order of appearance; not all if there are very many."""
        categories = (category_in(text) for cells in self.cells for text in cells.texts)
        return [text for text in dict.fromkeys(categories) if text]

    @cached_property
    def others(self) -> list[str]:
        """The categories that are not numbers."""
        return [text for text in self.texts if not is_number(text)]

    @cached_property
    def numbers(self) -> list[str]:
        """The categories that are numbers."""
        return [text for text in self.texts if is_number(text)]

    @property
    def is_full(self) -> bool:
        """Whether there are more texts than were kept."""
        return any(cells.is_full for cells in self.cells)

    @property
    def many(self) -> str:
        """How many texts there are, in words."""
        return f"more than {MAX_CATEGORIES}" if self.is_full else str(len(self.texts))

    @cached_property
    def first_text(self) -> tuple[Table, int, str]:
        """The first cell that is text: its table, line and text."""
        pairs = zip(self.tables, self._text_at, strict=True)
        table, at = next((table, at) for table, at in pairs if at is not None)
        assert at.row is not None
        return table, table.lines[at.row], category_in(at.value)

    @property
    def example(self) -> str:
        """The first text, and where it is."""
        table, line, text = self.first_text
        return f"{show(text)} (row {line} of {show(table.place.path)})"

    @property
    def num_filled(self) -> int:
        """How many cells have a value."""
        return sum(cells.num_filled for cells in self.cells)

    @property
    def average_words(self) -> float:
        """How many words a text has on average."""
        return sum(len(text.split()) for text in self.others) / max(len(self.others), 1)

    @property
    def is_varied(self) -> bool:
        """Whether most cells have a text of their own, or there are more than categories may be."""
        return len(self.texts) > max(min(self.num_filled / 2, MAX_CATEGORIES), 2)

    @property
    def reason_for_many(self) -> str:
        """What is the likely reason for very many texts, and what to do."""
        if len(self.numbers) > len(self.texts) / 2:
            texts = counted(len(self.others), "text")
            return f"Most are numbers: correct or empty the cells that are not ({texts})."

        cells_of_a_text = self.num_filled / len(self.texts)
        if cells_of_a_text < _CELLS_OF_A_CATEGORY:
            option = option_text("group", self.name)
            return (
                f"It looks like an identifier or free text, with {cells_of_a_text:.1f} cells for "
                "each text: remove the column, or if it says which rows belong together, such as "
                f"those of a patient: {option}."
            )

        return "Remove the column, or merge its categories into fewer."

    def exceeds(self, most: int) -> bool:
        """Return whether there are more texts."""
        return self.is_full or len(self.texts) > most

    def mostly_like(self, pattern: re.Pattern[str]) -> str:
        """Return the first text that matches, in quotes, if more than half do; else nothing."""
        return self._like(pattern) if share_like(pattern, self.others) > 0.5 else ""

    def all_like(self, pattern: re.Pattern[str]) -> str:
        """Return the first text that matches, in quotes, if all do; else nothing."""
        return self._like(pattern) if share_like(pattern, self.others) == 1 else ""

    def _like(self, pattern: re.Pattern[str]) -> str:
        return show(next(text for text in self.others if matches(pattern, text)))

    def check(self) -> bool:
        """Return whether the column can be used; add what is wrong with its texts."""
        if not self.is_text:
            return True

        table, line, _ = self.first_text
        if not table.place.check(TEXT_FEATURES, self, line):
            return False

        what = f"In column {self.title}, the categories"
        return table.place.findings.check(SIMILAR_NAMES, Names(what, self.texts))

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The categories, sorted; none for numbers."""
        return tuple(sorted(self.texts)) if self.is_text else ()

    def values(self) -> np.ndarray:
        """Return the cells of all tables (rows,), float32: numbers, or positions in the categories;
        NaN for empty cells.
        """
        if not self.is_text:
            return np.concatenate([cells.numbers for cells in self.cells])

        position: dict[str, float] = {text: code for code, text in enumerate(self.categories)}
        position[""] = float("nan")
        parts = []
        for cells in self.cells:
            codes = [position[category_in(text)] for text in cells.texts]
            parts.append(np.array(codes, dtype=np.float32)[cells.codes])

        return np.concatenate(parts)


class Joined(NamedTuple):
    """The features of all tables."""

    x: np.ndarray
    """All rows (rows, features), float32: numbers, or positions in the texts of a column; NaN for
    empty cells."""
    columns: tuple[RawColumn, ...]


def join_features(
    names: Sequence[str], tables: Sequence[Table], findings: Findings, *, refuses_missing: bool
) -> Joined | None:
    """Join the features of tables with the same columns in any order.

    A column without a value in any table stays, as one of empty cells: another site may have values
    there. It is left out when the features are made, unless that site takes part.

    Returns:
        None, with the problems added, if they cannot be used.
    """
    features = [Feature(name, tables) for name in names]
    usable = [feature.check() for feature in features]
    if not all(usable):
        return None

    rows = sum(len(table.lines) for table in tables)
    x = np.empty((rows, len(features)), dtype=np.float32)
    for place, feature in enumerate(features):
        x[:, place] = feature.values()

    num_empty = np.isnan(x).sum(axis=0)
    if refuses_missing and num_empty.any():
        _refuse_missing(x, features, tables)
        return None

    is_empty = num_empty == rows
    for feature, empty in zip(features, is_empty, strict=True):
        if empty:
            message = f"Column {feature.title} has no value in any table, and is left out."
            findings.add("empty_column", message)

    if is_empty.all():
        findings.add("no_features", "No column of features has any value.")
        return None

    used = [feature for feature, empty in zip(features, is_empty, strict=True) if not empty]
    _describe(used, num_empty[~is_empty], rows, findings)
    for feature in used:
        tables[0].place.check(FEATURES, feature)

    return Joined(x, tuple(RawColumn(feature.name, feature.categories) for feature in features))


def _refuse_missing(x: np.ndarray, features: Sequence[Feature], tables: Sequence[Table]) -> None:
    """Add an error for every column of a table with empty cells."""
    start = 0
    for table in tables:
        own = x[start : start + len(table.lines)]
        start += len(table.lines)
        for place in np.flatnonzero(np.isnan(own).any(axis=0)).tolist():
            cells = ColumnNumbers(features[place].name, own[:, place], table.lines)
            table.place.check(FILLED_CELLS, cells)


def _describe(
    features: Sequence[Feature], num_empty: np.ndarray, rows: int, findings: Findings
) -> None:
    """Add notes on the number of columns, and on the empty cells by column."""
    texts = [feature for feature in features if feature.is_text]
    kinds = []
    if not texts:
        kinds.append(counted(len(features), "feature"))
    elif len(texts) < len(features):
        numbers = len(features) - len(texts)
        kinds.append(counted(numbers, "column of numbers", "columns of numbers"))

    if texts:
        kinds.append(counted(len(texts), "column of categories", "columns of categories"))

    note = f"{' and '.join(kinds)}, in the order of {features[0].tables[0].place.path}."
    if texts:
        sizes = joined(f"{feature.title} ({len(feature.categories)})" for feature in texts)
        note = f"{note} Categories: {sizes}."

    findings.note(note)
    empty = zip(features, num_empty.tolist(), strict=True)
    by_column = [f"{feature.title} {count}" for feature, count in empty if count]
    if by_column:
        cells = counted(int(num_empty.sum()), "empty cell")
        findings.note(
            f"{cells} in {rows} rows, by column: {joined(by_column)}. The median of the training "
            "examples of all sites replaces an empty number, and the category 'missing' an empty "
            "text."
        )
