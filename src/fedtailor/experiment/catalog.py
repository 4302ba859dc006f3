"""What there is to choose from, and whether this machine is ready: the data of ``list`` and ``doctor``."""

from __future__ import annotations

from typing import Any

from fedtailor import algorithms, data, models
from fedtailor.core.errors import DataError, UsageError, did_you_mean, unknown_name
from fedtailor.data.datasets.known import DATASETS
from fedtailor.simulation import engines

KINDS = ("algorithms", "datasets", "models", "partitions", "engines")
NUM_CLASSES = 10
"""Of the models whose bytes are counted in lists."""
DEFAULT_MODEL = "cifar_cnn"
"""The one that is counted unless another is named."""


def listing(kind: str) -> list[dict[str, Any]]:
    """Return the entries of a table, ready for JSON: name and description.

    Raises:
        UsageError: there is no such table.
    """
    tables: dict[str, dict[str, str]] = {
        "algorithms": {name: entry.summary for name, entry in algorithms.TABLE.items()},
        "datasets": {name: known.description for name, known in DATASETS.items()},
        "models": {name: entry.description for name, entry in models.MODELS.items()},
        "partitions": {name: entry.description for name, entry in data.PARTITIONS.items()},
        "engines": engines.TABLE,
    }
    if kind not in tables:
        raise UsageError(
            f"unknown list '{kind}'{did_you_mean(kind, KINDS) or '.'} Known: {', '.join(KINDS)}.",
            key="kind",
            allowed=list(KINDS),
            got=kind,
        )
    return [{"name": name, "description": description} for name, description in sorted(tables[kind].items())]


def algorithm_listing(model: str) -> list[dict[str, Any]]:
    """Return the entries of the table of algorithms, with what they send and keep if they train a model.

    Args:
        model: a name, or a user's ``package.module:function``, which is built for inputs of the default model's shape.

    Raises:
        ConfigError: there is no such model.
    """
    from fedtailor.core.task import Task
    from fedtailor.experiment.algorithm_card import describe_algorithm

    if model not in models.MODELS and ":" not in model:
        raise unknown_name("model", model, models.MODELS, key="--model")
    shape = models.MODELS[DEFAULT_MODEL if ":" in model else model].shape
    task = Task(models.build_model(model, shape, NUM_CLASSES), NUM_CLASSES, shape)
    return [describe_algorithm(name, entry, task) for name, entry in sorted(algorithms.TABLE.items())]


def examine(data_dir: str = "") -> dict[str, Any]:
    """Return versions, machine, the engine that ``auto`` chooses for short runs, and which data sets are there.

    Raises:
        DataError: a data folder was named, by argument or environment, and is not there.
    """
    import os

    from fedtailor.data.inventory import inventory
    from fedtailor.experiment.provenance import commit, machine, versions
    from fedtailor.simulation.engines.build import build_engine
    from fedtailor.simulation.engines.options import EngineOptions
    from fedtailor.simulation.engines.workers import keep_pages

    folder = data.data_folder(data_dir)
    if (data_dir or os.environ.get("FEDTAILOR_DATA")) and not folder.is_dir():
        raise DataError(f"the data folder '{folder}' does not exist.", path=str(folder))
    return {
        "versions": versions(),
        "commit": commit(),
        "machine": machine(),
        "engine": build_engine(EngineOptions()).name,
        "keeps_freed_pages": keep_pages(),
        "data_folder": str(folder),
        "cache_folder": str(data.cache_folder()),
        "datasets": {record["name"]: record["state"] for record in inventory(folder)},
    }
