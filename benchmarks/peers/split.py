"""The split on which programs are compared by accuracy, and what all of them share."""

from collections.abc import Mapping

import numpy as np

from fedtailor.experiment.assembly import PreparedRun

SEEDS = (0, 1, 2)
ROUNDS = 10
LR = 0.05
BATCH = 20
HIDDEN = 100
"""Units of the perceptron."""
DATA = {
    "dataset": "fashion_mnist",
    "partition": "dirichlet(alpha=0.1)",
    "subset": 4000,
    "clients": 20,
    "test_share": 0.5,
}

ClientExamples = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Inputs and labels by part, `train` and `test`."""


def examples_of(prepared: PreparedRun) -> list[ClientExamples]:
    """Return the examples of all clients as our networks get them."""
    white, mean, deviation = prepared.federation.scale.reshape(3, -1, 1, 1)
    inputs = ((prepared.federation.x / white - mean) / deviation).numpy()
    labels = prepared.divided.dataset.y
    clients = []
    for positions in prepared.divided.positions:
        parts = {"train": positions.train, "test": positions.test}
        clients.append({part: (inputs[rows], labels[rows]) for part, rows in parts.items()})

    return clients
