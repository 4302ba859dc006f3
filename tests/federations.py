"""The small federations of the contract, and cohorts given by round."""

from dataclasses import dataclass, field

import torch

from fedtailor.core.schedule import Participation
from fedtailor.testing.federations import (
    CLASSES,
    NEW_SIZES,
    SIZES,
    TASKS,
    convolutional,
    make_federation,
    module,
    perceptron,
)

__all__ = [
    "CLASSES",
    "NEW_SIZES",
    "SIZES",
    "TASKS",
    "Planned",
    "convolutional",
    "make_federation",
    "module",
    "perceptron",
]


@dataclass(frozen=True, kw_only=True)
class Planned(Participation):
    """Cohorts given by round; everybody elsewhere."""

    cohorts: dict = field(default_factory=dict)

    def cohort(self, seed, round, rounds, population, attempt=0, members=None, trainable=None):
        return torch.tensor(self.cohorts.get(round, list(range(population))), dtype=torch.int64)
