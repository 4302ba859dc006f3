"""The clients of a run: what each of them keeps, and their programs, run on the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch

from fedtailor.core import rng
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Engine, Job, Program
from fedtailor.core.federation import Federation
from fedtailor.simulation.programs import ClientInputs, SharedInputs, client_inputs

Storage = Callable[[str], MutableMapping[int, Any]]
"""Makes an empty mapping from clients to trees of tensors, for what its argument names."""

_GROUP, _LEAST_GROUP, _GROUP_BYTES = 512, 32, 2**28
"""Clients whose outputs are in memory at once: at most, at least, and as many as have models of so many bytes."""


def in_memory(name: str) -> MutableMapping[int, Any]:
    """Return a mapping that keeps everything in memory."""
    return {}


class Clients:
    """What the clients of a run keep from round to round, and how their programs are run."""

    def __init__(
        self, algorithm: Algorithm[Any, Any, Any], federation: Federation, engine: Engine, storage: Storage, seed: int
    ) -> None:
        self.algorithm, self.federation, self.engine, self.seed = algorithm, federation, engine, seed
        self.states, self.own = storage("states"), storage("own")

    def run(self, program: Program, shared: Any, clients: Sequence[int], round: int) -> Iterator[tuple[int, Any]]:
        """Yield every client with what its program gave, in the order of ``clients``."""
        size = self._group()
        for start in range(0, len(clients), size):
            group = clients[start : start + size]
            rows = [self.row(client) for client in group]
            yield from zip(group, self.run_rows(program, shared, group, rows, round), strict=True)

    def _group(self) -> int:
        """Return how many clients run before their outputs are used: fewer where models are large."""
        numbers = sum(math.prod(shape) for shape in self.federation.common_task.model.shapes.values())
        return min(_GROUP, max(_LEAST_GROUP, _GROUP_BYTES // max(4 * numbers, 1)))

    def run_rows(
        self, program: Program, shared: Any, clients: Sequence[int], rows: Sequence[ClientInputs], round: int
    ) -> list[Any]:
        """Return what a program gives for rows that are not those of :meth:`row`."""
        words = torch.tensor(self.seed), torch.tensor(round)
        data = self.federation
        common = SharedInputs(data.x, data.y, data.scale, *words, shared=shared)
        jobs = [Job(c, data.task(c), row, len(row.train.rows)) for c, row in zip(clients, rows, strict=True)]
        return self.engine.map(program, common, jobs)

    def row(self, client: int) -> ClientInputs:
        """Return a client's row: its data and what it keeps."""
        return client_inputs(self.federation, client, self._state(client), self._own(client))

    def _state(self, client: int) -> Any:
        """Return a client's state; what it is before its first round is not kept."""
        if client in self.states:
            return self.states[client]
        key = rng.new_key(self.seed, client=client, purpose="init_client")
        return self.algorithm.init_client(self.federation.task(client), self.federation.info(client), key)

    def _own(self, client: int) -> Any:
        if client in self.own:
            return self.own[client]
        key = rng.new_key(self.seed, client=client, purpose="init_per_client")
        return self.algorithm.init_per_client(self.federation.task(client), self.federation.info(client), key)
