"""The IID partition: equal parts of all examples at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Equal parts of all examples at random; sizes differ by at most one."""

    name = "iid"

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Cut one random order of all examples into equal parts."""
        generator = np.random.RandomState(seed % 2**32)
        return np.array_split(generator.permutation(len(annotations.labels)), clients)
