"""The facts that the rules are about: sites, names, labels, columns of tables, arrays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import did_you_mean
from fedtailor.data.columns import MAX_CATEGORIES
from fedtailor.data.own.cells import Cells, Table
from fedtailor.data.own.findings import Place, Site
from fedtailor.data.own.names import At, counted, listed, safe_name, show
from fedtailor.data.own.patterns import (
    MAX_CLASSES,
    category_in,
    is_number,
    label_number,
    matches,
    option_text,
    share_like,
)


class Names(NamedTuple):
    """Names after :func:`fedtailor.data.own.names.safe_name`: the facts for ``rules.NAMES``."""

    what: str
    """What they are, as the beginning of a sentence."""
    names: Sequence[str]


class AllSites:
    """The sites with examples together: the facts for ``rules.ALL_SITES``."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.trained: Counter[str] = Counter()
        self.tested: Counter[str] = Counter()
        self.having: Counter[str] = Counter()
        for site in sites:
            self.trained.update(site.train)
            self.tested.update(site.test)
            self.having.update({*site.train, *site.test})

        self.classes: list[str] = sorted(self.having)
        self.untrained: list[str] = [name for name in self.classes if not self.trained[name]]
        self.largest: int = max(sum(site.train.values()) for site in sites)
        self.are_several = len(sites) > 1


@dataclass
class OneSite:
    """A site among all: the facts for ``rules.ONE_SITE``."""

    site: Site
    sites: AllSites

    @property
    def title(self) -> str:
        """What it is called in a message."""
        return f"Site {self.name}" if self.site.name else "The data"

    @property
    def name(self) -> str:
        """Its name in quotes."""
        return show(self.site.name)

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return sum(self.site.train.values())

    @property
    def classes(self) -> list[str]:
        """The classes that it has, sorted."""
        return sorted({*self.site.train, *self.site.test})

    @property
    def tested_only(self) -> list[str]:
        """Classes that it tests and does not train, but other sites do."""
        names = [name for name in self.site.test if name not in self.site.train]
        return [name for name in names if self.sites.trained[name]]

    @property
    def alone(self) -> list[str]:
        """Classes that no other site has, sorted."""
        names = [name for name in self.classes if self.sites.having[name] == 1]
        return names if self.sites.are_several else []


class Labels:
    """The different labels of all sites: the facts for ``rules.LABELS``.

    Args:
        name: where they are, as it is in messages.
        texts: the different labels, in the order of appearance.
        examples: number of all examples.
        find: returns the first row with a label.
    """

    def __init__(
        self,
        name: str,
        texts: Sequence[str],
        examples: int,
        find: Callable[[str], At] | None = None,
    ) -> None:
        self.name: str = name
        self.texts: Sequence[str] = texts
        self.examples: int = examples
        self._find = find
        self._numbers = {text: label_number(text) for text in texts}

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all labels are numbers."""
        return None not in self._numbers.values()

    @cached_property
    def codes(self) -> dict[str, int]:
        """The number of the class of every label."""
        names = {text: self._name_of(text) for text in self.texts}
        position = {name: code for code, name in enumerate(self.class_names)}
        return {text: position[name] for text, name in names.items()}

    @cached_property
    def class_names(self) -> list[str]:
        """The names of the classes: whole numbers in their order, or texts, sorted."""
        names = {self._name_of(text) for text in self.texts}
        return sorted(names, key=int) if self.are_numbers else sorted(names)

    def _name_of(self, text: str) -> str:
        return str(self._numbers[text]) if self.are_numbers else safe_name(text)

    @property
    def different(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def at(self, text: str) -> At | None:
        """Return where a label is first; None without a text."""
        return self._find(text) if text and self._find else None

    @property
    def first_fraction(self) -> str:
        """The first number that is not whole; empty if there is none."""
        numbers = self._numbers.items()
        return next((text for text, number in numbers if isinstance(number, float)), "")

    @property
    def first_number(self) -> str:
        """The first label that is a number; empty if there is none."""
        return next((text for text, number in self._numbers.items() if number is not None), "")

    @property
    def first_text(self) -> str:
        """The first label that is not a number; empty if there is none."""
        return next((text for text, number in self._numbers.items() if number is None), "")


@dataclass(frozen=True)
class Header:
    """The names of a table's columns and their roles: the facts for ``rules.ROLES``."""

    names: Sequence[str]
    label: str
    group: str
    """Column with the group of each example, such as its patient; empty: none."""

    @property
    def split(self) -> str:
        """Column that marks rows for training and rows for testing; empty: none."""
        return self._special("split")

    @property
    def image(self) -> str:
        """Column with paths of images; a table with it has no features. Empty: none."""
        return self._special("image")

    def _special(self, name: str) -> str:
        return name if name in self.names and name not in (self.label, self.group) else ""

    @property
    def roles(self) -> set[str]:
        """Columns that are not features."""
        return {self.label, self.group, self.split, self.image}

    @property
    def others(self) -> list[str]:
        """Columns without a role."""
        roles = self.roles
        return [name for name in self.names if name not in roles]

    @property
    def features(self) -> list[str]:
        """Columns that are features."""
        return [] if self.image else self.others

    @property
    def used(self) -> list[str]:
        """All columns that are used, except label and group."""
        return [*self.features, *filter(None, (self.split, self.image))]

    def missing(self, name: str) -> tuple[str, str, str]:
        """Return name, nearest name and all names for the message that a column is missing."""
        others = [other for other in self.names if name == self.label or other != self.label]
        return show(name), did_you_mean(name, others).rstrip("?"), listed(self.names, 20)


class ColumnTexts(NamedTuple):
    """A column of a table whose texts were all kept."""

    cells: Cells
    lines: Sequence[int]

    def at(self, is_wrong: Callable[[str], bool]) -> At | None:
        """Return the first line with such a text."""
        at = self.cells.at(is_wrong)
        if at is None or at.row is None:
            return None

        return At(self.lines[at.row], show(at.value), at.count)


class ColumnNumbers(NamedTuple):
    """A column of a table with numbers."""

    name: str
    values: np.ndarray  # (rows,), float32
    lines: Sequence[int]

    @property
    def title(self) -> str:
        """Its name in quotes."""
        return show(self.name)

    def at(self, is_wrong: np.ndarray) -> At | None:
        """Return the first line where ``is_wrong`` (rows,) is true."""
        rows = np.flatnonzero(is_wrong)
        return At(self.lines[rows[0]], count=len(rows)) if len(rows) else None


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
        position[""] = float("nan")
        parts = []
        for cells in self.cells:
            codes = [position[category_in(text)] for text in cells.texts]
            parts.append(np.array(codes, dtype=np.float32)[cells.codes])

        return np.concatenate(parts)


@dataclass
class Block:
    """One part of a site's examples: the facts for ``rules.ARRAYS``."""

    place: Place
    """The site and its file."""
    part: Literal["train", "test"]
    x: np.ndarray
    """(rows, height, width), (rows, height, width, channels) or (rows, features), numbers."""
    y: np.ndarray  # (rows,), numbers
    num_classes: int = 0
    """Number of the names of classes; 0 without names."""

    @property
    def title(self) -> str:
        """Its file in quotes."""
        return show(self.place.path)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self.x.shape[1:]

    @property
    def has_floats(self) -> bool:
        """Whether the examples are floats."""
        return self.x.dtype.kind == "f"

    @property
    def has_several_labels(self) -> bool:
        """Whether ``y`` has several numbers for each example."""
        return self.y.ndim == 2 and self.y.shape[1] > 1 and self.y.dtype.kind in "buif"

    @property
    def is_one_hot(self) -> bool:
        """Whether ``y`` has a 1 for the class of each example, and 0 otherwise."""
        if not self.has_several_labels:
            return False

        is_binary = ((self.y == 0) | (self.y == 1)).all()
        return bool(is_binary and (self.y.sum(axis=1) == 1).all())

    @property
    def has_a_label_per_row(self) -> bool:
        """Whether ``x`` and ``y`` have the same number of rows, and ``y`` nothing else."""
        return self.y.ndim == 1 and self.x.ndim > 0 and len(self.x) == len(self.y)

    @property
    def largest_label(self) -> int:
        """The largest label that is allowed."""
        return (self.num_classes or MAX_CLASSES) - 1

    @property
    def channels(self) -> Literal["first", "last"] | None:
        """Which axis of images with channels has them; None if it is not clear.

        It is the last one, or, as in PyTorch, the second one if that has 1 or 3 entries and the
        last has neither 1 nor 3.
        """
        _, second, third, last = self.x.shape
        if last in (1, 3) or last <= min(second, third):
            return "last"

        return "first" if second in (1, 3) and third > 3 else None

    @property
    def at_not_finite(self) -> At | None:
        """Where an example is not finite as 32-bit floats; None if all are."""
        if not self.has_floats:
            return None

        with np.errstate(over="ignore"):
            is_finite = np.isfinite(self.x.astype(np.float32, copy=False))

        return self.at(~np.all(is_finite.reshape(len(self.x), -1), axis=1))

    def at(self, is_wrong: np.ndarray) -> At | None:
        """Return the first row where ``is_wrong`` (rows,) is true, with its label."""
        rows = np.flatnonzero(is_wrong)
        return At(int(rows[0]), str(self.y[rows[0]]), len(rows)) if len(rows) else None

    def converted(self) -> Block:
        """Return the block with images channels last, and labels as int64."""
        x = self.x
        if x.ndim == 3:
            x = x[..., None]
        elif x.ndim == 4 and self.channels == "first":
            x = np.moveaxis(x, 1, 3)
            self.place.findings.note(
                "Images stored channels first (rows, channels, height, width) were converted to "
                "channels last."
            )

        return Block(self.place, self.part, x, self.y.astype(np.int64), self.num_classes)


class ValueRange(NamedTuple):
    """The smallest and largest value of all images: the facts for ``rules.IMAGE_VALUES``."""

    low: float
    high: float
    are_floats: bool
