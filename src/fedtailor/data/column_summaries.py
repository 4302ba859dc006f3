"""Summaries of a table's columns: each site makes its own, and the server merges them.

From the merged summaries follows how cells become features
(:class:`fedtailor.data.columns.Columns`), the same at every site. A simulation makes them client by
client too, so its features are those of sites that keep their rows to themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.columns import (
    LARGEST_NUMBER,
    MAX_CATEGORIES,
    MAX_COLUMNS,
    MISSING,
    Column,
    Columns,
    RawTable,
    is_number_within,
    is_text,
    require,
    require_object,
)

_CHUNK = 2**22
"""Cells of which medians are computed at once."""
_MOST_CELLS = 2**40
"""Of a column at one site, so that sums over sites stay exact."""


@dataclass(frozen=True, eq=False)
class ColumnSummaries:
    """What one site's training rows say of every column of its table."""

    names: tuple[str, ...]
    """Of the columns."""
    categories: Mapping[str, tuple[str, ...]]
    """Columns of text: the categories that occur, sorted. All other columns hold numbers."""
    counts: np.ndarray  # (columns,), int64
    """Cells with a value."""
    medians: np.ndarray  # (columns,), float64
    """Columns of numbers: the median of the cells with a value, the mean of two where two are in
    the middle. 0 for columns of text, and where no cell has a value."""
    empty: np.ndarray  # (columns,), bool
    """Whether a cell is empty."""
    unused: tuple[str, ...] = ()
    """Other columns, see :class:`fedtailor.data.columns.Columns`."""

    def to_record(self) -> dict[str, Any]:
        """Return the summaries as an object for JSON, which keeps every bit."""
        columns: list[dict[str, Any]] = []
        facts = zip(
            self.names,
            self.counts.tolist(),
            self.medians.tolist(),
            self.empty.tolist(),
            strict=True,
        )

        for name, count, median, empty in facts:
            column: dict[str, Any] = {"name": name, "count": count, "empty": empty}
            if name in self.categories:
                column.update(kind="category", categories=list(self.categories[name]))
            else:
                column.update(kind="number", median=median)

            columns.append(column)

        return {"columns": columns, "unused": list(self.unused)}

    @classmethod
    def from_record(cls, record: Any) -> ColumnSummaries:
        """Return the summaries that :meth:`to_record` wrote.

        Args:
            record: from anyone.

        Raises:
            DataError: it is no such record, or holds impossible values; the message names the
                column.
        """
        what = "summaries of columns"
        require_object(record, {"columns", "unused"}, what, "an object with columns and unused")
        columns = record["columns"]
        unused = record["unused"]
        what = "columns of summaries"
        is_list = type(columns) is list and 0 < len(columns) <= MAX_COLUMNS
        require(is_list, what, f"a list of 1 to {MAX_COLUMNS} columns", columns)
        is_list = type(unused) is list and len(unused) <= MAX_COLUMNS
        are_texts = is_list and all(type(name) is str for name in unused)
        require(are_texts, f"unused {what}", f"a list of at most {MAX_COLUMNS} texts", unused)
        for column in columns:
            _check_column(column)

        names = [column["name"] for column in columns]
        every = [*names, *unused]
        require(len(set(every)) == len(every), what, "columns with different names", every)
        texts = [column for column in columns if column["kind"] == "category"]
        return cls(
            names=tuple(names),
            categories={column["name"]: tuple(column["categories"]) for column in texts},
            counts=np.array([column["count"] for column in columns], dtype=np.int64),
            medians=np.array([column.get("median", 0.0) for column in columns], dtype=np.float64),
            empty=np.array([column["empty"] for column in columns], dtype=bool),
            unused=tuple(unused),
        )


def _check_column(column: Any) -> None:
    """Check the record of one column.

    Raises:
        DataError: it is not one, or its values are impossible.
    """
    is_number = type(column) is dict and "median" in column
    entries = {"name", "kind", "count", "empty", "median" if is_number else "categories"}
    allowed = "an object with name, kind, count, empty, median or categories"
    require_object(column, entries, "a column of summaries", allowed)

    name = column["name"]
    require(is_text(name), "the name of a column of summaries", "a text that is not empty", name)
    title = f"column {name!r}"
    kind = "number" if is_number else "category"
    allowed = f"'{kind}', as its other entries say"
    require(column["kind"] == kind, f"kind of {title}", allowed, column["kind"])

    count = column["count"]
    is_count = type(count) is int and 0 <= count <= _MOST_CELLS
    require(is_count, f"count of {title}", f"a whole number from 0 to {_MOST_CELLS}", count)
    empty = column["empty"]
    require(type(empty) is bool, f"empty of {title}", "true or false", empty)

    if is_number:
        largest = LARGEST_NUMBER if count else 0.0
        median = column["median"]
        allowed = f"a number from {-largest:g} to {largest:g}"
        require(is_number_within(median, -largest, largest), f"median of {title}", allowed, median)
        return

    categories = column["categories"]
    what = f"categories of {title}"
    allowed = "different texts that are not empty, sorted; none only without values"
    are_texts = type(categories) is list and all(is_text(category) for category in categories)
    require(are_texts and bool(categories) == bool(count), what, allowed, categories)
    require(categories == sorted(set(categories)), what, allowed, categories)
    allowed = f"at most {MAX_CATEGORIES} texts, and no more than values"
    require(len(categories) <= min(MAX_CATEGORIES, count), what, allowed, len(categories))


class MergedColumns(NamedTuple):
    """How cells become features at every site."""

    columns: Columns | None
    """None: no column has a value in any training row."""
    left_out: tuple[str, ...]
    """Columns without a value in any training row."""


def summarize(x: np.ndarray, raw: RawTable, rows: np.ndarray) -> ColumnSummaries:
    """Return what some rows say of every column.

    Args:
        x: a table as it was read (rows, columns), see :class:`fedtailor.data.dataset.Dataset`.
        raw: its columns.
        rows: positions of one client's training rows.
    """
    width = x.shape[1]
    counts = np.zeros(width, dtype=np.int64)
    medians = np.zeros(width)
    step = max(_CHUNK // max(len(rows), 1), 1)
    for start in range(0, width, step):
        part = slice(start, start + step)
        counts[part], medians[part] = _counts_and_medians(x[rows, part])

    categories = {}
    for place, (name, texts) in enumerate(raw.columns):
        if texts:
            codes = x[rows, place]
            present = np.unique(codes[~np.isnan(codes)]).astype(np.int64)
            categories[name] = tuple(sorted({texts[code] for code in present}))
            medians[place] = 0.0

    names = tuple(column.name for column in raw.columns)
    return ColumnSummaries(names, categories, counts, medians, counts < len(rows), raw.unused)


def _counts_and_medians(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the cells with a value (columns,), and return their median; 0 if there are none."""
    ordered = np.sort(cells, axis=0)  # NaN last
    counts = len(cells) - np.isnan(ordered).sum(axis=0)
    medians = np.zeros(cells.shape[1])
    filled = np.flatnonzero(counts)
    lower = ordered[(counts[filled] - 1) // 2, filled].astype(np.float64)
    upper = ordered[counts[filled] // 2, filled].astype(np.float64)
    medians[filled] = (lower + upper) / 2
    return counts, medians


def merge_summaries(summaries: Sequence[ColumnSummaries], sites: Sequence[str]) -> MergedColumns:
    """Return how cells become features, from the summaries of all sites.

    What replaces an empty cell of a column of numbers is the weighted median of the sites' medians,
    weighted by their cells with a value: the median at which, from the smallest on, half of all
    these cells is passed. Where a median and all below it have exactly half of the cells, it is the
    mean of this and the next one. With one site it is the median of its cells. The categories of a
    column are those of all sites.

    Args:
        summaries: of every site, in the order of client ids; at least one.
        sites: their names, for messages.

    Raises:
        DataError: the sites' columns have different names, or a column holds numbers at one site
            and text at another, or has too many categories; the message names the column and the
            sites.
    """
    first = summaries[0]
    for other, site in zip(summaries[1:], sites[1:], strict=True):
        _check_names(first, other, sites[0], site)

    aligned = [_aligned(summary, first.names) for summary in summaries]
    fills = _weighted_medians(aligned)
    filled = np.any([summary.counts > 0 for summary in aligned], axis=0)
    empty = np.any([summary.empty for summary in aligned], axis=0)
    with_text = {name for summary in summaries for name in summary.categories}
    columns = []
    left_out = []

    for place, name in enumerate(first.names):
        if not filled[place]:
            left_out.append(name)
        elif name in with_text and _is_text(name, place, aligned, sites):
            categories: set[str] = set()
            for summary in aligned:
                categories.update(summary.categories.get(name, ()))

            if empty[place]:
                categories.add(MISSING)

            columns.append(Column(name, "category", tuple(sorted(categories)), MISSING))
        else:
            columns.append(Column(name, "number", fill=float(fills[place])))

    if not columns:
        return MergedColumns(None, tuple(left_out))

    unused = dict.fromkeys(name for summary in summaries for name in summary.unused)
    return MergedColumns(Columns(tuple(columns), (*unused, *left_out)), tuple(left_out))


def _check_names(
    first: ColumnSummaries, other: ColumnSummaries, first_site: str, site: str
) -> None:
    """Check that two sites have the same columns, in any order.

    Raises:
        DataError: they do not.
    """
    if first.names == other.names:
        return

    for names, others, has, lacks in (
        (first.names, set(other.names), first_site, site),
        (other.names, set(first.names), site, first_site),
    ):
        absent = [name for name in names if name not in others]
        if absent:
            message = (
                f"column {absent[0]!r} is in the table of site '{has}', but not in that of site "
                f"'{lacks}'."
            )
            raise DataError(
                message,
                key=absent[0],
                allowed="the same columns at all sites",
                got=f"none at '{lacks}'",
            )


def _aligned(summaries: ColumnSummaries, names: tuple[str, ...]) -> ColumnSummaries:
    """Return a site's summaries with its columns in another order."""
    if summaries.names == names:
        return summaries

    places = {name: place for place, name in enumerate(summaries.names)}
    order = np.array([places[name] for name in names])
    return dataclasses.replace(
        summaries,
        names=names,
        counts=summaries.counts[order],
        medians=summaries.medians[order],
        empty=summaries.empty[order],
    )


def _is_text(
    name: str, place: int, summaries: Sequence[ColumnSummaries], sites: Sequence[str]
) -> bool:
    """Return whether a column holds text. A site where it has no value does not know what it holds.

    Raises:
        DataError: it holds numbers at one site and text at another.
    """
    kinds: dict[bool, str] = {}
    for summary, site in zip(summaries, sites, strict=True):
        if summary.counts[place]:
            kinds.setdefault(name in summary.categories, site)

    if len(kinds) == 2:
        message = (
            f"column {name!r} holds numbers at site '{kinds[False]}' and text at site "
            f"'{kinds[True]}'."
        )
        raise DataError(
            message, key=name, allowed="numbers or text, the same at all sites", got="both"
        )

    return True in kinds


def _weighted_medians(summaries: Sequence[ColumnSummaries]) -> np.ndarray:
    """Return the weighted median (columns,) of the sites' medians, float32.

    It is any number where no cell has a value.
    """
    width = len(summaries[0].names)
    result = np.zeros(width, dtype=np.float32)
    step = max(_CHUNK // len(summaries), 1)
    for start in range(0, width, step):
        part = slice(start, start + step)
        values = np.stack([summary.medians[part] for summary in summaries])
        weights = np.stack([summary.counts[part] for summary in summaries])
        order = np.argsort(values, axis=0, kind="stable")
        values = np.take_along_axis(values, order, axis=0)
        passed = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
        half = passed[-1] / 2
        lower = np.take_along_axis(values, (passed >= half).argmax(0)[None], axis=0)[0]
        upper = np.take_along_axis(values, (passed > half).argmax(0)[None], axis=0)[0]
        result[part] = (lower + upper) / 2

    return result
