"""Run a cell of a paper's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Progress
from fedtailor.experiment.records import Run, read_run
from fedtailor.experiment.run import run, unused_folder
from fedtailor.papers.records import Record, make_record
from fedtailor.papers.tables import Cell
from fedtailor.papers.training import training_metrics


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
    finished = read_run(folder)
    record["by_client"] = scores_by_client(finished)
    record["training"] = training_metrics(finished)
    return record


def scores_by_client(finished: Run) -> Record:
    """Return lists with one entry per client that takes part in training, for paired comparisons and figures.

    ``correct`` holds per evaluation point how many of the client's test examples are classified correctly after the
    last round, and None where the client was not evaluated. ``diagnostics`` are those of the personalized models.
    """
    last = [
        record
        for record in finished.clients
        if record["round"] == finished.rounds[-1]["round"] and record.get("clients") == "known"
    ]
    evaluated = [record for record in last if record["test_set"] == "clients" and "accuracy" in record]
    number_of_clients = max((record["client"] for record in evaluated), default=-1) + 1
    by_client: Record = {"correct": {}, "diagnostics": {}}
    for record in evaluated:
        client = record["client"]
        for name in ("num_train", "num_test", "condition"):
            if name in record:
                by_client.setdefault(name, [None] * number_of_clients)[client] = record[name]
        correct = by_client["correct"].setdefault(record["point"], [None] * number_of_clients)
        correct[client] = round(record["accuracy"] * record["num_test"])
        if record["point"] == "personalized":
            for name, number in record.get("diagnostics", {}).items():
                by_client["diagnostics"].setdefault(name, [None] * number_of_clients)[client] = round(number, 6)
    return by_client
