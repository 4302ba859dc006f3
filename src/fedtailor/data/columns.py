"""The columns of a table, and how their cells become features.

The plan is fitted to the training rows, stored as JSON, and applied again to every table that is
predicted. It imports no torch. scikit-learn's ``SimpleImputer`` and ``OneHotEncoder`` give the same
numbers, as a test shows. They are not used here, because they can be stored only as pickles, which
this package never reads, and because importing them takes a second, for what is one comparison per
column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.reading import parse_json

MISSING = "missing"
"""The category of an empty cell."""

MAX_CATEGORIES = 50
"""Most categories of a column."""

MAX_COLUMNS = 1_000_000
"""Most columns of a plan."""

_FORMAT = "fedtailor columns 1"
_LARGEST = float(np.finfo(np.float32).max)


class Texts(NamedTuple):
    """The cells of a column of categories: row k holds ``texts[codes[k]]``."""

    codes: np.ndarray  # (rows,), whole numbers; -1: the cell is empty
    texts: tuple[str, ...]


class Encoded(NamedTuple):
    """The features of a table, and how many cells were replaced, by column; columns without such
    cells are left out.
    """

    x: np.ndarray  # (rows, features), float32
    missing: dict[str, int]
    """Empty cells."""
    unseen: dict[str, int]
    """Cells with a category that no training row has: all their features are 0."""


class RawColumn(NamedTuple):
    """A column of a table as it was read."""

    name: str
    texts: tuple[str, ...] = ()
    """Columns of categories: every text in it, sorted; none for numbers."""


class RawTable(NamedTuple):
    """The columns of a table as it was read, before the training rows are known."""

    columns: tuple[RawColumn, ...]
    unused: tuple[str, ...] = ()
    """Other columns, see :class:`Columns`."""


@dataclass(frozen=True)
class Column:
    """A column of a table, and how its cells become features.

    Raises:
        DataError: the fields do not fit together.
    """

    name: str
    kind: Literal["number", "category"]
    """A number is one feature; a category is one feature for each category, 1 if the cell holds it,
    else 0."""
    categories: tuple[str, ...] = ()
    """The categories of the training rows, sorted."""
    fill: float | str = 0.0
    """What replaces an empty cell: a number, or ``missing``, a category if a training row has an
    empty cell."""

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name:
            raise _refuse("the name of a column", "a text that is not empty", self.name)

        if self.kind == "number":
            is_number = isinstance(self.fill, int | float) and not isinstance(self.fill, bool)
            if (
                not is_number or not -_LARGEST <= cast(float, self.fill) <= _LARGEST
            ):  # NaN is not within
                raise _refuse(f"fill of column {self.name!r}", "a finite 32-bit number", self.fill)

            if self.categories:
                raise _refuse(
                    f"categories of column {self.name!r}",
                    "none, because it holds numbers",
                    self.categories,
                )
        elif self.kind == "category":
            self._check_categories()
        else:
            raise _refuse(f"kind of column {self.name!r}", "number or category", self.kind)

    def _check_categories(self) -> None:
        categories = self.categories
        if any(type(category) is not str or not category for category in categories):
            raise _refuse(
                f"categories of column {self.name!r}", "texts that are not empty", categories
            )

        if not 0 < len(categories) <= MAX_CATEGORIES or list(categories) != sorted(set(categories)):
            allowed = f"1 to {MAX_CATEGORIES} different texts, sorted"
            raise _refuse(f"categories of column {self.name!r}", allowed, categories)

        if self.fill != MISSING:
            raise _refuse(f"fill of column {self.name!r}", f"'{MISSING}'", self.fill)

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 if self.kind == "number" else len(self.categories)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, such as ``age``, or ``sex=female`` and ``sex=male``."""
        if self.kind == "number":
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)


@dataclass(frozen=True)
class Columns:
    """How the cells of a table become features; a value that can be stored and applied again.

    Raises:
        DataError: there is no column, or a name appears twice.

    Example:
        >>> plan = Columns((Column("age", "number", fill=60.0), Column("sex", "category", ("f", "m"), "missing")))
        >>> plan.feature_names
        ('age', 'sex=f', 'sex=m')
        >>> age = np.array([50.0, np.nan])
        >>> plan.encode({"age": age, "sex": Texts(np.array([1, 0]), ("diverse", "m"))})
        Encoded(x=array([[50.,  0.,  1.],
               [60.,  0.,  0.]], dtype=float32), missing={'age': 1}, unseen={'sex': 1})
    """

    columns: tuple[Column, ...]
    """In the order of the features."""
    unused: tuple[str, ...] = ()
    """Other columns of the training tables, which a table may have and which are ignored: label,
    group, split, and columns that were left out."""

    def __post_init__(self) -> None:
        if not 0 < len(self.columns) <= MAX_COLUMNS or len(self.unused) > MAX_COLUMNS:
            raise _refuse("columns", f"1 to {MAX_COLUMNS} columns", len(self.columns))
        if any(type(name) is not str for name in self.unused):
            raise _refuse("unused columns", "texts", self.unused)
        counts = Counter([*self.names, *self.unused])
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise _refuse("columns", "columns with different names", f"{twice[0]!r} twice")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all features, in their order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def encode(self, cells: Mapping[str, np.ndarray | Texts]) -> Encoded:
        """Return the features of a table.

        Args:
            cells: by name of the column, numbers (rows,) with NaN for empty cells, or texts. Other
                names are ignored.

        Raises:
            DataError: a column is missing, has cells of the other kind, another number of rows, or
                an infinite number.
        """
        rows = _count_rows(cells, self.columns)
        x = np.zeros((rows, sum(column.width for column in self.columns)), dtype=np.float32)
        missing: dict[str, int] = {}
        unseen: dict[str, int] = {}
        start = 0

        for column in self.columns:
            given = cells[column.name]
            part = x[:, start : start + column.width]
            start += column.width
            if column.kind == "number":
                num_missing = _fill_numbers(column, given, part)
            else:
                num_missing, num_unseen = _fill_categories(column, given, part)
                if num_unseen:
                    unseen[column.name] = num_unseen

            if num_missing:
                missing[column.name] = num_missing

        return Encoded(x, missing, unseen)

    def to_json(self) -> str:
        """Return the plan as JSON; :meth:`from_json` reads it."""
        columns = [
            {
                "name": each.name,
                "kind": each.kind,
                "categories": list(each.categories),
                "fill": each.fill,
            }
            for each in self.columns
        ]

        return json.dumps({"format": _FORMAT, "columns": columns, "unused": list(self.unused)})

    @classmethod
    def from_json(cls, text: str, path: str = "columns") -> Columns:
        """Return the plan that :meth:`to_json` wrote.

        Args:
            text: JSON, which may come from anyone.
            path: where it is from, for messages.

        Raises:
            DataError: it is not such a plan.
        """
        record = parse_json(text.encode("utf-8", "surrogatepass"), Path(path))
        try:
            return cls._from_record(record)
        except DataError as error:
            raise DataError(
                f"'{path}': {error.message}", path=path, allowed=error.allowed, got=error.got
            ) from error

    @classmethod
    def _from_record(cls, record: Any) -> Columns:
        entries = {"format", "columns", "unused"}
        if type(record) is not dict or set(record) != entries or record["format"] != _FORMAT:
            raise _refuse(
                "the plan of columns",
                f"an object with {', '.join(sorted(entries))}, of '{_FORMAT}'",
                record,
            )

        if type(record["columns"]) is not list or type(record["unused"]) is not list:
            raise _refuse("columns and unused", "lists", record)

        columns = []
        for each in record["columns"]:
            if type(each) is not dict or set(each) != {"name", "kind", "categories", "fill"}:
                raise _refuse("a column", "an object with name, kind, categories and fill", each)
            if type(each["categories"]) is not list:
                raise _refuse("categories", "a list", each["categories"])

            columns.append(
                Column(each["name"], each["kind"], tuple(each["categories"]), each["fill"])
            )

        return cls(tuple(columns), tuple(record["unused"]))


def _count_rows(cells: Mapping[str, np.ndarray | Texts], columns: Sequence[Column]) -> int:
    """Return the number of rows, after checking that every column is there with as many."""
    rows: int | None = None
    for column in columns:
        if column.name not in cells:
            raise _refuse("the cells", f"cells of column {column.name!r}", "none")

        given = cells[column.name]
        if isinstance(given, Texts) != (column.kind == "category"):
            raise _refuse(
                f"the cells of column {column.name!r}",
                f"of kind {column.kind}",
                type(given).__name__,
            )

        own = len(given.codes) if isinstance(given, Texts) else len(given)
        if rows is not None and own != rows:
            raise _refuse(f"the cells of column {column.name!r}", f"{rows} rows", own)

        rows = own

    return rows or 0


def _fill_numbers(column: Column, given: Any, part: np.ndarray) -> int:
    """Write numbers (rows,) to their feature (rows, 1); return the number of empty cells."""
    with np.errstate(
        over="ignore"
    ):  # what is beyond 32-bit floats becomes infinite, and is refused
        values = np.asarray(given).astype(np.float32)

    if np.isinf(values).any():
        raise _refuse(f"the cells of column {column.name!r}", "finite 32-bit numbers", "infinity")

    empty = np.isnan(values)
    part[:, 0] = np.where(empty, np.float32(column.fill), values)
    return int(empty.sum())


def _fill_categories(column: Column, given: Any, part: np.ndarray) -> tuple[int, int]:
    """Write a 1 to the feature of each cell's category (rows, categories); return how many are
    empty, and unseen.
    """
    position = {category: place for place, category in enumerate(column.categories)}
    places = [position.get(text, -1) for text in given.texts]
    places.append(
        position.get(MISSING, -1)
    )  # an empty cell has the code -1, which is the last place
    place = np.array(places)[given.codes]
    seen = np.flatnonzero(place >= 0)
    part[seen, place[seen]] = 1.0
    empty = np.asarray(given.codes) < 0

    return int(empty.sum()), int(((place < 0) & ~empty).sum())


def _refuse(what: str, allowed: str, got: object) -> DataError:
    shown = repr(got) if len(repr(got)) <= 80 else f"{repr(got)[:79]}…"
    return DataError(
        f"{what} must be {allowed}, got {shown}.", key="columns", allowed=allowed, got=shown
    )
