"""Run a cell of a paper's table, and keep its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtailor.experiment import run as experiment
from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Progress
from fedtailor.papers.records import Record, make_record
from fedtailor.papers.tables import Cell


def default_folder(cell: Cell) -> Path:
    """Return a run folder for a cell that does not exist yet."""
    return experiment.unused_folder(f"{cell.paper.name}-{cell.column}-{cell.method}-seed{cell.seed}")


def run_cell(
    cell: Cell, folder: Path, *, data_dir: str = "", rounds: int | None = None, progress: Progress | None = None
) -> Record:
    """Run a cell in ``folder`` and return its record, which is not written.

    Args:
        cell: the cell.
        folder: the run folder.
        data_dir: folder of the data sets.
        rounds: in place of the paper's.
        progress: what is told while it runs.

    Raises:
        ConfigError: an option is wrong, or the folder exists.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not go on.
    """
    given: list[tuple[str, Any]] = [("data.dir", data_dir)] if data_dir else []
    given += [("federation.rounds", rounds)] if rounds is not None else []
    result = experiment.run(make_config(cell.values, given), out=folder, progress=progress)
    provenance = json.loads((folder / "provenance.json").read_bytes())
    return make_record(cell, result, provenance)
