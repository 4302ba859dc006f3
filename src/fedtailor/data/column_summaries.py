"""Summaries of a table's columns: each site makes its own, and the server merges them.

From the merged summaries follows how cells become features
(:class:`fedtailor.data.columns.Columns`), the same at every site. A simulation makes them client by
client too, so its features are those of sites that keep their rows to themselves.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.options import Range
from fedtailor.data.columns import (
    MAX_CATEGORIES,
    MAX_VALUES,
    MISSING,
    Column,
    Columns,
    Number,
    RawTable,
    are_categories,
    check_column_names,
    is_text,
    read_record,
    require,
    require_object,
)

_CHUNK = 2**22
"""Cells of which medians are computed at once."""


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """What one site's training rows say of a column."""

    name: str
    count: Annotated[int, Range(ge=0, le=MAX_VALUES)]
    """Cells with a value."""
    empty: bool
    """Whether a cell is empty."""
    median: Number = 0.0
    """The median of the numbers, the mean of two where two are in the middle; 0 for text, and where
    no cell has a value."""
    categories: tuple[str, ...] | None = None
    """The categories that occur, sorted; None if the column holds numbers."""


@dataclass(frozen=True)
class ColumnSummaries:
    """What one site's training rows say of every column of its table."""

    columns: tuple[ColumnSummary, ...]
    unused: tuple[str, ...] = ()
    """Other columns, see :class:`fedtailor.data.columns.Columns`."""

    def to_record(self) -> dict[str, Any]:
        """Return the summaries as an object for JSON, which keeps every bit."""
        columns = [asdict(column) for column in self.columns]
        return {"columns": columns, "unused": list(self.unused)}

    @classmethod
    def from_record(cls, record: Any) -> ColumnSummaries:
        """Return the summaries that :meth:`to_record` wrote.

        Args:
            record: from anyone.

        Raises:
            DataError: it is not such a record, or holds impossible values; the message names the
                column.
        """
        what = "summaries of columns"
        require_object(record, {"columns", "unused"}, what, "an object with columns and unused")
        are_lists = type(record["columns"]) is list and type(record["unused"]) is list
        require(are_lists, what, "lists of columns and of unused ones", record)

        columns = tuple(_read_column(column) for column in record["columns"])
        check_column_names([column.name for column in columns], record["unused"])
        return cls(columns, tuple(record["unused"]))


def _read_column(column: Any) -> ColumnSummary:
    """Return the summary of one column.

    Raises:
        DataError: it is not one, or its values are impossible.
    """
    summary = read_record(ColumnSummary, column, "column")
    require(is_text(summary.name), "the name of a column", "a text that is not empty", summary.name)
    title = f"column {summary.name!r}"
    has_numbers = summary.categories is None and summary.count > 0
    allowed = "0 where there are no numbers"
    require(has_numbers or not summary.median, f"median of {title}", allowed, summary.median)

    if summary.categories is not None:
        what = f"categories of {title}"
        categories = summary.categories
        are_right = are_categories(categories) and bool(categories) == bool(summary.count)
        allowed = "different texts that are not empty, sorted; none only without values"
        require(are_right, what, allowed, categories)
        allowed = f"at most {MAX_CATEGORIES} texts, and no more than values"
        are_few = len(categories) <= min(MAX_CATEGORIES, summary.count)
        require(are_few, what, allowed, len(categories))

    return summary


class MergedColumns(NamedTuple):
    """How cells become features at every site."""

    columns: Columns | None
    """None: no column has a value in any training row."""
    left_out: tuple[str, ...]
    """Columns without a value in any training row."""


def summarize(x: np.ndarray, raw: RawTable, positions: np.ndarray) -> ColumnSummaries:
    """Return what some examples say of every column.

    Args:
        x: a table as it was read (rows, columns), see :class:`fedtailor.data.dataset.Dataset`.
        raw: its columns.
        positions: of one client's training examples.
    """
    width = x.shape[1]
    counts = np.zeros(width, dtype=np.int64)
    medians = np.zeros(width)
    # Some columns at a time: sorting copies the cells.
    step = max(_CHUNK // max(len(positions), 1), 1)
    for start in range(0, width, step):
        part = slice(start, start + step)
        counts[part], medians[part] = _counts_and_medians(x[positions, part])

    columns = []
    facts = zip(raw.columns, counts.tolist(), medians.tolist(), strict=True)
    for index, ((name, texts), count, median) in enumerate(facts):
        categories = None
        if texts:
            codes = x[positions, index]
            present = np.unique(codes[~np.isnan(codes)]).astype(np.int64)
            categories = tuple(sorted({texts[code] for code in present}))
            median = 0.0

        columns.append(ColumnSummary(name, count, count < len(positions), median, categories))

    return ColumnSummaries(tuple(columns), raw.unused)


def _counts_and_medians(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the cells with a value (columns,), and return their median; 0 if there are none."""
    ordered = np.sort(cells, axis=0)  # NaN last
    counts = len(cells) - np.isnan(ordered).sum(axis=0)
    medians = np.zeros(cells.shape[1])
    filled = np.flatnonzero(counts)
    # The mean of the two in the middle, which are the same one if the count is odd.
    lower = ordered[(counts[filled] - 1) // 2, filled].astype(np.float64)
    upper = ordered[counts[filled] // 2, filled].astype(np.float64)
    medians[filled] = (lower + upper) / 2
    return counts, medians


def merge_summaries(
    summaries: Sequence[ColumnSummaries], sites: Sequence[str], *, indicates_missing: bool = False
) -> MergedColumns:
    """Return how cells become features, from the summaries of all sites.

    What replaces an empty cell of a column of numbers is the weighted median of the sites' medians,
    weighted by their cells with a value: the median at which, from the smallest on, half of all
    these cells is passed. Where a median and all below it have exactly half of the cells, it is the
    mean of this and the next one. With one site it is the median of its cells. The categories of a
    column are those of all sites.

    Args:
        summaries: of every site, in the order of client ids; at least one.
        sites: their names, for messages.
        indicates_missing: whether a column of numbers gets a feature for empty cells, if a site has
            one.

    Raises:
        DataError: the sites' columns have different names, or a column holds numbers at one site
            and text at another, or has too many categories; the message names the column and the
            sites.
    """
    # The columns of every site by name: their order may differ.
    tables = [{column.name: column for column in summary.columns} for summary in summaries]
    for table, site in zip(tables, sites, strict=True):
        _check_names(tables[0], table, sites[0], site)
        _check_names(table, tables[0], site, sites[0])

    columns = []
    left_out = []
    for name in tables[0]:
        pairs = zip(sites, (table[name] for table in tables), strict=True)
        filled = [(site, column) for site, column in pairs if column.count]
        if not filled:
            left_out.append(name)
            continue

        is_empty_somewhere = any(table[name].empty for table in tables)
        if _holds_text(name, filled):
            categories: set[str] = set()
            for _, column in filled:
                categories.update(column.categories or ())

            # An empty cell is a category of its own where training rows have one.
            if is_empty_somewhere:
                categories.add(MISSING)

            columns.append(Column(name, "category", tuple(sorted(categories)), MISSING))
        else:
            median = _weighted_median([column for _, column in filled])
            has_mark = indicates_missing and is_empty_somewhere
            columns.append(Column(name, "number", fill=median, indicates_missing=has_mark))

    if not columns:
        return MergedColumns(None, tuple(left_out))

    unused = dict.fromkeys(name for summary in summaries for name in summary.unused)
    return MergedColumns(Columns(tuple(columns), (*unused, *left_out)), tuple(left_out))


def _check_names(names: Iterable[str], others: Container[str], has: str, lacks: str) -> None:
    """Check that a site has the columns of another one.

    Raises:
        DataError: it lacks one.
    """
    for name in names:
        if name not in others:
            message = f"column {name!r} is at site '{has}', but not at site '{lacks}'."
            allowed = "the same columns at all sites"
            raise DataError(message, key=name, allowed=allowed, got=f"none at '{lacks}'")


def _holds_text(name: str, columns: Sequence[tuple[str, ColumnSummary]]) -> bool:
    """Return whether a column holds text at the sites where it has values.

    Raises:
        DataError: it holds numbers at one site and text at another.
    """
    numbers = [site for site, column in columns if column.categories is None]
    texts = [site for site, column in columns if column.categories is not None]
    if numbers and texts:
        message = (
            f"column {name!r} holds numbers at site '{numbers[0]}' and text at site '{texts[0]}'."
        )
        allowed = "numbers or text, the same at all sites"
        raise DataError(message, key=name, allowed=allowed, got="both")

    return bool(texts)


def _weighted_median(columns: Sequence[ColumnSummary]) -> float:
    """Return the weighted median of the sites' medians, as a 32-bit float."""
    half = sum(column.count for column in columns) / 2
    passed = 0
    middle = []
    for column in sorted(columns, key=lambda column: column.median):
        # Where half is passed exactly, this median and the next one are in the middle.
        passed += column.count
        if passed >= half:
            middle.append(column.median)

        if passed > half:
            break

    return float(np.float32((middle[0] + middle[-1]) / 2))
