"""Predictions of single test examples, as a file beside the scores of a run.

Scores are sums over examples. Whether one model is better than another at one site is decided by
the examples that only one of them has right, so their predictions are kept one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtailor.core.atomic import write_whole
from fedtailor.core.reading import damaged, read_file

PREDICTIONS_FILE = "predictions.safetensors"
"""In the folder of a run of one seed."""
_LARGEST = 2**31


@dataclass(frozen=True)
class ClientPredictions:
    """What models say about the test examples of one client.

    Raises:
        ValueError: the arrays do not fit together.
    """

    positions: np.ndarray  # (n,), int64
    """Of the examples in the data set: they pair the predictions of different models and runs."""
    labels: np.ndarray  # (n,), int64
    probabilities: Mapping[str, np.ndarray]  # each (n, classes), float32
    """By model, such as ``personalized``, ``global``, ``logistic_regression``."""

    def __post_init__(self) -> None:
        count = len(self.positions)
        shapes = {array.shape for array in self.probabilities.values()}
        fits = self.labels.shape == (count,) and len(shapes) <= 1
        if not fits or any(len(shape) != 2 or shape[0] != count for shape in shapes):
            raise ValueError(f"{count} positions, {self.labels.shape} labels, {shapes}")


def write_predictions(path: Path, clients: Mapping[int, ClientPredictions]) -> None:
    """Write the predictions of clients, by their numbers, into a file.

    Raises:
        RunError: it cannot be written.
    """
    tensors = {}
    for client, predictions in clients.items():
        tensors[f"{client}/positions"] = predictions.positions
        tensors[f"{client}/labels"] = predictions.labels
        for model, probabilities in predictions.probabilities.items():
            tensors[f"{client}/of/{model}"] = np.ascontiguousarray(probabilities)

    write_whole(path, save(tensors))


def read_predictions(path: Path) -> dict[int, ClientPredictions]:
    """Return the predictions in a file, by the numbers of the clients.

    Raises:
        DataError: there is no such file, or it is damaged.
    """
    raw = read_file(path, limit=_LARGEST, within=path.parent)
    try:
        tensors = load(raw)
        clients = sorted({int(name.partition("/")[0]) for name in tensors})
        return {client: _of_client(client, tensors) for client in clients}
    except (SafetensorError, KeyError, ValueError) as reason:
        raise damaged(path, f"{type(reason).__name__}: {reason}") from reason


def _of_client(client: int, tensors: Mapping[str, np.ndarray]) -> ClientPredictions:
    prefix = f"{client}/of/"
    models = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
    return ClientPredictions(
        positions=tensors[f"{client}/positions"],
        labels=tensors[f"{client}/labels"],
        probabilities={model: tensors[prefix + model] for model in sorted(models)},
    )
