"""What a run would cost, estimated from the seconds of the runs that have a record."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.data.datasets.known import DATASETS
from fedtailor.data.options import DataOptions
from fedtailor.experiment.config import Config, make_config
from fedtailor.models.operations import count_operations
from fedtailor.papers.records import Record
from fedtailor.papers.tables import Cell

OTHER_NETWORKS = "other networks"
"""The basis of the roughest estimates."""
_OFFICIAL_TEST_SHARE = 1 / 6
"""About the share of a data set that is its official test part."""
_AFTER_TRAINING = ("finetune_epochs", "adapt_epochs")
"""Epochs of personalization; options with other names that end in ``_epochs`` are for every
round."""

_GRAY = (1, 28, 28)
_SHAPES = {
    "digits": (1, 8, 8),
    "mnist": _GRAY,
    "fashion_mnist": _GRAY,
    "femnist": _GRAY,
    "emnist_letters10": _GRAY,
    "tiny_imagenet": (3, 64, 64),
    "sun397": (3, 64, 64),
}
"""Shapes of the examples, where they are not those of CIFAR."""


@dataclass(frozen=True)
class Estimate:
    """An estimate of the time that a run takes."""

    seconds: float
    basis: str
    """What it is derived from."""


def estimate(cell: Cell, records: Iterable[Record]) -> Estimate | None:
    """Return what a run would cost; None if no record is of use.

    The best basis is another seed of the same run, then runs of the same method with the same
    network, of any method with this network, and of all runs. All but the first are scaled by the
    examples that are trained on, times epochs, times the operations of the network.

    Args:
        cell: the run.
        records: of any paper.
    """
    algorithm = cell.values["algorithm"]["name"]
    if ":" not in algorithm and algorithm not in ALGORITHMS:
        return None

    finished = [record for record in records if _has_trained(record)]
    same = _known_seconds(record for record in finished if record["digest"] == cell.digest)
    if same:
        return Estimate(statistics.median(same), "another seed")

    alike = [record for record in finished if _network(record["config"]) == _network(cell.values)]
    own = [record for record in alike if record["config"]["algorithm"]["name"] == algorithm]
    for basis, found in (
        ("same method", own),
        ("other methods", alike),
        (OTHER_NETWORKS, finished),
    ):
        seconds = _scaled(cell, found)
        if seconds is not None:
            return Estimate(seconds, basis)

    return None


def run_seconds(record: Record) -> float | None:
    """Return the seconds of a run on a machine that does nothing else; None if they are not known.

    That is its processor time divided by the number of cores. It is not known of a run that was
    interrupted and resumed. Older records have the wall clock only, which also counts other work on
    the machine, and pauses.
    """
    if "cpu_seconds" not in record:
        return float(record["result"]["seconds"]["total"])
    if record["cpu_seconds"] is None:
        return None
    return float(record["cpu_seconds"] / record["provenance"]["machine"]["physical_cores"])


def _known_seconds(records: Iterable[Record]) -> list[float]:
    """Return the seconds of the runs of which they are known."""
    return [seconds for record in records if (seconds := run_seconds(record)) is not None]


def _has_trained(record: Record) -> bool:
    """Return whether all work of a run was used: one that diverged says nothing about others."""
    return not record["result"]["events"]["quarantine"]


def _network(values: Mapping[str, Any]) -> str:
    """Return the network of a configuration as text."""
    return json.dumps(values.get("model", {}), sort_keys=True)


def _scaled(cell: Cell, records: Iterable[Record]) -> float | None:
    """Return the seconds of a run from those of others; None if there are none, or its size is not
    known.
    """
    wanted = _work(cell.values)
    sizes = [(run_seconds(record), _work(record["config"])) for record in records]
    rates = [seconds / work for seconds, work in sizes if work and seconds is not None]
    if not wanted or not rates:
        return None
    return statistics.median(rates) * wanted


def _work(values: Mapping[str, Any]) -> float | None:
    """Return the floating-point operations of a run, roughly; None if they are not known without
    the data.
    """
    passes = example_passes(values)
    if passes is None or "name" not in values.get("model", {}):
        return None
    shape = _SHAPES.get(values["data"].get("dataset", "digits"), (3, 32, 32))
    return passes * _operations(_network(values), shape)


@cache
def _operations(network: str, shape: tuple[int, ...]) -> int:
    """Return the operations of a network, given as JSON, for one example of a shape."""
    options = json.loads(network)
    return count_operations(options["name"], shape, options.get("options"))


def example_passes(values: Mapping[str, Any]) -> float | None:
    """Return how often a run computes the gradient of an example, roughly; None if the size of the
    data is not known.

    What a method does beside its epochs is not counted, such as evaluations, or gradients within a
    step.
    """
    return _example_passes(json.dumps(values, sort_keys=True))


@cache
def _example_passes(text: str) -> float | None:
    """Return :func:`example_passes` of a configuration as JSON. A comparison of many runs asks for
    the same ones.
    """
    config = make_config(json.loads(text))
    examples = _training_examples(config.data)
    if examples is None:
        return None
    clients = config.data.clients
    share_that_trains = _share_that_trains(config) * (clients - config.data.num_new) / clients
    return config.schedule.rounds * share_that_trains * _passes_per_round(config, examples)


def _share_that_trains(config: Config) -> float:
    """Return the expected share of the clients that train in a round."""
    schedule = config.schedule
    who = schedule.train
    if who == "auto":
        who = load_algorithm(config.algorithm.name).trains
    if who == "all":
        return 1.0

    participation = schedule.participation
    if participation.plan == "fixed":
        return participation.count / config.data.clients

    return participation.probability


def _passes_per_round(config: Config, examples: float) -> float:
    """Return the examples that all clients together would go through in a round."""
    training = config.training
    if training.steps:
        return float(training.steps * training.batch_size * config.data.clients)
    options = config.algorithm.options
    names = [name for name in options if name.endswith("_epochs") and name not in _AFTER_TRAINING]
    return float(examples * (training.epochs + sum(options[name] for name in names)))


def _training_examples(data: DataOptions) -> float | None:
    """Return the number of training examples of all clients; None if it is not known without the
    data.
    """
    quota = re.search(r"quota=(\d+)", data.partition)
    total = float(DATASETS[data.dataset].examples)
    has_official_test = data.test in ("by_label", "by_subclass", "complete")
    if quota:
        total = float(quota[1]) * data.clients
    elif data.subset:
        total = float(data.subset)
    elif has_official_test:
        total *= 1 - _OFFICIAL_TEST_SHARE

    if total < 0:
        return None
    if not has_official_test:
        total *= 1 - data.test_share

    return total * data.fraction
