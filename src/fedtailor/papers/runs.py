"""Run a cell of a paper's table."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import safe_name
from fedtailor.core.errors import RunError
from fedtailor.experiment.config import Config, make_config
from fedtailor.experiment.progress import Progress
from fedtailor.experiment.provenance import machine
from fedtailor.experiment.records import Run, holds_run, read_run
from fedtailor.experiment.run import run, unused_folder
from fedtailor.experiment.summary import evaluation_name
from fedtailor.papers.records import Record, make_record
from fedtailor.papers.tables import Cell
from fedtailor.papers.training import training_metrics

_EVALUATIONS = 10
"""Evaluations of global and local models in a run."""
_PERSONALIZED_EVALUATIONS = 4
"""Evaluations of personalized models in a run. They may cost as much as several rounds each."""
_SHARE_BEFORE_LIMIT = 0.05
"""Share of the rounds after which a run is checked against its time limit."""


class TooLong(RunError):
    """A run would exceed its time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__("the run was stopped, because it would exceed the time limit.")
        self.seconds = seconds
        """What it would take in all."""


class TimeLimit:
    """Passes the progress of a run on, and stops a run that would take too long.

    Like the estimates, it counts processor time divided by the number of cores: a run that shares
    the machine with other work is not longer for it.
    """

    def __init__(self, inner: Progress, seconds: float) -> None:
        """Stop a run that would take more than ``seconds`` on a machine that does nothing else, by
        its first rounds.
        """
        self._inner = inner
        self._limit = seconds
        self._cores: int = machine()["physical_cores"]
        self._rounds = 0
        self._done = 0
        self._last = 0.0
        self._seconds: list[float] = []

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start a run of one seed, of which ``done`` rounds were done before."""
        self._rounds = num_rounds
        self._done = done
        self._last = _cpu_seconds()
        self._seconds = []
        self._inner.begin(title, num_rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        """Report the end of a round.

        Raises:
            TooLong: the run would exceed its limit.
        """
        self._inner.round(record)
        done = record["round"] - self._done
        now = _cpu_seconds()
        self._seconds.append((now - self._last) / self._cores)
        self._last = now

        if done == max(2, math.ceil(_SHARE_BEFORE_LIMIT * self._rounds)):
            expected = statistics.median(self._seconds) * self._rounds
            if expected > self._limit:
                raise TooLong(expected)

    def prepare(self, what: str, done: int, total: int) -> None:
        """Report how far the images are prepared."""
        self._inner.prepare(what, done, total)

    def note(self, text: str) -> None:
        """Report something that a user should know."""
        self._inner.note(text)

    def end(self) -> None:
        """Report the end of a run."""
        self._inner.end()


def default_folder(cell: Cell, *, is_trial: bool = False) -> Path:
    """Return the run folder of a cell, where an interrupted run resumes; for a trial, one that does
    not exist yet.
    """
    name = f"{cell.paper.name}-{cell.column}-{cell.method}-seed{cell.seed}"
    if is_trial:
        return unused_folder(name)
    return Path("runs") / safe_name(f"{name}-{cell.digest[:8]}")


def run_cell(
    cell: Cell,
    folder: Path,
    *,
    data_dir: str = "",
    rounds: int | None = None,
    progress: Progress | None = None,
) -> Record:
    """Run a cell in ``folder``, or what is left of its run there, and return its record. The record
    is not written.

    Args:
        cell: the cell.
        folder: the run folder.
        data_dir: folder of the data sets.
        rounds: number of rounds; default: the paper's.
        progress: receives the progress of the run.

    Raises:
        ConfigError: an option is wrong, or the folder exists.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not continue.
    """
    given: list[tuple[str, Any]] = []
    if data_dir:
        given.append(("data.dir", data_dir))
    if rounds is not None:
        given.append(("federation.rounds", rounds))

    config = with_curve(make_config(cell.values, given))
    resumed = holds_run(folder)
    cpu = _cpu_seconds()
    result = run(config, out=folder, progress=progress)
    cpu = _cpu_seconds() - cpu
    finished = read_run(folder)

    return {
        **make_record(cell, result, finished.provenance),
        # what another process took is not known
        "cpu_seconds": None if resumed else cpu,
        "curve": learning_curve(finished),
        "by_client": scores_by_client(finished),
        "training": training_metrics(finished),
    }


def with_curve(config: Config) -> Config:
    """Return a configuration that also evaluates during the run, which does not change it.

    Global and local models are evaluated at every tenth of the run, personalized ones at every
    quarter. With new clients, personalized models are evaluated at the end only: there may be many
    more new clients than others.
    """
    schedule = config.schedule
    evaluate_every = schedule.evaluate_every or math.ceil(schedule.rounds / _EVALUATIONS)
    personalized_every = schedule.personalized_every
    if not personalized_every and not config.data.new_clients:
        personalized_every = math.ceil(schedule.rounds / _PERSONALIZED_EVALUATIONS)

    schedule = dataclasses.replace(
        schedule, evaluate_every=evaluate_every, personalized_every=personalized_every
    )
    return dataclasses.replace(config, schedule=schedule)


def learning_curve(finished: Run) -> list[Record]:
    """Return the accuracies of a run by round and evaluation point."""
    return [
        {
            "round": record["round"],
            "point": evaluation_name(evaluation),
            "clients": evaluation["group"],
            "evaluated": evaluation["metrics"]["clients"]["evaluated"],
            "mean": evaluation["metrics"]["accuracy"]["mean"],
            "pooled": evaluation["metrics"]["accuracy"]["pooled"],
        }
        for record in finished.rounds
        for evaluation in record["evaluations"]
        if "accuracy" in evaluation["metrics"]
    ]


def scores_by_client(finished: Run) -> Record:
    """Return lists with one entry per client that takes part in training, for paired comparisons
    and figures.

    ``correct`` holds per evaluation point how many of the client's test examples are classified
    correctly after the last round, and None where the client was not evaluated. ``diagnostics`` are
    those of the personalized models.
    """
    last = [
        record
        for record in finished.clients
        if record["round"] == finished.rounds[-1]["round"] and record.get("group") == "known"
    ]
    evaluated = [
        record for record in last if record["test_set"] == "clients" and "accuracy" in record
    ]
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
                by_client["diagnostics"].setdefault(name, [None] * number_of_clients)[client] = (
                    round(number, 6)
                )

    return by_client


def remove_models(folder: Path) -> None:
    """Remove the clients' models of a run that has a record; the other files of the run stay."""
    shutil.rmtree(folder / "models", ignore_errors=True)


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
