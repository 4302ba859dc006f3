"""A paper's file, ``experiments/PAPER/paper.toml``: its sections as checked dataclasses.

``[base]`` holds the settings that all experiments of the paper share, ``[columns.NAME]`` those of a
data set in a setting, and ``[methods.NAME]`` those of a method. ``[tables.NAME]`` has the printed
numbers, ``[scores.NAME]`` says how a number is read from a result, ``[tolerance]`` how far ours may
be from the printed one, and ``[[explanations]]`` why it is farther away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedtailor.core.errors import ConfigError, find_name
from fedtailor.core.options import build, check_options
from fedtailor.core.reading import read_toml

FOLDER = Path(__file__).resolve().parent
"""The folder of the papers."""

SETTINGS = ("data", "model", "algorithm", "training", "federation", "evaluation")
"""The sections of a configuration that a paper's file may set."""

SECTIONS = (
    "paper",
    "base",
    "columns",
    "methods",
    "scores",
    "tables",
    "tolerance",
    "explanations",
    "searches",
)

Point = Literal["", "global", "local", "personalized", "global_complete"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The ``[paper]`` section."""

    title: str
    authors: str
    venue: str
    year: int
    prints_rounds: bool = False
    """Whether the released code prints test accuracies of many rounds, and does not say which of
    them a table has. Then our best round is judged too."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A part of a configuration. A later layer wins over an earlier one."""

    inferred: tuple[str, ...] = ()
    """Keys, such as ``training.lr``, whose values neither the paper nor its released code states.

    In a method, also ``point``."""
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    federation: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Column(Layer):
    """A data set in a setting."""

    label: str


@dataclass(frozen=True, kw_only=True)
class Method(Layer):
    """A method with its hyper-parameters."""

    label: str
    point: Point
    """The evaluation point of the paper's numbers."""
    run_of: str = ""
    """Method whose run also has this method's numbers, as FedAvg-FT's has those of FedAvg.

    The method then has no settings. Empty: it has a run of its own."""
    based_on: str = ""
    """Method whose settings come first, those of its columns too."""
    columns: dict[str, Any] = field(default_factory=dict)
    """The settings that the paper tunes per data set, by column."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a printed number is read from a result."""

    label: str = "accuracy"
    point: Point = ""
    """Evaluation point; empty: the method's."""
    clients: Literal["known", "new"] = "known"
    condition: str = ""
    """Condition of the clients' images, such as ``frost-3``; empty: all clients together."""
    figure: Literal["mean", "pooled", "smallest10", "worst10"] = "mean"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why numbers are outside tolerance: one section ``[[explanations]]``."""

    columns: tuple[str, ...]
    methods: tuple[str, ...]
    scores: tuple[str, ...] = ()
    """Scores that it is about; empty: all."""
    text: str
    """The explanation, and the experiment that could have refuted it; or what experiments have
    ruled out."""
    cause: Literal["found", "elsewhere", "open"] = "found"
    """What is known: ``found``, the text says why; ``elsewhere``, an independent program with the
    same data and choices is as far from print or farther, so our code is not the cause; ``open``,
    neither."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a paper."""

    title: str
    columns: tuple[str, ...]
    unit: Literal["fraction", "percent"] = "fraction"
    notes: tuple[str, ...] = ()
    spread: str = ""
    """Kind of the numbers in ``spreads``, such as "deviation over clients"."""
    reference: dict[str, Any]
    """Per method the printed numbers in the order of the columns, or such a list per score.

    nan stands for a number that is not printed."""
    spreads: dict[str, Any] = field(default_factory=dict)
    """The same for what the paper prints after ±."""
    program: str = ""
    """Another program that ran on the same split as our runs, such as "plain loop"."""
    programs: dict[str, Any] = field(default_factory=dict)
    """Its numbers, in the form of ``reference``; nan stands for what it did not run."""
    over: str = ""
    """The setting in which the methods differ, such as ``algorithm.beta``: the horizontal axis of
    the table's figure; empty: it has none."""
    measure: Literal["", "features", "calibration"] = ""
    """What else is measured on the models of a run: the module that does, and the key of its
    result in a record."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A grid that the paper searches for a method: one section ``[searches.METHOD]``."""

    table: str
    column: str
    """Of the table: where the paper searches."""
    values: dict[str, Any]
    """What is tried, by setting."""


@dataclass(frozen=True)
class Paper:
    """A paper's experiments."""

    name: str
    source: Source
    base: Layer
    columns: dict[str, Column]
    methods: dict[str, Method]
    scores: dict[str, Score]
    tables: dict[str, Table]
    tolerance: dict[int, float]
    """Largest difference from a printed number, a fraction, by the least number of seeds."""
    explanations: tuple[Explanation, ...]
    searches: dict[str, Search]

    def tolerance_of(self, number_of_seeds: int) -> float | None:
        """Return the tolerance of a mean over seeds; None if none is stated."""
        stated = [least for least in self.tolerance if least <= number_of_seeds]
        return self.tolerance[max(stated)] if stated else None

    def explanations_of(self, column: str, method: str, score: str) -> list[Explanation]:
        """Return what is said of a number that is outside tolerance."""
        return [
            explanation
            for explanation in self.explanations
            if column in explanation.columns
            and method in explanation.methods
            and (not explanation.scores or score in explanation.scores)
        ]

    def find_table(self, name: str) -> str:
        """Return the table that a name stands for.

        Raises:
            ConfigError: there is no such table.
        """
        return find_name(f"table of {self.name}", name, self.tables, key="table")


def paper_names(folder: Path = FOLDER) -> list[str]:
    """Return the papers of a folder."""
    return sorted(path.parent.name for path in folder.glob("*/paper.toml"))


def load_paper(name: str, folder: Path = FOLDER) -> Paper:
    """Read and check the file of a paper.

    Args:
        name: a folder's name, such as ``pfedfda``.
        folder: the folder of the papers.

    Raises:
        ConfigError: unknown paper, or a mistake in its file.
        DataError: the file cannot be read.
    """
    name = find_name("paper", name, paper_names(folder), key="paper")
    path = folder / name / "paper.toml"
    values = read_toml(path)
    try:
        paper = _parse_paper(name, values)
        _check_names(paper)
    except ConfigError as error:
        raise ConfigError(
            f"'{path}': {error}", key=error.key, path=str(path), allowed=error.allowed
        ) from error

    return paper


def build_section(cls: type[T], values: Any, section: str) -> T:
    """Build a dataclass from a section of a file.

    Raises:
        ConfigError: a key is unknown or missing, or a value does not fit.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"[{section}] must be a section with keys.", key=section)

    # An unknown key may be a missing one with a typing error, so unknown keys are named first.
    fields = {
        item.name: item
        for item in dataclasses.fields(cls)  # type: ignore[arg-type]  # cls is a dataclass
    }
    for key in values:
        find_name(f"key of [{section}]", key, fields, key=f"{section}.{key}")

    for name, item in fields.items():
        has_default = (item.default, item.default_factory) != (dataclasses.MISSING,) * 2
        if name not in values and not has_default:
            raise ConfigError(f"[{section}] needs '{name}'.", key=f"{section}.{name}")

    plain = dict(values)
    for key, value in values.items():
        if isinstance(value, list):
            plain[key] = tuple(value)

    built = build(cls, plain, section=section)
    check_options(built, owner=section)
    return built


def numbers_by_score(paper: Paper, numbers: Any) -> dict[str, Any]:
    """Return rows of numbers by score; a plain list is that of the first score."""
    if isinstance(numbers, Mapping):
        return dict(numbers)
    return {next(iter(paper.scores)): numbers}


def _parse_paper(name: str, values: dict[str, Any]) -> Paper:
    for key in values:
        find_name("section", key, SECTIONS, key=key)

    explanations = [
        build_section(Explanation, section, f"explanations, number {number}")
        for number, section in enumerate(values.get("explanations", []), start=1)
    ]
    return Paper(
        name=name,
        source=build_section(Source, values.get("paper", {}), "paper"),
        base=build_section(Layer, values.get("base", {}), "base"),
        columns=_build_named(Column, values, "columns"),
        methods=_build_named(Method, values, "methods"),
        scores=_build_named(Score, {"scores": {"accuracy": {}}, **values}, "scores"),
        tables=_build_named(Table, values, "tables"),
        tolerance=_parse_tolerance(values.get("tolerance", {})),
        explanations=tuple(explanations),
        searches=_build_named(Search, {"searches": {}, **values}, "searches", is_needed=False),
    )


def _build_named(
    cls: type[T], values: Mapping[str, Any], section: str, *, is_needed: bool = True
) -> dict[str, T]:
    """Build the parts of a paper that have names."""
    entries = values.get(section)
    if not isinstance(entries, Mapping) or (is_needed and not entries):
        raise ConfigError(f"there must be sections [{section}.NAME].", key=section)

    return {name: build_section(cls, entry, f"{section}.{name}") for name, entry in entries.items()}


def _parse_tolerance(values: Any) -> dict[int, float]:
    """Return tolerances as fractions by the least number of seeds, from percentage points."""
    tolerance = {}
    for seeds, points in dict(values).items():
        if not seeds.isdecimal() or not isinstance(points, int | float) or not points > 0:
            raise ConfigError(
                "tolerance must be percentage points by the least number of seeds, such as "
                f"1 = 2.5, got {seeds} = {points!r}.",
                key="tolerance",
            )

        tolerance[int(seeds)] = points / 100

    return tolerance


def _check_names(paper: Paper) -> None:
    """Check that the names in a paper's file belong together."""
    for name, method in paper.methods.items():
        _check_all_known("column", method.columns, paper.columns, f"methods.{name}.columns")
        if method.run_of:
            _check_run_of(paper, name)
        if method.based_on:
            owners = [other for other, entry in paper.methods.items() if not entry.based_on]
            find_name("method", method.based_on, owners, key=f"methods.{name}.based_on")

    for name, search in paper.searches.items():
        table = paper.tables[paper.find_table(search.table)]
        find_name("column", search.column, table.columns, key=f"searches.{name}.column")
        find_name("method", name, table.reference, key=f"searches.{name}")

    for explanation in paper.explanations:
        _check_all_known("column", explanation.columns, paper.columns, "explanations.columns")
        _check_all_known("method", explanation.methods, paper.methods, "explanations.methods")
        _check_all_known("score", explanation.scores, paper.scores, "explanations.scores")

    for table_name, table in paper.tables.items():
        key = f"tables.{table_name}"
        _check_all_known("column", table.columns, paper.columns, f"{key}.columns")
        for part in ("reference", "spreads", "programs"):
            rows = getattr(table, part)
            _check_all_known("method", rows, paper.methods, f"{key}.{part}")
            for method_name, numbers in rows.items():
                _check_rows(paper, table, numbers, f"{key}.{part}.{method_name}")


def _check_all_known(
    kind: str, names: Sequence[str] | Mapping[str, Any], known: Mapping[str, Any], key: str
) -> None:
    for name in names:
        find_name(kind, name, known, key=key)


def _check_run_of(paper: Paper, name: str) -> None:
    """Check a method whose numbers are read from the run of another one."""
    method = paper.methods[name]
    owners = [other for other, entry in paper.methods.items() if not entry.run_of]
    find_name("method", method.run_of, owners, key=f"methods.{name}.run_of")
    for section in (*SETTINGS, "columns", "inferred", "based_on"):
        if getattr(method, section):
            raise ConfigError(
                f"methods.{name} must not have '{section}', because its numbers are read from "
                f"the run of '{method.run_of}'.",
                key=f"methods.{name}.{section}",
            )


def _check_rows(paper: Paper, table: Table, numbers: Any, key: str) -> None:
    """Check the numbers of a method: a list with one for each column, or such a list per score."""
    length = len(table.columns)
    for score, row in numbers_by_score(paper, numbers).items():
        find_name("score", score, paper.scores, key=key)
        if not isinstance(row, list) or [type(x) in (int, float) for x in row] != [True] * length:
            raise ConfigError(
                f"{key} must be a list of {length} numbers, one for each column, got {row!r}.",
                key=key,
            )
