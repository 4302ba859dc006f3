"""The work that every arm does, and how an arm talks to compare.py.

Clients hold random 8-bit images, divided by Dir(0.5) over the classes. Every arm trains the same
cohorts from the same first weights. Our arm gets the images as data sets store them and normalizes
batches. The peers get normalized floats from the start, as in their own examples.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TextIO

from benchmarks.arms import DECAY, LR, MOMENTUM, SETTINGS

ALPHA = 0.5
WHITE = 255.0
MEAN = 0.5
DEVIATION = 0.25
EXAMPLES = {"cifar_cnn": 500, "mlp": 600}
"""Examples per client on average: CIFAR-10 and MNIST, divided among 100."""


class Plan(NamedTuple):
    """The request of compare.py to an arm: one JSON object on its command line."""

    model: str
    clients: int
    active: int
    rounds: int
    """Rounds that will be asked for, the warm-up included."""
    batch: int
    epochs: int
    workers: int
    engine: str = ""
    """The engine of our arm."""
    weights: str = ""
    """File to write the global weights to after the last round; empty: none."""

    @classmethod
    def given(cls) -> Plan:
        """Read the command line."""
        return cls(**json.loads(sys.argv[1]))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image: channels, height, width."""
        shape: tuple[int, int, int] = SETTINGS[self.model]["shape"]
        return shape

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(SETTINGS[self.model]["classes"])

    @property
    def training(self) -> Any:
        """The section ``training`` of our arm."""
        from fedtailor.core.task import Training

        rest = {"lr": LR, "momentum": MOMENTUM, "weight_decay": DECAY}
        return Training(batch_size=self.batch, epochs=self.epochs, **rest)


class Data(NamedTuple):
    """Images and labels of all clients, and the rows of every client."""

    images: Any  # uint8 (rows, height, width, channels)
    labels: Any  # int64 (rows,)
    rows: list[Any]

    def normalized(self) -> Any:
        """Return the images as floats, (rows, height, width, channels)."""
        return self.images.float().div_(WHITE).sub_(MEAN).div_(DEVIATION)


@cache
def data(plan: Plan) -> Data:
    """Return the same random data in every process."""
    import numpy as np
    import torch

    generator = np.random.default_rng(0)
    total = plan.clients * EXAMPLES[plan.model]
    channels, height, width = plan.shape
    images = generator.integers(0, 256, (total, height, width, channels), dtype=np.uint8)
    labels = generator.integers(0, plan.classes, total)
    parts: list[list[Any]] = [[] for _ in range(plan.clients)]
    for label in range(plan.classes):
        members = np.flatnonzero(labels == label)
        shares = generator.dirichlet(np.full(plan.clients, ALPHA))
        ends = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for part, rows in zip(parts, np.split(members, ends), strict=True):
            part.append(rows)
    return Data(
        torch.from_numpy(images),
        torch.from_numpy(labels),
        [torch.from_numpy(np.concatenate(p)) for p in parts],
    )


def participation(plan: Plan) -> Any:
    """Return the rule that draws cohorts."""
    from fedtailor.core.schedule import Participation

    return Participation(plan="fixed", count=plan.active, full_last_round=False)


def cohorts(plan: Plan) -> list[list[int]]:
    """Return the clients of every round, as our round loop draws them."""
    drawn = participation(plan)
    return [
        drawn.cohort(0, round, plan.rounds, plan.clients).tolist()
        for round in range(1, plan.rounds + 1)
    ]


def load_weights(plan: Plan, module: Any) -> None:
    """Give a peer's module the first weights of our arm; both list them in the order of layers."""
    import torch

    from fedtailor.algorithms.fedavg import FedAvg
    from fedtailor.core import rng
    from fedtailor.core.task import Task
    from fedtailor.models import build_model

    task = Task(build_model(plan.model, plan.shape, plan.classes), plan.classes, plan.shape)
    server = FedAvg(training=plan.training).init_server(task, rng.new_key(0, purpose="init_server"))
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), server.model.values(), strict=True):
            parameter.copy_(value)


def save_weights(plan: Plan, tensors: Sequence[Any]) -> None:
    """Write the global weights for compare.py, if it asked for them."""
    import numpy as np

    if plan.weights:
        np.savez(plan.weights, *[np.asarray(tensor) for tensor in tensors])


class Requests:
    """One line on standard input asks for one round.

    A JSON line answers, on what was standard output.

    Everything that libraries print goes to standard error.
    """

    def __init__(self) -> None:
        self._answers: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._start = self._seconds = 0.0

    def wait(self) -> bool:
        """Wait for a request and start the clock; return whether there was one."""
        asked = bool(sys.stdin.readline())
        self._start = time.perf_counter()
        return asked

    def stop(self) -> None:
        """Stop the clock."""
        self._seconds = time.perf_counter() - self._start

    def answer(self, steps: int) -> None:
        """Answer with the time and the number of steps that clients made."""
        print(
            json.dumps({"seconds": self._seconds, "steps": steps}), file=self._answers, flush=True
        )

    def finish(self) -> None:
        """Wait for the end of the requests.

        An arm that ended earlier would take time from the others.
        """
        sys.stdin.read()
