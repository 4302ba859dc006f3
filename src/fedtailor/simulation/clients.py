"""The clients of a run: what the round loop asks of them, and clients that live in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Engine, ExampleIndices, Failure, Job
from fedtailor.core.federation import Federation
from fedtailor.core.message import Problem, Upload
from fedtailor.core.metrics import Scores, add
from fedtailor.simulation.programs import (
    ClientInputs,
    PersonalizeRequest,
    ScoreRequest,
    SharedInputs,
    TrainRequest,
    client_inputs,
    client_program,
)
from fedtailor.simulation.quarantine import all_finite, problem_at_client

Storage = Callable[[str], MutableMapping[int, Any]]
"""Gives a mapping from clients to trees of tensors, for what its argument names: empty, unless a run is resumed."""

_LARGEST_GROUP = 512
"""The most clients whose outputs are in memory at once."""
_SMALLEST_GROUP = 32
"""The fewest, however large their models are."""
_GROUP_BYTES = 2**28
"""Bytes of the models of a group, between these bounds."""
_COMPLETE_CHUNK = 1000
"""Examples of the complete test part that one worker scores at once."""


class TrainReply(NamedTuple):
    """What the server receives of a client's round. The client's new state stays with the client."""

    upload: Upload
    metrics: dict[str, Tensor]
    scores: Scores | tuple[()] = ()
    """At the evaluation point ``local``; () if there are none."""
    problem: Problem | None = None
    """Why the client's round must not be used, as far as the client sees it."""


class PersonalizeReply(NamedTuple):
    """What the server receives of a client's personal model. The model stays with the client."""

    scores: dict[str, Scores]
    """By test set: ``clients``, and ``validation`` if the request asks for it."""
    diagnostics: dict[str, Tensor]
    problem: str = ""
    """Why the client did not keep its model; empty: nothing is wrong with it."""


class Clients(Protocol):
    """The clients as the round loop sees them: they answer requests, and keep their data and states to themselves.

    Requests to several clients are answered in the order of the clients; :class:`Failure` stands for the answer of a
    client whose program raised.
    """

    @property
    def personal(self) -> Mapping[int, Any]:
        """The personal models that :meth:`personalize` kept, by client; empty if they stay elsewhere."""

    def train(
        self, request: TrainRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, TrainReply | Failure]]:
        """Run a round of some clients, who receive ``shared`` and their own rows."""

    def accept(self, client: int) -> None:
        """Make what the client's round left its state; called before the next reply of :meth:`train` is taken.

        A client whose round is not accepted is as it was before the round.
        """

    def update_rows(self, rows: Mapping[int, Any]) -> None:
        """Replace the rows that clients receive beside the broadcast, by client."""

    def score(
        self, request: ScoreRequest, model: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, Scores | Failure]]:
        """Score one model on the test examples of some clients."""

    def score_complete(self, request: ScoreRequest, model: Any, round: int) -> Scores | Failure | None:
        """Score one model on the complete official test part, if it belongs to no client; None otherwise."""

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Make and score the personal models of some clients."""


def in_memory(name: str) -> MutableMapping[int, Any]:
    """Return a mapping that keeps everything in memory."""
    return {}


class LocalClients:
    """Clients in this process: an engine runs their programs on the data of a federation."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        federation: Federation,
        engine: Engine,
        *,
        seed: int,
        storage: Storage = in_memory,
    ) -> None:
        """Start with clients that have not done anything yet.

        Args:
            algorithm: what the clients run.
            federation: their data.
            engine: runs their programs.
            seed: of every random number but those of the data.
            storage: where states, rows and personal models are kept.
        """
        self.algorithm = algorithm
        self.federation = federation
        self.engine = engine
        self.seed = seed
        self.states = storage("states")
        self.rows = storage("rows")
        self.personal = storage("personal")
        self._trained: dict[int, Any] = {}
        engine.begin_run()

    def train(
        self, request: TrainRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, TrainReply | Failure]]:
        """Run a round of some clients; a new state waits for :meth:`accept`."""
        program = client_program(self.algorithm, request)
        common = self._shared_inputs(shared, round)
        for group in self._groups(clients):
            outputs = self.engine.map(program, common, self._jobs(group))
            for client, output in zip(group, outputs, strict=True):
                self._trained.clear()
                if isinstance(output, Failure):
                    yield client, output
                    continue
                state, upload, metrics, scores = output
                self._trained[client] = state
                yield client, TrainReply(upload, metrics, scores, problem_at_client(state, metrics))
        self._trained.clear()

    def accept(self, client: int) -> None:
        """Make what the client's round left its state."""
        self.states[client] = self._trained.pop(client)

    def update_rows(self, rows: Mapping[int, Any]) -> None:
        """Replace the rows of clients."""
        self.rows.update(rows)

    def score(
        self, request: ScoreRequest, model: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, Scores | Failure]]:
        """Score one model on the test examples of some clients."""
        program = client_program(self.algorithm, request)
        common = self._shared_inputs(model, round)
        for group in self._groups(clients):
            yield from zip(group, self.engine.map(program, common, self._jobs(group)), strict=True)

    def score_complete(self, request: ScoreRequest, model: Any, round: int) -> Scores | Failure | None:
        """Score one model on the complete test part, in chunks; any client can do it, a global model is the same."""
        if not len(self.federation.complete):
            return None
        inputs = self._inputs(0)
        task = self.federation.task(0)
        jobs = []
        for chunk in torch.split(self.federation.complete, _COMPLETE_CHUNK):
            part = inputs._replace(test=ExampleIndices.of(chunk))
            jobs.append(Job(0, task, part, len(part.train.rows)))
        outputs = self.engine.map(client_program(self.algorithm, request), self._shared_inputs(model, round), jobs)
        total: Scores | None = None
        for output in outputs:
            if isinstance(output, Failure):
                return output
            total = output if total is None else add(total, output)
        return total

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Make and score the personal models of some clients; finite ones are kept if the request says so."""
        program = client_program(self.algorithm, request)
        common = self._shared_inputs(shared, round)
        for group in self._groups(clients):
            outputs = self.engine.map(program, common, self._jobs(group))
            for client, output in zip(group, outputs, strict=True):
                if isinstance(output, Failure):
                    yield client, output
                    continue
                personal, diagnostics, scores = output
                problem = ""
                if not all_finite(personal):
                    problem = "the model holds values that are not finite; it is scored, and not kept"
                elif request.keep:
                    self.personal[client] = personal
                yield client, PersonalizeReply(scores, diagnostics, problem)

    def _groups(self, clients: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the clients in groups whose outputs are in memory at the same time."""
        size = self._group_size()
        for start in range(0, len(clients), size):
            yield clients[start : start + size]

    def _group_size(self) -> int:
        """Return how many clients run before their outputs are used: fewer where models are large."""
        numbers = sum(math.prod(shape) for shape in self.federation.common_task.model.shapes.values())
        fitting = _GROUP_BYTES // max(4 * numbers, 1)
        return min(_LARGEST_GROUP, max(_SMALLEST_GROUP, fitting))

    def _shared_inputs(self, shared: Any, round: int) -> SharedInputs:
        data = self.federation
        return SharedInputs(data.x, data.y, data.scale, torch.tensor(self.seed), torch.tensor(round), shared)

    def _jobs(self, clients: Sequence[int]) -> list[Job]:
        jobs = []
        for client in clients:
            inputs = self._inputs(client)
            jobs.append(Job(client, self.federation.task(client), inputs, len(inputs.train.rows)))
        return jobs

    def _inputs(self, client: int) -> ClientInputs:
        """Return a client's data and what it keeps; what it has before its first round is not kept."""
        info = self.federation.info(client)
        task = self.algorithm.bind(self.federation.task(client))
        if client in self.states:
            state = self.states[client]
        else:
            key = rng.new_key(self.seed, client=client, purpose="init_client")
            state = self.algorithm.init_client(task, info, key)
        if client in self.rows:
            row = self.rows[client]
        else:
            key = rng.new_key(self.seed, client=client, purpose="init_per_client")
            row = self.algorithm.init_per_client(task, info, key)
        return client_inputs(client, self.federation.splits[client], info, state, row)
