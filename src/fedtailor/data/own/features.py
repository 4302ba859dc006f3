"""The features of all tables: one list of columns, and one code for each category."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from fedtailor.core.errors import joined
from fedtailor.core.text import counted, listed, quoted
from fedtailor.data.columns import MAX_CATEGORIES, Columns, RawColumn
from fedtailor.data.own.cells import Table, first_at
from fedtailor.data.own.findings import Finding, Findings
from fedtailor.data.own.kinds import DATES, SERIES
from fedtailor.data.own.patterns import (
    DATE,
    DECIMAL_COMMA,
    IMAGE,
    LIST,
    THOUSANDS_COMMA,
    category_in,
    is_identifier,
    is_number,
    leave_out_text,
    matches,
    missing_value_text,
    option_text,
    share_like,
)
from fedtailor.data.own.sites import compare_sites

_CELLS_OF_A_CATEGORY = 5
"""A column with fewer cells than this for each of its many texts looks like an identifier."""

_WORDS_OF_FREE_TEXT = 5

_NUMBERS_OF_A_MEASUREMENT = 10
"""A column with as many different numbers measures something: its numbers are not categories."""
_STRAY = 0.05
"""Share of the cells up to which text in such a column is a typing error."""

_FEW_COLUMNS = 1_000
"""Columns of numbers in whose values heavy tails are looked for: of more, it takes seconds."""
_HEAVY = 1.5
"""Times the deviation that the quartiles of normal values would have: from here on, a column has
heavy tails."""

_UNUSABLE = (
    ("dates", DATE, "dates or times", DATES),
    ("time_series", LIST, "lists of numbers", SERIES),
    (
        "image_paths",
        IMAGE,
        "paths of images",
        "A column with the paths of images must be called 'image'.",
    ),
)
"""Kind of the problem, pattern, what most texts of the column are, and what to do."""


class _Feature:
    """A column of all tables."""

    def __init__(
        self, name: str, tables: Sequence[Table], kind: Literal["number", "category"] | None
    ) -> None:
        """Use a column; ``kind`` is None if the cells are to say it."""
        self.name: str = name
        self.title = f"Column {quoted(name)}"
        self.tables = tables
        self.cells = [table.columns[name] for table in tables]
        self.text_at = [cells.text_at for cells in self.cells]
        self.is_text = any(self.text_at) if kind is None else kind == "category"

    @cached_property
    def texts(self) -> list[str]:
        """All categories, in the order of appearance; not all if there are very many."""
        categories = (category_in(text) for cells in self.cells for text in cells.texts)
        return [text for text in dict.fromkeys(categories) if text]

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The categories, sorted; none for numbers."""
        return tuple(sorted(self.texts)) if self.is_text else ()

    def values(self) -> np.ndarray:
        """Return the cells of all tables (rows,), float32: numbers, or positions in the categories.

        Empty cells are NaN.
        """
        if not self.is_text:
            return np.concatenate([cells.numbers for cells in self.cells])

        position: dict[str, float] = {text: code for code, text in enumerate(self.categories)}
        # An empty cell is NaN, as in a column of numbers.
        position[""] = float("nan")

        def code_of(text: str) -> float:
            return position[category_in(text)]

        return np.concatenate([cells.look_up(code_of, np.float32) for cells in self.cells])


def collect_features(
    tables: Mapping[str, Sequence[Table]], columns: Columns | None
) -> list[_Feature]:
    """Return the features.

    Args:
        tables: those that have a column, by its name.
        columns: of the data in training, if there are any: other columns are left out.
    """
    if columns is None:
        return [_Feature(name, having, None) for name, having in tables.items()]

    kinds = {column.name: column.kind for column in columns.columns}
    return [_Feature(name, tables[name], kinds[name]) for name in tables if name in kinds]


def check_features(
    features: Sequence[_Feature], findings: Findings, *, refuses_missing: bool
) -> None:
    """Add all that is wrong with or unlike in the columns of all tables."""
    for feature in features:
        if feature.is_text:
            _check_texts(feature, findings)
        else:
            _compare_numbers(feature, findings)

        if refuses_missing:
            _refuse_missing(feature)

        if is_identifier(feature.name):
            message = (
                f"{feature.title} is a feature, although called like an identifier: leave it out "
                f"({leave_out_text(feature.name)}), or let it say which rows belong together: "
                f"{option_text('group', feature.name)}."
            )
            feature.tables[0].place.add("identifier", message)

    _note_missing_words(features, findings)
    numbers = [feature for feature in features if not feature.is_text]
    if len(numbers) <= _FEW_COLUMNS:
        _note_heavy_tails(numbers, findings)


def join_features(
    features: Sequence[_Feature], findings: Findings, *, learns: bool
) -> tuple[np.ndarray, tuple[RawColumn, ...]] | None:
    """Join features that every table has.

    A column without a value in any table stays, as one of empty cells: another site may have values
    there. It is left out when the features are made, unless that site takes part.

    Args:
        features: of all tables.
        findings: where problems are added.
        learns: whether columns follow from these tables, and not from those of a model.

    Returns:
        All rows (rows, features), float32, and the columns. A cell is a number, or a position in
        the texts of its column; NaN if it is empty. None, with the problem added, if no column has
        a value.
    """
    rows = sum(len(table.lines) for table in features[0].tables)
    x = np.empty((rows, len(features)), dtype=np.float32)
    for index, feature in enumerate(features):
        x[:, index] = feature.values()

    # Empty everywhere: the column stays in x, but no site learns from it.
    empty = []
    used = []
    for feature, count in zip(features, np.isnan(x).sum(axis=0).tolist(), strict=True):
        if count == rows:
            empty.append(feature.title)
        else:
            used.append((feature, count))

    if learns:
        for title in empty:
            message = f"{title} has no value in any table, and is left out."
            findings.add("empty_column", message)

    if not used:
        findings.add("no_features", "No column of features has any value.")
        return None

    _describe(used, rows, findings)
    return x, tuple(RawColumn(feature.name, feature.categories) for feature in features)


def _check_texts(feature: _Feature, findings: Findings) -> None:
    """Add what is wrong with a column of text to its first text."""
    pairs = zip(feature.tables, feature.text_at, strict=True)
    table, at = next((table, at) for table, at in pairs if at is not None)
    line = table.lines[at.row]
    example = f"{quoted(category_in(at.text))} (row {line} of {quoted(table.place.path)})"
    if not table.place.check(_find_wrong_texts(feature, example, line)):
        return

    what = f"In column {quoted(feature.name)}, the categories"
    findings.warn_of_similar_names(what, feature.texts)


def _compare_numbers(feature: _Feature, findings: Findings) -> None:
    """Add what is unlike between the sites in a column of numbers."""
    pairs = zip(feature.tables, feature.cells, strict=True)
    values = {table.place.site: cells.numbers for table, cells in pairs}
    for kind, message, _ in compare_sites(feature.name, values):
        findings.add(kind, message)


def _note_missing_words(features: Sequence[_Feature], findings: Findings) -> None:
    """Add a note on the words that are missing values among numbers."""
    columns = []
    for feature in features:
        if feature.is_text:
            continue

        counts: Counter[str] = Counter()
        for cells in feature.cells:
            counts.update(cells.missing_words)

        if counts:
            words = joined(f"{quoted(word)} {count}" for word, count in counts.items())
            columns.append(f"{quoted(feature.name)}: {words}")

    if columns:
        findings.note(f"Words among numbers that are missing values: {'; '.join(columns)}.")


def _note_heavy_tails(features: Sequence[_Feature], findings: Findings) -> None:
    """Add a note on columns of numbers with values far beyond most."""
    names = []
    for feature in features:
        values = feature.values().astype(np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            continue

        # Of normal values, the quartiles are 1.35 deviations apart.
        low, high = np.quantile(values, [0.25, 0.75])
        if 0 < _HEAVY * (high - low) / 1.35 < values.std():
            names.append(feature.name)

    if names:
        findings.note(
            f"Some values are far beyond most in {listed(names)}: a network may learn better from "
            f"{option_text('numbers', 'quantile')} or {option_text('numbers', 'bins')}. Compare "
            "them on validation examples."
        )


def _find_wrong_texts(feature: _Feature, example: str, line: int) -> Iterator[Finding]:
    """Yield what is wrong with a column that holds text; the first error says what it holds."""
    texts = feature.texts
    title = feature.title
    leave_out = f"To leave the column out: {leave_out_text(feature.name)}."
    numbers = [text for text in texts if is_number(text)]
    others = [text for text in texts if not is_number(text)]
    # From the most certain reason to the least.
    if all(matches(DECIMAL_COMMA, text) or matches(THOUSANDS_COMMA, text) for text in others):
        points = [text for text in numbers if "." in text]
        beside = f" beside {quoted(points[0])}" if points else ""
        message = (
            f"{title} holds numbers with a comma, such as {quoted(others[0])}{beside}. If it is "
            f"the decimal point: {option_text('decimal', 'comma')}; if it separates thousands: "
            f"{option_text('decimal', 'point')}."
        )
        yield Finding("not_a_number", message, line)

    for kind, pattern, what, advice in _UNUSABLE:
        if share_like(pattern, others) > 0.5:
            text = next(text for text in others if matches(pattern, text))
            message = f"{title} holds {what}, such as {quoted(text)}. {advice} {leave_out}"
            yield Finding(kind, message, line)

    num_filled = sum(cells.num_filled for cells in feature.cells)
    num_texts = sum(at.num_rows for at in feature.text_at if at is not None)
    # Of a long column, only the cells up to the last text that was kept are counted as filled.
    num_numbers = sum(np.count_nonzero(~np.isnan(cells.numbers)) for cells in feature.cells)
    num_values = max(num_filled, num_numbers + num_texts)
    if len(numbers) >= _NUMBERS_OF_A_MEASUREMENT and num_texts <= _STRAY * num_values:
        text = json.dumps(others[0], ensure_ascii=False)
        message = (
            f"{title} holds numbers, but text in {num_texts} of {num_values} cells, such as "
            f"{example}. Correct or empty them, or say which text means a missing value: "
            f"{missing_value_text(feature.name, text)}."
        )
        yield Finding("stray_text", message, line)

    # Long texts that rarely occur twice.
    words = sum(len(text.split()) for text in others) / max(len(others), 1)
    is_varied = len(texts) > max(min(num_filled / 2, MAX_CATEGORIES), 2)
    if words >= _WORDS_OF_FREE_TEXT and is_varied:
        message = f"{title} holds free text, such as {quoted(others[0])}. {leave_out}"
        yield Finding("free_text", message, line)

    # More categories than a model should have features for: say the likely reason.
    is_full = any(cells.is_full for cells in feature.cells)
    if is_full or len(texts) > MAX_CATEGORIES:
        if len(numbers) > len(texts) / 2:
            cells = counted(len(others), "text")
            advice = f"Most are numbers: correct or empty the cells that are not ({cells})."
        elif num_filled < _CELLS_OF_A_CATEGORY * len(texts):
            advice = (
                "It looks like an identifier or free text. It can say which rows belong together: "
                f"{option_text('group', feature.name)}. {leave_out}"
            )
        else:
            advice = f"Merge its categories into fewer. {leave_out}"

        many = f"more than {MAX_CATEGORIES}" if is_full else str(len(texts))
        message = (
            f"{title} has {many} different texts, such as {example}; at most {MAX_CATEGORIES} "
            f"categories are read. {advice}"
        )
        yield Finding("too_many_categories", message, line)

    # Text in a column of numbers is often a typing error.
    if numbers:
        message = (
            f"{title} holds numbers such as {quoted(numbers[0])} and text such as {example}: each "
            "is a category. If it should hold numbers, correct or empty the others."
        )
        yield Finding("mixed_column", message, line)


def _refuse_missing(feature: _Feature) -> None:
    """Add an error for every table in which a column has empty cells."""
    for table, cells in zip(feature.tables, feature.cells, strict=True):
        if feature.is_text:
            at = cells.at(lambda text: category_in(text) == "")
        else:
            at = first_at(np.isnan(cells.numbers))

        what = 'empty cells (data.missing = "refuse")'
        table.check_cells("missing_value", feature.name, what, at and at._replace(text=""))


def _describe(used: Sequence[tuple[_Feature, int]], rows: int, findings: Findings) -> None:
    """Add notes on the columns, and on their numbers of empty cells."""
    texts = [feature for feature, _ in used if feature.is_text]
    numbers = len(used) - len(texts)
    kinds = []
    if not texts:
        kinds.append(counted(numbers, "feature"))
    elif numbers:
        kinds.append(counted(numbers, "column of numbers", "columns of numbers"))

    if texts:
        kinds.append(counted(len(texts), "column of categories", "columns of categories"))

    note = f"{' and '.join(kinds)}, in the order of {used[0][0].tables[0].place.path}."
    if texts:
        sizes = joined(f"{quoted(feature.name)} ({len(feature.categories)})" for feature in texts)
        note = f"{note} Categories: {sizes}."

    findings.note(note)
    # Those with the most empty cells are named.
    emptiest = sorted(used, key=lambda column: -column[1])
    by_column = [f"{quoted(feature.name)} {count}" for feature, count in emptiest if count]
    if by_column:
        cells = counted(sum(count for _, count in used), "empty cell")
        findings.note(
            f"{cells} in {rows} rows, by column: {joined(by_column)}. The median of the training "
            "examples replaces an empty number, and the category 'missing' an empty text."
        )
