"""Run a cell of a paper's table."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import shutil
from pathlib import Path

import numpy as np

from experiments.cells import Cell, cells
from experiments.records import Record, make_record
from fedtailor.core.atomic import safe_name
from fedtailor.data.build import build
from fedtailor.experiment.config import Config, make_config
from fedtailor.experiment.reader import RunRecords, holds_run, read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.summary import evaluation_name
from fedtailor.experiment.tracking import RunProgress
from fedtailor.serving.run import load

_EVALUATIONS = 10
"""Evaluations of global and local models in a run."""
_PERSONALIZED_EVALUATIONS = 4
"""Evaluations of personalized models in a run. They may cost as much as several rounds each."""


def run_folder(cell: Cell) -> Path:
    """Return the run folder of a cell, where an interrupted run resumes."""
    name = f"{cell.paper.name}-{cell.column}-{cell.method}-seed{cell.seed}-{cell.digest[:8]}"
    return Path("runs") / safe_name(name)


def run_cell(
    cell: Cell, folder: Path, *, data_dir: str = "", progress: RunProgress | None = None
) -> Record:
    """Run a cell in ``folder``, or what is left of its run there, and return its record.

    Args:
        cell: the cell.
        folder: the run folder.
        data_dir: folder of the data sets.
        progress: receives the progress of the run.

    Raises:
        ConfigError: an option is wrong, or the folder exists.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not continue.
    """
    config = with_curve(make_config(cell.values, [("data.dir", data_dir)] if data_dir else []))
    is_resumed = holds_run(folder)
    before = _cpu_seconds()
    result = run(config, out=folder, progress=progress)
    cpu_seconds = _cpu_seconds() - before

    finished = read_run(folder)
    record = {
        **make_record(cell, result, finished.provenance),
        # What an interrupted process took is not known.
        "cpu_seconds": None if is_resumed else cpu_seconds,
        "curve": learning_curve(finished),
        "by_client": scores_by_client(finished),
    }
    for measure in _measures(cell):
        module = importlib.import_module(f"experiments.{measure}")
        record[measure] = module.measure(load(folder), load_test_examples(config, cell.seed))

    return record


def _measures(cell: Cell) -> list[str]:
    """Return what else the tables want to know of a run with these settings."""
    wanted = set()
    for name, table in cell.paper.tables.items():
        if table.measure and any(cell.digest == other.digest for other in cells(cell.paper, name)):
            wanted.add(table.measure)

    return sorted(wanted)


def load_test_examples(config: Config, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the test examples of every client, as stored, and their labels."""
    divided = build(config.data, run_seed=seed)
    return [
        (divided.dataset.x[client.test], divided.dataset.y[client.test])
        for client in divided.positions
    ]


def with_curve(config: Config) -> Config:
    """Return a configuration that also evaluates during the run, which does not change it.

    Global and local models are evaluated at every tenth of the run, personalized ones at every
    quarter. With new clients, personalized models are evaluated at the end only: there may be many
    more new clients than others.
    """
    schedule = config.schedule
    evaluate_every = schedule.evaluate_every
    if evaluate_every in (0, "auto"):
        evaluate_every = math.ceil(schedule.rounds / _EVALUATIONS)

    personalized_every = schedule.personalized_every
    if personalized_every in (0, "auto"):
        personalized_every = 0
        if not config.data.new_clients:
            personalized_every = math.ceil(schedule.rounds / _PERSONALIZED_EVALUATIONS)

    schedule = dataclasses.replace(
        schedule, evaluate_every=evaluate_every, personalized_every=personalized_every
    )
    return dataclasses.replace(config, schedule=schedule)


def learning_curve(finished: RunRecords) -> list[Record]:
    """Return the accuracies of a run by round and evaluation point."""
    curve = []
    for record in finished.rounds:
        for evaluation in record["evaluations"]:
            metrics = evaluation["metrics"]
            if "accuracy" not in metrics:
                continue

            curve.append(
                {
                    "round": record["round"],
                    "point": evaluation_name(evaluation),
                    "clients": evaluation["group"],
                    "evaluated": metrics["clients"]["evaluated"],
                    "mean": metrics["accuracy"]["mean"],
                    "pooled": metrics["accuracy"]["pooled"],
                }
            )

    return curve


def scores_by_client(finished: RunRecords) -> Record:
    """Return lists with one entry per client that takes part in training.

    ``num_test`` holds the clients' test examples, and ``correct`` per evaluation point how many of
    them are classified correctly after the last round; None where a client was not evaluated.
    """
    last_round = finished.rounds[-1]["round"]
    scored = [
        line
        for line in finished.clients
        if line["round"] == last_round
        and line.get("group") == "known"
        and line["test_set"] == "clients"
        and "accuracy" in line
    ]
    number_of_clients = max((line["client"] for line in scored), default=-1) + 1
    nobody = [None] * number_of_clients
    by_client: Record = {"num_test": list(nobody), "correct": {}}

    for line in scored:
        client = line["client"]
        by_client["num_test"][client] = line["num_test"]
        correct = by_client["correct"].setdefault(line["point"], list(nobody))
        correct[client] = round(line["accuracy"] * line["num_test"])

    return by_client


def remove_models(folder: Path) -> None:
    """Remove the clients' models of a run, which would fill the disk; its other files stay."""
    shutil.rmtree(folder / "models", ignore_errors=True)


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
