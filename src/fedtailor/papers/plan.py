"""The plan: a file that lists runs of the papers' tables in the order in which they are to be made.
No torch.

``experiments/plan.toml`` has one section ``[[runs]]`` per step: a paper, one of its tables, and
which of its columns and methods to run with which seeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range
from fedtailor.core.reading import read_toml
from fedtailor.papers.format import build_section
from fedtailor.papers.tables import Cell, Paper, cells, load_paper

_Seed = Annotated[int, Range(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A section ``[[runs]]`` of the plan."""

    paper: str
    table: str
    columns: tuple[str, ...] = ()
    """Columns of the table; empty: all."""
    methods: tuple[str, ...] = ()
    """Methods of the table; empty: all."""
    seeds: tuple[_Seed, ...] = (0,)


def read_plan(path: str | Path, folder: Path | None = None) -> list[Cell]:
    """Read a plan and return its runs in their order, each once.

    Args:
        path: the file.
        folder: of the papers; default: :func:`fedtailor.papers.tables.experiments_folder`.

    Raises:
        ConfigError: a mistake in the file, or a name that the papers do not have.
        DataError: the file cannot be read.
    """
    values = read_toml(Path(path))
    try:
        return single_runs(_cells(values, folder))
    except ConfigError as error:
        raise ConfigError(
            f"'{path}': {error}", key=error.key, path=str(path), allowed=error.allowed
        ) from error


def single_runs(planned: Iterable[Cell]) -> list[Cell]:
    """Return the runs that cells need, in order and each once: cells with equal settings and seed
    share a run.

    The run belongs to the method that trains so, not to one whose numbers are read from it.
    """
    runs: dict[tuple[str, int], Cell] = {}
    for cell in planned:
        key = (cell.digest, cell.seed)
        if key not in runs or (_is_read(runs[key]) and not _is_read(cell)):
            runs[key] = cell
    return list(runs.values())


def _is_read(cell: Cell) -> bool:
    """Return whether the cell's numbers are read from the run of another method."""
    return bool(cell.paper.methods[cell.method].run_of)


def _cells(values: dict[str, Any], folder: Path | None) -> list[Cell]:
    steps = values.get("runs")
    if list(values) != ["runs"] or not isinstance(steps, list) or not steps:
        raise ConfigError(
            "a plan must consist of sections [[runs]].", key="runs", allowed="[[runs]]"
        )

    papers: dict[str, Paper] = {}
    planned = []
    for number, section in enumerate(steps, start=1):
        step = build_section(Step, section, f"runs, number {number}")
        if step.paper not in papers:
            papers[step.paper] = load_paper(step.paper, folder)

        planned += _cells_of(papers[step.paper], step)

    return planned


def _cells_of(paper: Paper, step: Step) -> list[Cell]:
    """Return the cells of a step: seed by seed, so that every cell has a first run early."""
    return [
        cell
        for seed in step.seeds
        for column in step.columns or ("",)
        for method in step.methods or ("",)
        for cell in cells(paper, step.table, column=column, method=method, seed=seed)
    ]
