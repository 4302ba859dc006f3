"""Predictions of single test examples, as a file beside the scores of a run.

Scores are sums over examples. Whether one model is better than another at one site is decided by
the examples that only one of them has right, so their predictions are kept one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtailor.core.atomic import write_whole
from fedtailor.core.reading import content_of, read_file
from fedtailor.core.schedule import BASELINE_NAMES, split_baselines

if TYPE_CHECKING:
    from fedtailor.core.algorithm import AnyAlgorithm
    from fedtailor.core.federation import Federation
    from fedtailor.experiment.assembly import PreparedRun
    from fedtailor.simulation.report import RoundReport

PREDICTIONS_FILE = "predictions.safetensors"
"""In the folder of a run of one seed."""
BASELINES_FILE = "baselines.safetensors"
"""Predictions of baselines for the same examples, in the same form."""
CHOICES_FILE = "baselines.json"
"""Which baseline is the best at each site by its training examples, and why some are missing."""
OWN_MODELS_FILE = "own_models.safetensors"
"""The best baseline of each site as arrays, where ``serve.fallback`` may choose it."""
MOST_CLIENTS = 30
"""Most clients for which single predictions are written, unless the clients are sites, or baselines
are named."""
MOST_PROBABILITIES = 2**24
"""Test examples times classes, if single predictions are written."""
_LARGEST = 2**31
_AND = "+"
"""Between the names of models that have said the same."""


@dataclass(frozen=True)
class ClientPredictions:
    """What models say about the test examples of one client.

    Raises:
        ValueError: the arrays do not fit together.
    """

    positions: np.ndarray  # (n,), int64; int32 in the file
    """Of the examples in the data set: they pair the predictions of different models and runs."""
    labels: np.ndarray  # (n,), int64; int32 in the file
    probabilities: Mapping[str, np.ndarray]  # each (n, classes), float32
    """By model, such as ``personalized``, ``global``, ``logistic_regression``."""
    groups: np.ndarray | None = None  # (n,), int64
    """Which examples belong together, such as those of a patient; None: each is its own."""

    def __post_init__(self) -> None:
        flat = [self.positions, self.labels]
        if self.groups is not None:
            flat.append(self.groups)

        count = self.positions.size
        shapes = {array.shape for array in flat}
        tables = {array.shape for array in self.probabilities.values()}
        fits = shapes == {(count,)} and len(tables) <= 1
        if not fits or any(len(shape) != 2 or shape[0] != count for shape in tables):
            raise ValueError(f"shapes that do not fit together: {shapes | tables}")


def write_predictions(path: Path, clients: Mapping[int, ClientPredictions]) -> None:
    """Write the predictions of clients, by their numbers, into a file.

    Raises:
        RunError: it cannot be written.
    """
    tensors = {}
    for client, predictions in clients.items():
        # No data set has 2^31 examples, and of two classes these are half of the bytes.
        tensors[f"{client}/positions"] = predictions.positions.astype(np.int32)
        tensors[f"{client}/labels"] = predictions.labels.astype(np.int32)
        if predictions.groups is not None:
            tensors[f"{client}/groups"] = predictions.groups

        # Models that say the same, such as those of FedAvg, share a tensor.
        models_of: dict[bytes, list[str]] = {}
        for model, probabilities in predictions.probabilities.items():
            models_of.setdefault(probabilities.tobytes(), []).append(model)
        for models in models_of.values():
            array = predictions.probabilities[models[0]]
            tensors[f"{client}/of/{_AND.join(models)}"] = np.ascontiguousarray(array)

    write_whole(path, save(tensors))


def read_predictions(path: Path) -> dict[int, ClientPredictions]:
    """Return the predictions in a file, by the numbers of the clients.

    Raises:
        DataError: there is no such file, or it is damaged.
    """
    raw = read_file(path, limit=_LARGEST, within=path.parent)
    with content_of(path, SafetensorError):
        tensors = load(raw)
        clients = sorted({int(name.partition("/")[0]) for name in tensors})
        return {client: _of_client(client, tensors) for client in clients}


def _of_client(client: int, tensors: Mapping[str, np.ndarray]) -> ClientPredictions:
    prefix = f"{client}/of/"
    probabilities: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if name.startswith(prefix):
            models = name.removeprefix(prefix).split(_AND)
            probabilities |= dict.fromkeys(models, array)

    return ClientPredictions(
        positions=tensors[f"{client}/positions"].astype(np.int64, casting="safe"),
        labels=tensors[f"{client}/labels"].astype(np.int64, casting="safe"),
        probabilities=dict(sorted(probabilities.items())),
        groups=tensors.get(f"{client}/groups"),
    )


def writes_predictions(parts: PreparedRun) -> bool:
    """Return whether a run writes single predictions: its clients are sites or few.

    Where there are many clients, tests over clients decide, and the file would be large. A fold
    always does: predictions are what is put together. So does a run whose baselines are named,
    because they are compared by single predictions.
    """
    if parts.config.data.fold:
        return True

    federation = parts.federation
    are_sites = bool(parts.config.data.path or parts.divided.division.client_names)
    names_baselines = bool(split_baselines(parts.config.schedule.baselines))
    is_large = len(federation.splits) > MOST_CLIENTS
    if is_large and not are_sites and not names_baselines:
        return False

    num_test = sum(federation.roster.num_test)
    return num_test * federation.common_task.num_classes <= MOST_PROBABILITIES


def baseline_names(parts: PreparedRun) -> tuple[str, ...]:
    """Return the baselines of a run; none where single predictions are not written.

    ``auto`` means all for own data, and for tables whose clients are sites.
    """
    if not writes_predictions(parts):
        return ()
    if parts.config.schedule.baselines != "auto":
        return split_baselines(parts.config.schedule.baselines)

    is_table = parts.federation.x.ndim == 2
    are_sites = bool(parts.divided.division.client_names)
    return BASELINE_NAMES if parts.config.data.path or (is_table and are_sites) else ()


def predict_tests(parts: PreparedRun, last: RoundReport) -> dict[int, ClientPredictions]:
    """Return what the personal models and the global model say about the clients' test examples.

    They are computed client by client on the host in one thread: with the same models, they have
    the same bits on every engine.

    Args:
        parts: the run.
        last: its last round, with the personal models.
    """
    from fedtailor.core.devices import to_host
    from fedtailor.core.engine import one_thread

    algorithm = parts.algorithm
    federation = parts.federation
    common = algorithm.bind(federation.common_task)
    groups = parts.divided.dataset.groups
    predictions = {}
    with one_thread():
        shared = algorithm.global_model(common, last.state.on_host().server)
        for client, num_test in enumerate(federation.roster.num_test):
            if num_test == 0:
                continue

            models = {} if shared is None else {"global": shared}
            if client in last.personal:
                models["personalized"] = to_host(last.personal[client], "a model for predictions")
            predictions[client] = predict_client(algorithm, federation, client, models, groups)

    # Nothing is known of a client whose model could not be made.
    return {client: content for client, content in predictions.items() if content.probabilities}


def predict_client(
    algorithm: AnyAlgorithm,
    federation: Federation,
    client: int,
    models: Mapping[str, Any],
    groups: np.ndarray | None = None,
) -> ClientPredictions:
    """Return what models, by their names, say about the test examples of a client.

    Args:
        algorithm: of the models.
        federation: with the examples.
        client: its number.
        models: personal or global ones.
        groups: of all examples of the data set; None: they are not grouped.
    """
    from fedtailor.simulation.programs import probabilities

    task = algorithm.bind(federation.roster.task(client))
    examples = federation.test(client)
    positions = examples.positions.numpy()
    return ClientPredictions(
        positions=positions,
        labels=examples.labels().numpy(),
        probabilities={
            name: probabilities(algorithm, task, model, examples).numpy()
            for name, model in models.items()
        },
        groups=None if groups is None else groups[positions],
    )
