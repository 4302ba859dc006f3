"""The columns of a table, and how their cells become features.

The plan is fitted to the training rows, stored as JSON, and applied again to every table that is
predicted. It imports no torch. scikit-learn's ``SimpleImputer`` and ``OneHotEncoder`` give the same
numbers, as a test shows. They are not used here, because they can be stored only as pickles, which
this package never reads, and because importing them takes a second, for what is one comparison per
column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.options import Range, check_names, check_value, hints_of, wrong_value

MISSING: Final = "missing"
"""The category of an empty cell."""

MAX_CATEGORIES = 50
"""Most categories of a column."""

MAX_COLUMNS = 1_000_000
"""Most columns of a plan."""

MAX_KNOTS = 256
"""Most knots of a column of numbers."""

_FORMAT = "fedtailor columns 1"
_OPTIONAL = {"knots": (), "scores": (), "indicates_missing": False}
"""Entries of a column of numbers that is not used as it is, and their values elsewhere."""

LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""The largest 32-bit float."""

Number = Annotated[float, Range(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
"""A number that a 32-bit float can hold."""

T = TypeVar("T")

MAX_VALUES = 2**40
"""Most values of a column at one site, so that sums over sites stay exact."""


Decimal = Literal["auto", "point", "comma"]
"""What a comma in a number is: the decimal point, or (``point``) a separator of thousands."""


class Texts(NamedTuple):
    """The cells of a column of categories: row k holds ``texts[codes[k]]``."""

    codes: np.ndarray  # (rows,), whole numbers; -1: the cell is empty
    texts: tuple[str, ...]


class Encoded(NamedTuple):
    """The features of a table, and how many cells were replaced.

    By column; columns without such cells are left out.
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
    decimals: Mapping[str, Decimal] = {}
    """What commas are in the numbers of each site, see ``CellRules.at_sites``; empty: no site has
    commas."""


@dataclass(frozen=True)
class Column:
    """A column of a table, and how its cells become features.

    Raises:
        DataError: the fields do not fit together.
    """

    name: str
    kind: Literal["number", "category"]
    """A number is one feature, or as the knots say; a category is one feature for each category, 1
    if the cell holds it, else 0."""
    categories: tuple[str, ...] = ()
    """The categories of the training rows, sorted."""
    fill: Number | Literal["missing"] = 0.0
    """What replaces an empty cell: a number, or ``missing``, a category if a training row has an
    empty cell."""
    knots: tuple[Number, ...] = ()
    """Numbers that are not used as they are: two or more ascending ones, see :meth:`encode`."""
    scores: tuple[Number, ...] = ()
    """One for each knot, or none."""
    indicates_missing: bool = False
    """Numbers: whether another feature is 1 where the cell is empty, else 0."""

    def __post_init__(self) -> None:
        require(is_text(self.name), "the name of a column", "a text that is not empty", self.name)
        title = f"column {self.name!r}"
        if self.kind == "number":
            require(self.fill != MISSING, f"fill of {title}", "a number", self.fill)
            none = "none, because it holds numbers"
            require(not self.categories, f"categories of {title}", none, self.categories)

            ascends = all(low < high for low, high in pairwise(self.knots))
            are_knots = ascends and len(self.knots) != 1 and len(self.knots) <= MAX_KNOTS
            allowed = f"2 to {MAX_KNOTS} ascending numbers, or none"
            require(are_knots, f"knots of {title}", allowed, self.knots)
            fits = len(self.scores) in (0, len(self.knots))
            require(fits, f"scores of {title}", "one for each knot, or none", self.scores)
            return

        is_plain = not self.knots and not self.scores and not self.indicates_missing
        require(is_plain, f"knots of {title}", "none, because it holds categories", self.knots)

        are_few = 0 < len(self.categories) <= MAX_CATEGORIES
        allowed = f"1 to {MAX_CATEGORIES} different texts that are not empty, sorted"
        are_right = are_few and are_categories(self.categories)
        require(are_right, f"categories of {title}", allowed, self.categories)
        require(self.fill == MISSING, f"fill of {title}", f"'{MISSING}'", self.fill)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.feature_names)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, such as ``age``, or ``sex=female`` and ``sex=male``."""
        if self.kind == "category":
            return tuple(f"{self.name}={category}" for category in self.categories)

        names = [self.name]
        if self.knots and not self.scores:
            bins = pairwise(self.knots)
            names = [f"{self.name} ({low:.6g} to {high:.6g})" for low, high in bins]
        if self.indicates_missing:
            names.append(f"{self.name} (missing)")
        return tuple(names)

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Return the features of numbers, without the one for empty cells.

        With scores, it is one feature: the score at a knot, on a line between two of them, and the
        first or last score outside. Without scores, it is one for each pair of neighbouring knots,
        which says how far the number has passed from the lower to the higher one, from 0 to 1
        (piecewise-linear encoding; Gorishniy, Rubachev and Babenko 2022, "On Embeddings for
        Numerical Features in Tabular Deep Learning", NeurIPS, equation 1, here with both ends
        clipped). Without knots, it is the number.

        Args:
            numbers: of the cells (rows,), none of them missing.

        Returns:
            Features (rows, features).

        Example:
            >>> column = Column("age", "number", knots=(40.0, 50.0, 70.0))
            >>> column.encode(np.array([30.0, 45.0, 60.0])).tolist()
            [[0.0, 0.0], [0.5, 0.0], [1.0, 0.5]]
        """
        if not self.knots:
            return numbers[:, None]

        values = numbers.astype(np.float64)
        knots = np.array(self.knots)
        if self.scores:
            scores: np.ndarray = np.interp(values, knots, np.array(self.scores))
            return scores[:, None]

        passed = (values[:, None] - knots[:-1]) / np.diff(knots)
        filled: np.ndarray = np.clip(passed, 0.0, 1.0)
        return filled


@dataclass(frozen=True)
class Columns:
    """How the cells of a table become features; a value that can be stored and applied again.

    Raises:
        DataError: there is no column, or a name appears twice.

    Example:
        >>> age = Column("age", "number", fill=60.0)
        >>> plan = Columns((age, Column("sex", "category", ("f", "m"), "missing")))
        >>> plan.feature_names
        ('age', 'sex=f', 'sex=m')
        >>> ages = np.array([50.0, np.nan])
        >>> plan.encode({"age": ages, "sex": Texts(np.array([1, 0]), ("diverse", "m"))})
        Encoded(x=array([[50.,  0.,  1.],
               [60.,  0.,  0.]], dtype=float32), missing={'age': 1}, unseen={'sex': 1})
    """

    columns: tuple[Column, ...]
    """In the order of the features."""
    unused: tuple[str, ...] = ()
    """Other columns of the training tables, which a table may have and which are ignored: label,
    group, split, and columns that were left out."""

    def __post_init__(self) -> None:
        check_column_names(self.names, self.unused)

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
            # Each column writes to its own features: a view of x.
            features = x[:, start : start + column.width]
            start += column.width
            if column.kind == "number":
                num_missing = _fill_numbers(column, cells[column.name], features)
            else:
                num_missing, num_unseen = _fill_categories(column, cells[column.name], features)
                if num_unseen:
                    unseen[column.name] = num_unseen

            if num_missing:
                missing[column.name] = num_missing

        return Encoded(x, missing, unseen)

    def to_record(self) -> dict[str, Any]:
        """Return the plan as an object for JSON; :meth:`from_record` reads it."""
        columns = []
        for column in self.columns:
            entries = {**asdict(column), "categories": list(column.categories)}
            # Plans without them are as they always were.
            for name, default in _OPTIONAL.items():
                if entries[name] == default:
                    del entries[name]

            columns.append(entries)

        return {"format": _FORMAT, "columns": columns, "unused": list(self.unused)}

    @classmethod
    def from_record(cls, record: Any) -> Columns:
        """Return the plan that :meth:`to_record` wrote.

        Args:
            record: from anyone.

        Raises:
            DataError: it is not such a plan.
        """
        what = "the plan of columns"
        allowed = f"an object with columns, format and unused, of '{_FORMAT}'"
        require_object(record, {"format", "columns", "unused"}, what, allowed)
        require(record["format"] == _FORMAT, what, allowed, record)
        are_lists = type(record["columns"]) is list and type(record["unused"]) is list
        require(are_lists, "columns and unused", "lists", record)

        columns = [
            read_record(Column, column, "column", optional=_OPTIONAL)
            for column in record["columns"]
        ]
        return cls(tuple(columns), tuple(record["unused"]))


def check_column_names(names: Sequence[str], unused: Sequence[str]) -> None:
    """Check the names of the columns that a table has, and of those of which nothing is used.

    Raises:
        DataError: there is none or too many, one is no text, or a name appears twice.
    """
    are_few = 0 < len(names) <= MAX_COLUMNS and len(unused) <= MAX_COLUMNS
    require(are_few, "columns", f"1 to {MAX_COLUMNS} columns", len(names))
    require(all(type(name) is str for name in unused), "unused columns", "texts", unused)
    all_names = [*names, *unused]
    are_different = len(set(all_names)) == len(all_names)
    require(are_different, "columns", "columns with different names", all_names)


def _count_rows(cells: Mapping[str, np.ndarray | Texts], columns: Sequence[Column]) -> int:
    """Return the number of rows, after checking that every column is there with as many."""
    rows: int | None = None
    for column in columns:
        title = f"column {column.name!r}"
        require(column.name in cells, "the cells", f"cells of {title}", "none")
        values = cells[column.name]
        is_category = isinstance(values, Texts)
        fits = is_category == (column.kind == "category")
        require(fits, f"the cells of {title}", f"of kind {column.kind}", type(values).__name__)
        length = len(values.codes) if isinstance(values, Texts) else len(values)
        require(rows in (None, length), f"the cells of {title}", f"{rows} rows", length)
        rows = length

    return rows or 0


def _fill_numbers(column: Column, cells: Any, features: np.ndarray) -> int:
    """Write numbers (rows,) to their features (rows, features), and count the empty cells."""
    with np.errstate(over="ignore"):  # numbers beyond 32-bit floats become infinite
        values = np.asarray(cells).astype(np.float32)

    what = f"the cells of column {column.name!r}"
    require(not np.isinf(values).any(), what, "finite 32-bit numbers", "infinity")
    empty = np.isnan(values)
    filled = np.where(empty, np.float32(column.fill), values)
    encoded = column.encode(filled)
    features[:, : encoded.shape[1]] = encoded
    if column.indicates_missing:
        features[:, -1] = empty

    return int(empty.sum())


def _fill_categories(column: Column, cells: Any, features: np.ndarray) -> tuple[int, int]:
    """Write a 1 to the feature of each cell's category (rows, categories).

    Returns how many cells are empty, and how many are unseen.
    """
    # A category that no training row has gets no 1 anywhere.
    position = {category: number for number, category in enumerate(column.categories)}
    texts = [*cells.texts, MISSING]  # an empty cell has the code -1, which is the last
    number = np.array([position.get(text, -1) for text in texts])[cells.codes]
    seen = np.flatnonzero(number >= 0)
    features[seen, number[seen]] = 1.0

    # An empty cell is a category like others, if a training row has one.
    empty = np.asarray(cells.codes) < 0
    return int(empty.sum()), int((number < 0).sum())


def read_record(cls: type[T], record: Any, what: str, *, optional: Collection[str] = ()) -> T:
    """Return the dataclass whose fields are the entries of a record.

    Args:
        cls: its annotations say which values are allowed; a list becomes a tuple.
        record: from anyone.
        what: what it is, for messages, which add its name if it has one.
        optional: entries that may be absent.

    Raises:
        DataError: an entry is unknown, absent or not allowed.
    """
    require(type(record) is dict, what, "an object", record)
    title = f"{what} {record['name']!r:.80}" if "name" in record else what
    hints = hints_of(cls)
    absent = [name for name in hints if name not in record and name not in optional]
    require(not absent, title, f"an object with {', '.join(hints)}", f"none of {absent}")
    try:
        check_names(record, tuple(hints), section=title)
        values = {}
        for name, value in record.items():
            plain = tuple(value) if isinstance(value, list) else value
            values[name] = check_value(plain, hints[name], key=f"{name} of {title}")

        return cls(**values)
    except ConfigError as error:
        raise DataError(f"{title} must be as it was written: {error}", key=what) from error


def is_text(value: object) -> bool:
    """Return whether a value of a record is a text that is not empty."""
    return type(value) is str and value != ""


def are_categories(values: Collection[str]) -> bool:
    """Return whether values of a record are different texts that are not empty, sorted."""
    return all(map(is_text, values)) and list(values) == sorted(set(values))


def require_object(value: Any, entries: set[str], what: str, allowed: str) -> None:
    """Check that a value of a record is an object with these entries.

    Raises:
        DataError: it is not.
    """
    require(type(value) is dict and set(value) == entries, what, allowed, value)


def require(is_allowed: bool, what: str, allowed: str, got: object) -> None:
    """Check something in a record or in the cells of a table.

    Args:
        is_allowed: whether it is as it must be.
        what: what it is, as the beginning of a sentence.
        allowed: what it must be.
        got: what it is.

    Raises:
        DataError: it is not allowed.
    """
    if not is_allowed:
        raise wrong_value(what, allowed, got, kind=DataError)
