"""What the clients of a leaderboard would use without a federation, trained once for all methods.

They depend on data and split only, so all methods of a repetition are compared with the same ones.
Runs copy them from the folder of :func:`train_own_baselines`, and compare single predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import make_folder, write_json
from fedtailor.core.errors import all_done
from fedtailor.core.reading import read_object
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.baselines import add_baselines, train_pooled
from fedtailor.experiment.config import Config
from fedtailor.experiment.predictions import BASELINES_FILE, CHOICES_FILE, read_predictions
from fedtailor.experiment.runner import begin
from fedtailor.experiment.tracking import RunProgress
from fedtailor.experiment.worth_it import judge

_FOLDER = "baselines"
"""In the folder of unfinished cells."""
_OWN_FILE = "own.json"
_KIND = "leaderboard"
_DIGITS = 6
"""Decimal places of accuracies."""


def train_own_baselines(config: Config, work: Path, name: str) -> dict[str, Any]:
    """Train the baselines of a federation in one repetition, unless the folder holds them.

    Args:
        config: of any method there; it names the baselines.
        work: the folder of unfinished cells.
        name: of federation and repetition.

    Returns:
        Accuracies at every client, None without test examples: ``alone`` of the best model that is
        trained on the client's own examples, and ``pooled`` of the best one of all data in one
        place; their names are ``alone_models``, by client, and ``pooled_model``.

    Raises:
        DataError: data are missing or damaged.
        RunError: a file cannot be written.
    """
    folder = work / _FOLDER / name
    make_folder(folder)

    # The runs of all cells look for baselines in a folder of several runs.
    begin(work, _KIND, [])
    prepared = assemble(config, config.seeds[0])
    with all_done([prepared.engine.close]):
        add_baselines(prepared, folder, RunProgress())
        key = read_object(folder / CHOICES_FILE, within=folder)["key"]
        own = folder / _OWN_FILE
        record = read_object(own, within=folder) if own.is_file() else {}
        if record.get("key") != key:
            pooled_model, pooled = train_pooled(prepared)
            accuracies = [None if value is None else round(value, _DIGITS) for value in pooled]
            record = {"key": key, "pooled": accuracies, "pooled_model": pooled_model}
            write_json(own, record, indent=2)

    alone, alone_models = _alone(folder, len(prepared.divided.positions))
    return {
        "alone": alone,
        "alone_models": alone_models,
        "pooled": record["pooled"],
        "pooled_model": record["pooled_model"],
    }


def _alone(folder: Path, num_clients: int) -> tuple[list[float | None], list[str | None]]:
    """Return the accuracy and the name of the best own model of every client."""
    choices = read_object(folder / CHOICES_FILE, within=folder)["sites"]
    predictions = read_predictions(folder / BASELINES_FILE)
    accuracies: list[float | None] = [None] * num_clients
    names: list[str | None] = [None] * num_clients
    for client, content in predictions.items():
        name = choices[str(client)]["best"]
        if name is not None:
            right = content.probabilities[name].argmax(axis=1) == content.labels
            accuracies[client] = round(float(right.mean()), _DIGITS)
            names[client] = name

    return accuracies, names


def judge_clients(folder: Path, seed: int, num_clients: int) -> Sequence[str | None]:
    """Return the verdict for every client of a finished run; None where there is none.

    Args:
        folder: of the run, with its predictions and those of the baselines.
        seed: of the run.
        num_clients: of the federation.
    """
    verdicts: list[str | None] = [None] * num_clients
    record = judge({seed: folder})
    if record is not None:
        for site in record["sites"]:
            verdicts[site["client"]] = site["verdict"]

    return verdicts
