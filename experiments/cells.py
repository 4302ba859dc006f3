"""The cells of a paper's tables: one method on one column, expanded to a configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from experiments.paper import (
    FOLDER,
    SETTINGS,
    Layer,
    Method,
    Paper,
    Point,
    Score,
    Table,
    build_section,
    load_paper,
    numbers_by_score,
)
from fedtailor.core.errors import ConfigError, find_name
from fedtailor.core.options import Range
from fedtailor.core.reading import read_toml

_AVAILABLE = ("included", "present")
"""States of data sets that can be used."""


@dataclass(frozen=True)
class Printed:
    """A number of a cell: how to read ours from a result, and what the paper prints."""

    name: str
    """Of its score."""
    score: Score
    value: float | None
    """A fraction; None: nothing is printed."""
    spread: float | None
    program: float | None = None
    """What another program has on our split; None: it did not run."""


@dataclass(frozen=True)
class Cell:
    """One run of a table: a method on a column."""

    paper: Paper
    table: str
    column: str
    method: str
    seed: int
    values: dict[str, Any]
    """For :func:`fedtailor.make_config`."""
    inferred: tuple[str, ...]
    """Settings that neither the paper nor its released code states."""
    printed: tuple[Printed, ...]

    def place(self) -> dict[str, Any]:
        """Return where the run belongs, ready for JSON."""
        return {
            "paper": self.paper.name,
            "table": self.table,
            "column": self.column,
            "method": self.method,
            "seed": self.seed,
        }

    def __str__(self) -> str:
        return f"{self.paper.name} {self.table} {self.column} {self.method}, seed {self.seed}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all settings that change a result, except the seed.

        Cells with equal digests are run once.
        """
        settings = {name: self.values.get(name, {}) for name in SETTINGS if name != "evaluation"}
        settings["data"] = {k: value for k, value in settings["data"].items() if k != "dir"}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Step:
    """A section ``[[runs]]`` of the plan; without columns or methods, all of the table."""

    paper: str
    table: str
    columns: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, Range(ge=0)], ...] = (0,)


def expand(paper: Paper, table: str, column: str, method: str, seed: int = 0) -> Cell:
    """Return a cell of a table with its configuration.

    Raises:
        ConfigError: an unknown table, column or method; the message has the nearest name.
    """
    table = paper.find_table(table)
    entry = paper.tables[table]
    column = find_name(f"column of table {table}", column, entry.columns, key="column")
    method = find_name(f"method of table {table}", method, entry.reference, key="method")

    values, inferred = settings_of(paper, column, method)
    return Cell(
        paper,
        table,
        column,
        method,
        seed,
        {"seed": seed, **values},
        inferred,
        _printed_numbers(paper, entry, column, method),
    )


def settings_of(
    paper: Paper, column: str, method: str
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Return the settings of a method on the data of a column, and which of them are inferred.

    Args:
        paper: has both; they need not be in one table.
        column: the data.
        method: its run may be that of another method.
    """
    # What all runs share, then the data, then the method, then what it tunes for these data.
    trained = paper.methods[method].run_of or method
    return _merge([paper.base, paper.columns[column], *_method_layers(paper, trained, column)])


def cells(
    paper: Paper, table: str, *, column: str = "", method: str = "", seed: int = 0
) -> list[Cell]:
    """Return the cells of a table, all or those of a column or method.

    Raises:
        ConfigError: an unknown name; the message has the nearest one.
    """
    entry = paper.tables[paper.find_table(table)]
    columns = [column] if column else entry.columns
    methods = [method] if method else entry.reference
    return [expand(paper, table, one, other, seed) for one in columns for other in methods]


def read_plan(path: Path, folder: Path = FOLDER) -> list[Cell]:
    """Read a plan, and return its runs in their order, each once.

    Args:
        path: the file; ``experiments/plan.toml`` describes its format.
        folder: the folder of the papers.

    Raises:
        ConfigError: a mistake in the file, or a name that the papers do not have.
        DataError: the file cannot be read.
    """
    sections = read_toml(path).get("runs")
    if not isinstance(sections, list) or not sections:
        raise ConfigError(f"'{path}' must consist of sections [[runs]].", key="runs")

    planned: list[Cell] = []
    for number, section in enumerate(sections, start=1):
        step = build_section(Step, section, f"runs, number {number}")
        paper = load_paper(step.paper, folder)

        # Seed by seed, so that every cell has a first run early.
        for seed in step.seeds:
            for column in step.columns or ("",):
                for method in step.methods or ("",):
                    planned += cells(paper, step.table, column=column, method=method, seed=seed)

    return single_runs(planned)


def single_runs(planned: Iterable[Cell]) -> list[Cell]:
    """Return the runs that cells need, in their order and each once.

    Cells with equal settings and seed share a run. It belongs to the method that trains so, not to
    one whose numbers are read from it.
    """
    runs: dict[tuple[str, int], Cell] = {}
    for cell in planned:
        key = (cell.digest, cell.seed)
        if key not in runs or (_has_no_run(runs[key]) and not _has_no_run(cell)):
            runs[key] = cell

    return list(runs.values())


def missing_data(cell: Cell, states: Mapping[str, str]) -> str:
    """Return which data set must be fetched before a cell can run; empty if it is there.

    Args:
        cell: the cell.
        states: of :func:`dataset_states`.
    """
    dataset = cell.values.get("data", {}).get("dataset", "digits")
    state = states.get(dataset, "unknown")
    if state in _AVAILABLE:
        return ""

    return f"data set {dataset} is {state}: fedtailor data fetch {dataset}"


def dataset_states(data_dir: str = "") -> dict[str, str]:
    """Return for every known data set whether its files are there.

    Args:
        data_dir: default: FEDTAILOR_DATA, else ~/.cache/fedtailor.
    """
    from fedtailor.data import data_folder
    from fedtailor.data.inventory import inventory

    return {record["name"]: record["state"] for record in inventory(data_folder(data_dir))}


def _has_no_run(cell: Cell) -> bool:
    """Return whether a cell's numbers are read from the run of another method."""
    return bool(cell.paper.methods[cell.method].run_of)


def _method_layers(paper: Paper, name: str, column: str) -> list[Layer]:
    """Return the settings of a method, each time followed by what it tunes for a column."""
    method = paper.methods[name]
    layers = _method_layers(paper, method.based_on, column) if method.based_on else []
    layers.append(method)
    tuned = method.columns.get(column)
    if tuned is not None:
        layers.append(build_section(Layer, tuned, f"methods.{name}.columns.{column}"))

    return layers


def _merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Merge layers; later ones win.

    A value is inferred only if the layer that set it last says so.
    """
    values: dict[str, dict[str, Any]] = {}
    inferred: set[str] = set()
    for layer in layers:
        for section in SETTINGS:
            for name, value in getattr(layer, section).items():
                values.setdefault(section, {})[name] = value
                inferred.discard(f"{section}.{name}")

        inferred.update(layer.inferred)

    # A method may also say that the evaluation point is inferred, which is no setting.
    methods = [layer for layer in layers if isinstance(layer, Method)]
    settable = {f"{section}.{name}" for section, options in values.items() for name in options}
    settable |= {"point" for method in methods if "point" in method.inferred}
    for key in sorted(inferred - settable):
        raise ConfigError(f"inferred names '{key}', which nothing sets.", key="inferred", got=key)

    ordered = {section: values[section] for section in SETTINGS if section in values}
    return ordered, tuple(sorted(inferred))


def _printed_numbers(paper: Paper, table: Table, column: str, method: str) -> tuple[Printed, ...]:
    spreads = numbers_by_score(paper, table.spreads.get(method, {}))
    programs = numbers_by_score(paper, table.programs.get(method, {}))
    printed = []
    for name, row in numbers_by_score(paper, table.reference[method]).items():
        score = paper.scores[name]
        score = dataclasses.replace(score, point=_point_of(score, paper.methods[method]))
        value = _fraction(table, row, column)
        spread = _fraction(table, spreads.get(name), column)
        program = _fraction(table, programs.get(name), column)
        printed.append(Printed(name, score, value, spread, program))

    return tuple(printed)


def _point_of(score: Score, method: Method) -> Point:
    """Return the evaluation point of a number.

    New clients do not train in a round, so they have no ``local``.
    """
    point = score.point or method.point
    return "personalized" if score.clients == "new" and point == "local" else point


def _fraction(table: Table, row: Sequence[float] | None, column: str) -> float | None:
    """Return the number of a column as a fraction; None where nothing is printed."""
    if row is None:
        return None

    number = float(row[table.columns.index(column)])
    if math.isnan(number):
        return None

    return round(number / (100 if table.unit == "percent" else 1), 10)
