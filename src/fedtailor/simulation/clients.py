"""The clients of a run: what the round loop asks of them, and clients in this process."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.devices import HOST, to_device, to_host
from fedtailor.core.engine import Engine, Failure, GatheringEngine, Job
from fedtailor.core.federation import ClientInfo, Federation, Split
from fedtailor.core.reduction import Reduction
from fedtailor.core.scores import SCORE_BINS, ReportSums, Scores, across, add, packed
from fedtailor.core.task import ExampleBound, Task
from fedtailor.core.upload_checks import Problem
from fedtailor.simulation.engines import refuse_engine
from fedtailor.simulation.engines.containment import contained
from fedtailor.simulation.programs import (
    PersonalizeRequest,
    Request,
    ScoreRequest,
    SharedInputs,
    TrainRequest,
    client_inputs,
    client_program,
)
from fedtailor.simulation.quarantine import (
    problem_at_client,
    problem_with_numbers,
    problem_with_personal,
    usable_numbers,
)

if TYPE_CHECKING:
    from fedtailor.privacy.examples import ExamplePlan
    from fedtailor.simulation.noise_elsewhere import NoiseElsewhere

Storage = Callable[[str], MutableMapping[int, Any]]
"""Gives a mapping from clients to trees of tensors, for what its argument names: empty, unless a
run is resumed."""

_LARGEST_GROUP = 512
"""The most clients whose outputs are in memory at once."""
_BYTES_AT_ONCE = 2**23
"""Bytes of models, messages and scores of a group, between its bounds: for an engine that runs one
client at a time. Memory of this size is used again and again; new memory would take longer to get
than the sums of one message."""
_COMPLETE_CHUNK = 1000
"""Examples of the complete test part that one worker scores at once."""


class TrainReply(NamedTuple):
    """What the server receives of a client's round. The new state stays with the client."""

    round: int
    attempt: int
    """The request that is answered; the server uses no answers to others."""
    upload: Mapping[str, Any]
    """What the client uploads, by field. If it was reduced on its way: the sums of this client and
    of neighbors, and the fields that are not summed."""
    metrics: dict[str, Tensor]
    scores: Scores | tuple[()] = ()
    """At the evaluation point ``local``; () if there are none."""
    problem: Problem | None = None
    """Why the client's round must not be used, as far as the client sees it."""
    num_bytes: int | None = None
    """Of an upload that was checked before the server received it; None: the server checks it."""
    sums: ReportSums | None = None
    """What is known of scores and metrics of a cohort as a sum, with the reply of one client."""


class PersonalizeReply(NamedTuple):
    """What the server receives of a client's personal model. The model stays with the client."""

    scores: dict[str, Scores]
    """By test set: ``clients``, and ``validation`` if the request asks for it."""
    diagnostics: dict[str, Tensor]
    problem: str = ""
    """Why the client did not keep its model, or something of it is not recorded; empty: nothing is
    wrong with it."""
    sums: ReportSums | None = None
    """What is known of several clients as a sum, with the reply of one of them."""


class Clients(Protocol):
    """The clients as the round loop sees them.

    They answer requests, and keep their data and states to themselves.

    Requests to several clients are answered in the order of the clients; :class:`Failure` stands
    for the answer of a client whose program raised.
    """

    @property
    def personal(self) -> Mapping[int, Any]:
        """The personal models that :meth:`personalize` kept, by client.

        Empty if they stay elsewhere.
        """

    @property
    def own_noise(self) -> NoiseElsewhere | None:
        """What hides examples of clients who add and count noise themselves; None: the run does."""

    def train(
        self,
        request: TrainRequest,
        shared: Any,
        clients: Sequence[int],
        round: int,
        reduction: Reduction | None = None,
    ) -> Iterator[tuple[int, TrainReply | Failure]]:
        """Run a round of some clients, who receive ``shared`` and their own per-client values.

        Args:
            request: what is asked.
            shared: what all clients receive.
            clients: who is asked.
            round: the number of the round.
            reduction: what the server would do with uploads, which clients of a simulation may do
                in its place.
        """

    def accept(self, client: int) -> None:
        """Make what the client's round left its state.

        It is called before the next reply of :meth:`train` is taken, or after the last one if the
        request says ``hold``. A client whose round is not accepted is as it was before the round.
        """

    def update_per_client(self, values: Mapping[int, Any]) -> None:
        """Replace what single clients receive beside the broadcast, by client.

        It is ``download.per_client``.
        """

    def remember(self) -> None:
        """Remember what clients keep now, in place of what was remembered before."""

    def go_back(self) -> None:
        """Return to what :meth:`remember` remembered."""

    def score(
        self, request: ScoreRequest, model: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, Scores | ReportSums | Failure]]:
        """Score one model on the test examples of some clients.

        Where only a sum over clients is known, it comes in addition, under one of them.
        """

    def score_complete(
        self, request: ScoreRequest, model: Any, round: int
    ) -> Scores | Failure | None:
        """Score one model on the complete official test part, if it belongs to no client.

        None otherwise.
        """

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Make and score the personal models of some clients."""


def in_memory(name: str) -> MutableMapping[int, Any]:
    """Return a mapping that keeps everything in memory."""
    return {}


class LocalClients:
    """Clients in this process: an engine runs their programs on the data of a federation."""

    own_noise: NoiseElsewhere | None = None

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        federation: Federation,
        engine: Engine,
        *,
        seed: int,
        storage: Storage = in_memory,
        device: torch.device = HOST,
        key_number: int | None = None,
        plan: ExamplePlan | None = None,
    ) -> None:
        """Start with clients that have not done anything yet.

        Args:
            algorithm: what the clients run.
            federation: their data.
            engine: runs their programs.
            seed: of every random number but those of the data.
            storage: where states, per-client values and personal models are kept, and what
                :meth:`remember` remembers (``best_states`` and ``best_per_client``, when it is
                first called).
            device: where their programs run: their data is copied there once. The methods are
                called inside ``placed(device)``.
            key_number: stands for the number of the client in the keys of its random numbers, if
                there is one client only; None: the client's own number does.
            plan: what hides examples in steps of training; None: nothing.

        Raises:
            ConfigError: the engine runs on the CPU only, and the device is another one.
        """
        refuse_engine(engine.name, str(device))
        self.algorithm = algorithm
        self.device = device
        self.federation = federation
        """On the host."""
        self._resident = federation.on(device)
        self.engine = engine
        self.seed = seed
        self._key_number = key_number
        self._bounded = {} if plan is None else _bounded_tasks(federation, plan)
        """The tasks of clients whose examples are bounded when they train."""
        self.states = storage("states")
        self.per_client = storage("per_client")
        self.personal = storage("personal")
        self._held = storage("trained")
        self._trained: MutableMapping[int, Any] = {}
        """New states that are not accepted yet."""
        self._storage = storage
        self._remembered: list[MutableMapping[int, Any]] = []
        self._changed: set[int] | None = None
        """Clients of whom something else is kept than what was remembered; None: not known."""
        engine.begin_run()

    # Requests

    def train(
        self,
        request: TrainRequest,
        shared: Any,
        clients: Sequence[int],
        round: int,
        reduction: Reduction | None = None,
    ) -> Iterator[tuple[int, TrainReply | Failure]]:
        """Run a round of some clients; a new state waits for :meth:`accept`."""
        self._trained = self._held if request.hold else {}
        self._trained.clear()
        if not isinstance(self.engine, GatheringEngine) or not (reduction and reduction.summed):
            reduction = None

        for client, output in self._outputs(request, shared, clients, round, reduction):
            if not request.hold:
                self._trained.clear()

            if isinstance(output, Failure):
                yield client, output
                continue

            # What was reduced on its way was checked there.
            state = output.state
            metrics = output.metrics
            is_bounded = client in self._bounded
            at_client: Problem | None = None
            if reduction is None or is_bounded:
                at_client = problem_at_client(state, metrics)

            problem = at_client if reduction is None else (output.problem or None)
            if is_bounded and at_client is not None and at_client.kind != "state":
                # Losses, and states that stay with the client, have no noise. Whether they are
                # finite must not decide what is sent.
                metrics = usable_numbers(metrics)
                if at_client.kind == "not finite":
                    state = self._state_before(client)
                if reduction is None:
                    problem = None

            if problem is None:
                self._trained[client] = state

            reply = TrainReply(
                round=round,
                attempt=request.attempt,
                upload=output.upload,
                metrics=metrics,
                scores=output.scores,
                problem=problem,
                num_bytes=None if reduction is None else output.num_bytes,
            )
            yield client, reply

    def score(
        self, request: ScoreRequest, model: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, Scores | Failure]]:
        """Score one model on the test examples of some clients."""
        yield from self._outputs(request, model, clients, round)

    def score_complete(
        self, request: ScoreRequest, model: Any, round: int
    ) -> Scores | Failure | None:
        """Score one model on the complete test part, in chunks, as the work of one client."""
        if not len(self.federation.complete):
            return None

        jobs = []
        for chunk in torch.split(self._resident.complete, _COMPLETE_CHUNK):
            nothing = chunk[:0]
            inputs = client_inputs(0, Split(nothing, nothing, chunk), self._info(0), (), ())
            jobs.append(Job(0, self.federation.roster.task(0), inputs, len(chunk)))

        program = client_program(self.algorithm, request)
        outputs = self.engine.map(program, self._shared_inputs(model, round), jobs)

        scores = []
        for output in _with_reports_on_host(outputs):
            if isinstance(output, Failure):
                return output
            scores.append(output)

        return packed(across(reduce(add, scores)))

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Make and score the personal models of some clients.

        Usable ones are kept if the request says so.
        """
        for client, output in self._outputs(request, shared, clients, round):
            if isinstance(output, Failure):
                yield client, output
                continue

            # A model that cannot be kept has scores all the same.
            problem = problem_with_personal(output.personal)
            if not problem and request.keep:
                self.personal[client] = output.personal

            problem = problem or problem_with_numbers(output.diagnostics, "diagnostic")
            diagnostics = usable_numbers(output.diagnostics)
            yield client, PersonalizeReply(output.scores, diagnostics, problem)

    # What clients keep

    def accept(self, client: int) -> None:
        """Make what the client's round left its state."""
        self.states[client] = self._trained.pop(client)
        if self._changed is not None:
            self._changed.add(client)

    def update_per_client(self, values: Mapping[int, Any]) -> None:
        """Replace the per-client values of some clients."""
        self.per_client.update(values)
        if self._changed is not None:
            self._changed.update(values)

    def remember(self) -> None:
        """Remember what clients keep now; only what has changed is copied."""
        self._copy([self.states, self.per_client], self._best())

    def go_back(self) -> None:
        """Return to what was remembered."""
        self._copy(self._best(), [self.states, self.per_client])

    def _best(self) -> list[MutableMapping[int, Any]]:
        # Most runs remember nothing, and have no such storage.
        if not self._remembered:
            self._remembered = [self._storage("best_states"), self._storage("best_per_client")]
        return self._remembered

    def _copy(
        self,
        sources: Sequence[MutableMapping[int, Any]],
        targets: Sequence[MutableMapping[int, Any]],
    ) -> None:
        """Make the values of clients in which two groups of mappings differ the same."""
        for source, target in zip(sources, targets, strict=True):
            changed = self._changed if self._changed is not None else {*source, *target}
            for client in sorted(changed):
                if client in source:
                    target[client] = source[client]
                elif client in target:
                    del target[client]

        self._changed = set()

    # Work for the engine

    def _outputs(
        self,
        request: Request,
        shared: Any,
        clients: Sequence[int],
        round: int,
        reduction: Reduction | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield the output of every client's program, in order.

        Clients run in groups: the outputs of one group are in memory at the same time. With a
        reduction, uploads are reduced where they are made.
        """
        program = client_program(self.algorithm, request)
        common = self._shared_inputs(shared, round)
        size = self._group_size()

        # What a group leaves is used before the next one begins.
        for start in range(0, len(clients), size):
            group = clients[start : start + size]
            work = [self._job(client, request) for client in group]
            jobs = [job for job in work if isinstance(job, Job)]
            if reduction is None or not isinstance(self.engine, GatheringEngine):
                outputs = self.engine.map(program, common, jobs)
            else:
                from fedtailor.simulation.upload_sums import map_reduced

                outputs = map_reduced(self.engine, program, common, jobs, self.algorithm, reduction)

            # Each output is dropped when it has been used.
            remaining = deque(_with_reports_on_host(outputs))
            del outputs
            for client, job in zip(group, work, strict=True):
                # The method may have failed before there was a job.
                yield client, job if isinstance(job, Failure) else remaining.popleft()

    def _group_size(self) -> int:
        """Return how many clients run before their outputs are used.

        They are fewer where models, messages or scores are large.
        """
        task = self.algorithm.bind(self.federation.common_task)
        messages = self.algorithm.messages(task).values()
        uploaded = sum(field.scalars() for field in messages if field.reduction != "none")
        parameters = sum(math.prod(shape) for shape in task.model.shapes.values())
        model_bytes = 4 * max(parameters, uploaded)
        score_bytes = 8 * (2 * SCORE_BINS + task.num_classes) * task.num_classes
        # Parameters are float32; a histogram has two rows of bins for every class.
        smallest = self.engine.smallest_group
        fitting = smallest * _BYTES_AT_ONCE // (model_bytes + score_bytes)
        return min(_LARGEST_GROUP, max(smallest, fitting))

    def _shared_inputs(self, shared: Any, round: int) -> SharedInputs:
        data = self._resident
        seed = torch.tensor(self.seed, device=HOST)
        return SharedInputs(
            data.x, data.y, data.scale, seed, torch.tensor(round, device=HOST), shared
        )

    def _info(self, client: int) -> ClientInfo:
        """Return the counts of a client's training data.

        They are counted on the host: a device would be waited for.
        """
        return to_device(self.federation.info(client), self.device)

    def _job(self, client: int, request: Request) -> Job | Failure:
        """Return the work of a client for a request, with what it needs of data and states."""
        info = self._info(client)
        task = self.federation.roster.task(client)
        if isinstance(request, TrainRequest):
            task = self._bounded.get(client, task)
        split = self._resident.splits[client]
        # Positions that the program does not need would be copied and sent for nothing.
        needed = []
        for name, positions in split._asdict().items():
            needed.append(positions if name in request.parts else positions[:0])

        # A global model is scored without anything of the client's own.
        state: Any = ()
        per_client: Any = ()
        if not isinstance(request, ScoreRequest):
            state = self._stored(self.states, "init_client", client, task, info)
            per_client = self._stored(self.per_client, "init_per_client", client, task, info)

        for value in (state, per_client):
            if isinstance(value, Failure):
                return value

        inputs = client_inputs(self._number(client), Split(*needed), info, state, per_client)
        return Job(client, task, inputs, len(split.train))

    def _number(self, client: int) -> int:
        """Return the number of a client in the keys of its random numbers."""
        return client if self._key_number is None else self._key_number

    def _state_before(self, client: int) -> Any:
        """Return the state from which a client has begun its round."""
        task = self.federation.roster.task(client)
        return self._stored(self.states, "init_client", client, task, self._info(client))

    def _stored(
        self,
        storage: Mapping[int, Any],
        method: Literal["init_client", "init_per_client"],
        client: int,
        task: Task,
        info: ClientInfo,
    ) -> Any | Failure:
        """Return what is kept for a client, or what the algorithm makes before its first round.

        The latter is not kept, and the algorithm may fail.
        """
        if client in storage:
            return to_device(storage[client], self.device)  # it may come from a file

        key = rng.new_key(self.seed, client=self._number(client), purpose=method)
        initial = getattr(self.algorithm, method)
        return contained(initial, self.algorithm.bind(task), tree.copy(info), key)


def _bounded_tasks(federation: Federation, plan: ExamplePlan) -> dict[int, Task]:
    """Return the tasks of clients with their bounds; clients that are alike have the same one."""
    alike: dict[tuple[int, ExampleBound], Task] = {}
    tasks = {}
    for client in plan.releases:
        task = federation.roster.task(client)
        bound = plan.bound(client)
        bounded = task._replace(example_bound=bound)
        tasks[client] = alike.setdefault((id(task), bound), bounded)
    return tasks


def _with_reports_on_host(outputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of programs with their numbers and packed scores on the host, for reports.

    Models, states and uploads stay.
    """
    # One copy from the device for all clients.
    parts = to_host([_reported(output) for output in outputs], "numbers and scores for reports")
    results = []
    for output, part in zip(outputs, map(_with_packed_scores, parts), strict=True):
        results.append(part if isinstance(output, Scores) else output._replace(**part))

    return results


def _reported(output: Any) -> Any:
    """Return the part of a program's output that reports hold."""
    if isinstance(output, Scores):
        return output
    names = ("metrics", "diagnostics", "scores")
    return {name: getattr(output, name) for name in names if hasattr(output, name)}


def _with_packed_scores(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _with_packed_scores(value) for name, value in part.items()}
    return packed(part) if isinstance(part, Scores) else part
