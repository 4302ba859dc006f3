"""The choices that ``fedtailor list`` shows."""

from __future__ import annotations

from typing import Any

from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.errors import find_name
from fedtailor.core.metrics import METRICS
from fedtailor.data.datasets import DATASETS
from fedtailor.data.partitions import PARTITIONS
from fedtailor.models import MODELS, build_model
from fedtailor.simulation.engines import ENGINES

NUM_CLASSES = 10
"""Of the model whose bytes are counted."""
MODEL = "cifar_cnn"
"""The model whose bytes are counted."""


def list_table(kind: str) -> list[dict[str, Any]]:
    """Return name and description of each entry of a table, ready for JSON.

    Args:
        kind: ``algorithms``, ``datasets``, ``models``, ``partitions``, ``engines`` or ``metrics``.
    """
    tables: dict[str, dict[str, str]] = {
        "algorithms": {name: entry.summary for name, entry in ALGORITHMS.items()},
        "datasets": {name: entry.description for name, entry in DATASETS.items()},
        "models": {name: entry.description for name, entry in MODELS.items()},
        "partitions": {name: entry.description for name, entry in PARTITIONS.items()},
        "engines": dict(ENGINES),
        "metrics": {name: metric.description for name, metric in METRICS.items()},
    }

    # Metrics stand in the order in which results have them.
    table = tables[kind]
    names = table if kind == "metrics" else sorted(table)
    return [{"name": name, "description": table[name]} for name in names]


def list_algorithms(algorithm: str = "") -> list[dict[str, Any]]:
    """Return what each algorithm sends and keeps when it trains :data:`MODEL`, ready for JSON.

    Args:
        algorithm: name of the only one; empty: all.

    Raises:
        ConfigError: there is no such algorithm.
    """
    from fedtailor.core.task import Task
    from fedtailor.experiment.algorithm_card import describe_algorithm

    shape = MODELS[MODEL].shape
    task = Task(build_model(MODEL, shape, NUM_CLASSES), NUM_CLASSES, shape)
    names = sorted(ALGORITHMS)
    if algorithm:
        names = [find_name("algorithm", algorithm, ALGORITHMS, key="name")]

    return [describe_algorithm(name, ALGORITHMS[name], task) for name in names]
