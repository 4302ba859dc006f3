"""The experiments of the papers: one file per paper. Each cell of its tables expands to a
configuration.

``experiments/PAPER/paper.toml`` holds the settings that all experiments of a paper share
(``[base]``), those of each data set (``[columns.NAME]``) and of each method (``[methods.NAME]``),
how to read a number from a result (``[scores.NAME]``), and the tables: columns, methods and the
printed numbers. ``inferred`` lists settings that neither the paper nor its released code states.
``[tolerance]`` says how far a measured number may be from the printed one, and ``[[explanations]]``
why it is farther away. No torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedtailor.core.errors import ConfigError, find_name, unknown_name
from fedtailor.core.reading import read_toml
from fedtailor.papers.format import (
    SETTINGS,
    Column,
    Explanation,
    Layer,
    Method,
    Point,
    Score,
    Source,
    Table,
    build_section,
)

T = TypeVar("T")


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
    """Largest difference from a printed number, a fraction, by the least number of seeds that it is
    for."""
    explanations: tuple[Explanation, ...]

    def tolerance_of(self, number_of_seeds: int) -> float | None:
        """Return the tolerance of a mean over seeds; None if none is stated."""
        stated = [least for least in self.tolerance if least <= number_of_seeds]
        return self.tolerance[max(stated)] if stated else None

    def explanations_of(self, column: str, method: str, score: str) -> list[Explanation]:
        """Return why a number is outside tolerance, or what is not the cause; empty if nothing is
        said of it.
        """
        return [
            each
            for each in self.explanations
            if column in each.columns
            and method in each.methods
            and (not each.scores or score in each.scores)
        ]


@dataclass(frozen=True)
class Reading:
    """A number of a cell: how to read it from a result, and what the paper prints."""

    name: str
    score: Score
    reference: float | None
    """A fraction; None: nothing is printed."""
    spread: float | None


@dataclass(frozen=True)
class Cell:
    """One run of a table: a method on a column."""

    paper: Paper
    table: str
    column: str
    method: str
    seed: int
    values: dict[str, Any]
    """For :func:`fedtailor.experiment.config.make_config`."""
    inferred: tuple[str, ...]
    readings: tuple[Reading, ...]

    def place(self) -> dict[str, Any]:
        """Return where the run belongs, ready for JSON: paper, table, column, method and seed."""
        return {
            "paper": self.paper.name,
            "table": self.table,
            "column": self.column,
            "method": self.method,
            "seed": self.seed,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of all settings that change a result, except the seed. Cells with equal digests
        are run once.
        """
        kept = {name: self.values.get(name, {}) for name in SETTINGS if name != "evaluation"}
        kept["data"] = {name: value for name, value in kept["data"].items() if name != "dir"}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def experiments_folder() -> Path:
    """Return ``experiments`` of the current folder, else of the repository that this package is in.

    Raises:
        ConfigError: neither holds the file of a paper.
    """
    places = [Path("experiments"), Path(__file__).resolve().parents[3] / "experiments"]
    for place in places:
        if any(place.glob("*/paper.toml")):
            return place

    raise ConfigError(
        f"there is no folder 'experiments' with the experiments of papers in {Path.cwd()}. Run this command in a clone "
        "of the repository: the installed package does not contain them.",
        key="experiments",
        allowed="a folder that contains experiments/PAPER/paper.toml",
        got=str(Path.cwd()),
    )


def paper_names(folder: Path | None = None) -> list[str]:
    """Return the papers of a folder."""
    return sorted(
        path.parent.name for path in (folder or experiments_folder()).glob("*/paper.toml")
    )


def load_paper(name: str, folder: Path | None = None) -> Paper:
    """Read and check the file of a paper.

    Args:
        name: a folder's name, such as ``pfedfda``.
        folder: default: :func:`experiments_folder`.

    Raises:
        ConfigError: unknown paper, or a mistake in its file.
        DataError: the file cannot be read.
    """
    folder = folder or experiments_folder()
    name = find_name("paper", name, paper_names(folder), key="paper")
    path = folder / name / "paper.toml"
    values = read_toml(path)
    try:
        return _paper(name, values)
    except ConfigError as error:
        raise ConfigError(
            f"'{path}': {error}", key=error.key, path=str(path), allowed=error.allowed
        ) from error


def expand(paper: Paper, table: str, column: str, method: str, seed: int = 0) -> Cell:
    """Return a cell of a table with its configuration.

    Raises:
        ConfigError: an unknown table, or a column or method that the table does not have, with the
            nearest name.
    """
    table = find_table(paper, table)
    entry = paper.tables[table]
    column = find_name(f"column of table {table}", column, entry.columns, key="column")
    method = find_name(f"method of table {table}", method, entry.reference, key="method")
    chosen = paper.methods[method]
    trained_name = chosen.run_of or method
    trained = paper.methods[trained_name]
    layers: list[Layer] = [paper.base, paper.columns[column], trained]

    if column in trained.columns:
        layers.append(
            build_section(
                Layer, trained.columns[column], f"methods.{trained_name}.columns.{column}"
            )
        )

    values, inferred = _merge(layers)
    spreads = _by_score(paper, entry.spreads.get(method, {}))
    readings = []
    for name, numbers in _by_score(paper, entry.reference[method]).items():
        score = paper.scores[name]
        score = dataclasses.replace(score, point=_point(score, chosen))
        reference = _fraction(entry, numbers, column)
        readings.append(
            Reading(name, score, reference, _fraction(entry, spreads.get(name), column))
        )

    return Cell(
        paper, table, column, method, seed, {"seed": seed, **values}, inferred, tuple(readings)
    )


def cells(
    paper: Paper, table: str, *, column: str = "", method: str = "", seed: int = 0
) -> list[Cell]:
    """Return the cells of a table, all or those of a column or method.

    Raises:
        ConfigError: an unknown name, with the nearest one.
    """
    entry = paper.tables[find_table(paper, table)]
    columns = [column] if column else entry.columns
    methods = [method] if method else entry.reference
    return [expand(paper, table, one, other, seed) for one in columns for other in methods]


def find_table(paper: Paper, name: str) -> str:
    """Return the table of a paper that a name stands for.

    Raises:
        ConfigError: there is no such table.
    """
    return find_name(f"table of {paper.name}", name, paper.tables, key="table")


def _point(score: Score, method: Method) -> Point:
    """Return the evaluation point of a number. New clients do not train in a round, so they have no
    ``local``.
    """
    point = score.point or method.point
    return "personalized" if score.clients == "new" and point == "local" else point


def _merge(layers: list[Layer]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Merge layers; later ones win. A value is inferred only if the layer that set it last says
    so.
    """
    values: dict[str, Any] = {}
    inferred: dict[str, None] = {}
    for layer in layers:
        for section in SETTINGS:
            for name, value in getattr(layer, section).items():
                values.setdefault(section, {})[name] = value
                inferred.pop(f"{section}.{name}", None)

        inferred |= dict.fromkeys(layer.inferred)

    methods = [layer for layer in layers if isinstance(layer, Method)]
    for key in inferred:
        section, _, name = key.partition(".")
        is_point = key == "point" and any(key in method.inferred for method in methods)
        if name not in values.get(section, {}) and not is_point:
            raise ConfigError(
                f"inferred names '{key}', which nothing sets.", key="inferred", got=key
            )

    return {section: values[section] for section in SETTINGS if section in values}, tuple(
        sorted(inferred)
    )


def _by_score(paper: Paper, numbers: Any) -> dict[str, Any]:
    """Return lists of numbers by score; a plain list is that of the first score."""
    return dict(numbers) if isinstance(numbers, Mapping) else {next(iter(paper.scores)): numbers}


def _fraction(table: Table, numbers: Any, column: str) -> float | None:
    """Return the number of a column as a fraction; None where nothing is printed."""
    if numbers is None:
        return None
    number = float(numbers[table.columns.index(column)])
    return (
        None if math.isnan(number) else round(number / (100 if table.unit == "percent" else 1), 10)
    )


def _paper(name: str, values: dict[str, Any]) -> Paper:
    """Build a paper from its file, and check that the names in it belong together."""
    known = ("paper", "base", "columns", "methods", "scores", "tables", "tolerance", "explanations")
    for key in values:
        if key not in known:
            raise unknown_name("section", key, known, key=key)

    def named(section: str, cls: type[T], default: Any) -> dict[str, T]:
        entries = values.get(section, default)
        if not isinstance(entries, Mapping) or not entries:
            raise ConfigError(f"there must be sections [{section}.NAME].", key=section)

        return {
            key: build_section(cls, entry, f"{section}.{key}") for key, entry in entries.items()
        }

    paper = Paper(
        name=name,
        source=build_section(Source, values.get("paper", {}), "paper"),
        base=build_section(Layer, values.get("base", {}), "base"),
        columns=named("columns", Column, {}),
        methods=named("methods", Method, {}),
        scores=named("scores", Score, {"accuracy": {}}),
        tables=named("tables", Table, {}),
        tolerance=_tolerance(values.get("tolerance", {})),
        explanations=_explanations(values.get("explanations", [])),
    )

    for key, method in paper.methods.items():
        for column in method.columns:
            if column not in paper.columns:
                raise unknown_name("column", column, paper.columns, key=f"methods.{key}.columns")

        if method.run_of:
            _check_run_of(paper, key)

    for explanation in paper.explanations:
        _check_explanation(paper, explanation)

    for key in paper.tables:
        _check_table(paper, key)
        cells(paper, key)

    return paper


def _tolerance(values: Any) -> dict[int, float]:
    """Return tolerances as fractions by the least number of seeds, from percentage points."""
    allowed = "a section of percentage points by the least number of seeds, such as 1 = 2.5"
    if not isinstance(values, Mapping):
        raise ConfigError(f"tolerance must be {allowed}.", key="tolerance", allowed=allowed)

    stated = {}
    for seeds, points in values.items():
        if (
            not seeds.isdecimal()
            or int(seeds) < 1
            or type(points) not in (int, float)
            or not points > 0
        ):
            got = f"{seeds} = {points!r}"
            raise ConfigError(
                f"tolerance must be {allowed}, got {got}.",
                key="tolerance",
                allowed=allowed,
                got=got,
            )

        stated[int(seeds)] = points / 100

    return stated


def _explanations(sections: Any) -> tuple[Explanation, ...]:
    """Return the explanations of a file."""
    if not isinstance(sections, list):
        raise ConfigError("explanations must be sections [[explanations]].", key="explanations")
    return tuple(
        build_section(Explanation, section, f"explanations, number {number}")
        for number, section in enumerate(sections, start=1)
    )


def _check_explanation(paper: Paper, explanation: Explanation) -> None:
    """Check the names of an explanation."""
    for kind, names, known in (
        ("column", explanation.columns, paper.columns),
        ("method", explanation.methods, paper.methods),
        ("score", explanation.scores, paper.scores),
    ):
        for name in names:
            find_name(kind, name, known, key=f"explanations.{kind}s")


def _check_run_of(paper: Paper, name: str) -> None:
    """Check the method whose run has the numbers of another one."""
    method = paper.methods[name]
    key = f"methods.{name}.run_of"
    owners = [other for other, each in paper.methods.items() if not each.run_of]
    find_name("method", method.run_of, owners, key=key)
    for section in (*SETTINGS, "columns", "inferred"):
        if getattr(method, section):
            raise ConfigError(
                f"methods.{name} must not have '{section}', because its numbers are read from the run of "
                f"'{method.run_of}'.",
                key=f"methods.{name}.{section}",
            )


def _check_table(paper: Paper, name: str) -> None:
    """Check names and lengths of a table."""
    table = paper.tables[name]
    key = f"tables.{name}"
    for column in table.columns:
        if column not in paper.columns:
            raise unknown_name("column", column, paper.columns, key=f"{key}.columns")

    for part in ("reference", "spreads"):
        for method, numbers in getattr(table, part).items():
            if method not in paper.methods:
                raise unknown_name("method", method, paper.methods, key=f"{key}.{part}")

            for score, row in _by_score(paper, numbers).items():
                if score not in paper.scores:
                    raise unknown_name("score", score, paper.scores, key=f"{key}.{part}.{method}")

                _check_row(row, len(table.columns), f"{key}.{part}.{method}")


def _check_row(row: Any, length: int, key: str) -> None:
    """Check that a row of a table is a list of ``length`` numbers."""
    is_right = (
        isinstance(row, list)
        and len(row) == length
        and all(type(number) in (int, float) for number in row)
    )

    if not is_right:
        allowed = f"a list of {length} numbers, one for each column"
        raise ConfigError(
            f"{key} must be {allowed}, got {row!r}.", key=key, allowed=allowed, got=repr(row)
        )


def dataset_states(data_dir: str = "") -> dict[str, str]:
    """Return for every known data set whether its files are there: included, present, partial or
    absent.

    Args:
        data_dir: default: FEDTAILOR_DATA, else ~/.cache/fedtailor.
    """
    from fedtailor.data import data_folder
    from fedtailor.data.inventory import inventory

    return {record["name"]: record["state"] for record in inventory(data_folder(data_dir))}


def missing(cell: Cell, states: Mapping[str, str]) -> list[str]:
    """Return a sentence for each part that a cell needs and that is missing: algorithm, model, data
    set.

    Args:
        cell: the cell.
        states: of :func:`dataset_states`.
    """
    from fedtailor.algorithms import ALGORITHMS
    from fedtailor.models import MODELS

    algorithm = cell.values["algorithm"]["name"]
    model = cell.values.get("model", {}).get("name", "")
    dataset = cell.values.get("data", {}).get("dataset", "digits")
    state = states.get(dataset, "unknown")
    sentences = []
    if ":" not in algorithm and algorithm not in ALGORITHMS:
        sentences.append(f"algorithm {algorithm}: not available yet")
    if model and ":" not in model and model not in MODELS:
        sentences.append(f"model {model}: not available yet")
    if state not in ("included", "present"):
        sentences.append(f"data set {dataset} is {state}: fedtailor data fetch {dataset}")

    return sentences
