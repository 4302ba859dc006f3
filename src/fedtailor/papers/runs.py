"""Run a cell of a paper's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Progress
from fedtailor.experiment.records import read_run
from fedtailor.experiment.run import run, unused_folder
from fedtailor.papers.clients import client_columns
from fedtailor.papers.records import Record, make_record
from fedtailor.papers.tables import Cell


def default_folder(cell: Cell) -> Path:
    """Return a run folder for a cell that does not exist yet."""
    return unused_folder(f"{cell.paper.name}-{cell.column}-{cell.method}-seed{cell.seed}")


def run_cell(
    cell: Cell, folder: Path, *, data_dir: str = "", rounds: int | None = None, progress: Progress | None = None
) -> Record:
    """Run a cell in ``folder`` and return its record. The record is not written.

    Args:
        cell: the cell.
        folder: the run folder.
        data_dir: folder of the data sets.
        rounds: number of rounds; default: the paper's.
        progress: receives the progress of the run.

    Raises:
        ConfigError: an option is wrong, or the folder exists.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not go on.
    """
    given: list[tuple[str, Any]] = []
    if data_dir:
        given.append(("data.dir", data_dir))
    if rounds is not None:
        given.append(("federation.rounds", rounds))
    result = run(make_config(cell.values, given), out=folder, progress=progress)
    provenance = json.loads((folder / "provenance.json").read_bytes())
    record = make_record(cell, result, provenance)
    record["clients"] = client_columns(read_run(folder).clients)
    return record
