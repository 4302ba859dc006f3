"""The engine ``ray``: actors of a Ray cluster, one client at a time in each.

The cluster is on one machine or on many. Actors stay for the whole run, and compute as the
processes of the engine ``processes`` do. Programs are pure functions of their inputs, so a client
whose actor was lost runs again elsewhere, with the same result.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.engine import Failure, Gather, Job, Merge, NoAnswer, Program
from fedtailor.core.errors import FedtailorError, RunError, describe_error
from fedtailor.simulation.engines.dealing import Deck
from fedtailor.simulation.engines.ray_actor import Package, StoredTable
from fedtailor.simulation.engines.ray_cluster import Cluster, require_ray
from fedtailor.simulation.engines.requests import MapRequests, Requests, read_answer
from fedtailor.simulation.engines.serialization import aligned_bytes
from fedtailor.simulation.engines.workers import return_pages
from fedtailor.simulation.programs import SharedInputs

_AT_ONCE = 2
"""Calls that an actor has at a time: while it runs one, the next one is on its way."""
_SHARE = 4
"""A call brings this share of the jobs that remain for an actor: many at first, and one at the
end."""
_MOST_JOBS = 32
"""Jobs in a call. Ray's own work is the same for a call with one job."""
_CALL_BYTES = 2**24
"""Bytes of answers to a call, about."""
_MOST_ENDS = 3
"""How often an actor may end while it runs one client alone, until that counts as the client's
doing."""
_MOST_STARTS = 3
"""How often one after the other the start of an actor may fail."""
_PATIENCE = 60
"""Seconds in which one of the actors must start."""


class Ray:
    """Runs clients in actors of a Ray cluster, which start with the first call."""

    name = "ray"
    smallest_group = 32

    def __init__(self, workers: int = 0, address: str = "") -> None:
        """Prepare a connection.

        Args:
            workers: the number of actors; 0: as many as there are CPUs in the cluster.
            address: of a cluster, as ``host:port``; ``auto``: the one that runs on this machine;
                empty: a cluster of its own on this machine, with one CPU per physical core, which
                ends with the engine.

        Raises:
            ConfigError: Ray is not installed.
        """
        require_ray()
        self._state = _State(Cluster(address, workers))
        self._lock = threading.Lock()
        weakref.finalize(self, self._state.close)  # also when the interpreter exits

    def begin_run(self) -> None:
        """Make the actors forget what they recorded in an earlier run."""
        self._state.requests.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job.

        :class:`Failure` where one raised, or ended its actor again and again.

        Raises:
            ConfigError: there is no such cluster, it has other versions, or something cannot be
                sent to it.
            DataError: other data than those of the run arrived at an actor.
            RunError: the cluster cannot be started, others use all its CPUs, or no actor starts.
        """
        return self.map_gathered(program, common, jobs, None, lambda job, output: output)

    def map_gathered(
        self,
        program: Program,
        common: Any,
        jobs: Sequence[Job],
        gather: Gather | None,
        merge: Merge,
    ) -> list[Any]:
        """Return as :meth:`map` does what ``gather`` and ``merge`` make of outputs.

        ``gather`` runs in actors, for neighboring clients; None: outputs come as they are.

        Raises:
            ConfigError: as :meth:`map`.
            DataError: as :meth:`map`.
            RunError: as :meth:`map`.
        """
        if not jobs:
            return []

        with self._lock:
            try:
                self._state.connect()
                outputs = _Deal(self._state, program, common, jobs, gather, merge).run()
            except BaseException:
                self._state.close()  # after an interruption, no client runs on
                raise

        # Answers of many sizes have come.
        return_pages()
        return outputs

    def close(self) -> None:
        """End the actors, and the connection or the cluster; a later :meth:`map` starts others."""
        with self._lock:
            self._state.close()


@dataclass
class _Actor:
    """An actor as the engine sees it."""

    handle: Any
    starting: Any
    """Reference of its description, until that has come; None afterwards."""
    calls: dict[Any, list[int]] = field(default_factory=dict)
    """The positions of the jobs that it has, by the reference of the answers."""
    runs_alone: bool = False
    """Whether it has a single job and gets no other, to see which client ends it."""


class _State:
    """The connection and the actors, which must be ended.

    The engine's finalizer refers to it and not to the engine.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.requests = Requests("ray")
        self.actors: list[_Actor] = []
        self.num_packages = 0
        self._failed_starts = 0
        self._tables: tuple[Tensor, ...] = ()
        self._stored: tuple[StoredTable, ...] = ()
        self._tables_version = 0

    def connect(self) -> None:
        """Connect to the cluster and start actors, unless it was done."""
        self.cluster.connect()
        while len(self.actors) < self.cluster.workers:
            self.actors.append(self._new_actor())

    def _new_actor(self) -> _Actor:
        handle = self.cluster.start_actor()
        return _Actor(handle, handle.describe.remote())

    def replace(self, actor: _Actor) -> None:
        """Start another actor in place of one that was lost."""
        import ray

        ray.kill(actor.handle)  # if only the connection was lost
        self.actors[self.actors.index(actor)] = self._new_actor()

    def greet(self, actor: _Actor) -> None:
        """Receive the description of an actor that has started, or has not.

        Raises:
            ConfigError: it has other versions.
            RunError: several actors could not start.
        """
        import ray

        try:
            description = ray.get(actor.starting)
        except ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts == _MOST_STARTS:
                raise _cannot_start(_last_line(error)) from error

            self.replace(actor)
            return

        self._failed_starts = 0
        self.cluster.check(description)
        actor.starting = None

    def pack(
        self, program: Program, common: Any, jobs: Sequence[Job], gather: Gather | None
    ) -> tuple[Any, MapRequests]:
        """Put what the actors need for a map into the object store; return its reference too."""
        requests = self.requests.of_map(program, common, jobs, gather=gather)
        tables: tuple[StoredTable, ...] = ()
        if isinstance(common, SharedInputs):
            tables = self._store(common.x, common.y)

        self.num_packages += 1
        data = {
            kind: (request.version, np.frombuffer(request.data, dtype=np.uint8))
            for kind, request in requests.before_all().items()
        }
        return self.cluster.put(Package(self._tables_version, tables, data)), requests

    def _store(self, *tables: Tensor) -> tuple[StoredTable, ...]:
        """Put tables into the object store, unless they are those of the last call."""
        if [id(table) for table in tables] != [id(table) for table in self._tables]:
            self._stored = tuple(self._stored_table(table) for table in tables)
            self._tables_version += 1

            # A reference: while it exists, no other tensor can have the same identity.
            self._tables = tables

        return self._stored

    def _stored_table(self, table: Tensor) -> StoredTable:
        layout, memory = aligned_bytes(table)
        digest = hashlib.sha256(memory.data).hexdigest()
        return StoredTable(layout, self.cluster.put(memory), digest)

    def close(self) -> None:
        """End the actors and the connection."""
        if self.cluster.is_connected:
            import ray

            for actor in self.actors:
                ray.kill(actor.handle)

        self.actors = []
        self._tables = ()
        self._stored = ()
        self._failed_starts = 0
        self.cluster.close()


class _Deal:
    """The jobs of one map, dealt to the actors."""

    def __init__(
        self,
        state: _State,
        program: Program,
        common: Any,
        jobs: Sequence[Job],
        gather: Gather | None,
        merge: Merge,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._package, self._requests = state.pack(program, common, jobs, gather)
        self._outputs: list[Any] = [None] * len(jobs)
        self._gathers = gather is not None
        self._merge = merge
        self._waiting = Deck(jobs)
        self._suspects: deque[int] = deque()
        """Jobs whose actor was lost while it had several: each of them runs alone."""
        self._ends: Counter[int] = Counter()
        """How often the actor of a job was lost that ran alone."""
        self._num_missing = len(jobs)

        # A model goes to a client, and one comes back with its state. Where outputs are gathered,
        # one comes for all clients of a call.
        answer_bytes = max(map(_input_bytes, jobs))
        if not self._gathers:
            answer_bytes += len(self._requests.common["map"].data)
        self._most_jobs = min(max(_CALL_BYTES // max(answer_bytes, 1), 1), _MOST_JOBS)

    def run(self) -> list[Any]:
        """Return the outputs, in the order of the jobs."""
        import ray

        while self._num_missing:
            for actor in self._state.actors:
                self._feed(actor)

            # Whatever comes first: answers, or an actor that has started.
            owners = self._references()
            ready, _ = ray.wait(list(owners), num_returns=1, timeout=_PATIENCE)
            for reference in ready:
                self._take(owners[reference], reference)

            if not ready and all(actor.starting is not None for actor in self._state.actors):
                raise _cannot_start(
                    f"none has started within {_PATIENCE} s, perhaps because others use all CPUs "
                    "of the cluster"
                )

        return self._outputs

    def _references(self) -> dict[Any, _Actor]:
        """Return what may come next, with the actor from which it comes."""
        owners = {}
        for actor in self._state.actors:
            if actor.starting is not None:
                owners[actor.starting] = actor
            owners.update(dict.fromkeys(actor.calls, actor))
        return owners

    def _feed(self, actor: _Actor) -> None:
        """Give an actor jobs, as far as it takes them."""
        if actor.starting is not None or actor.runs_alone:
            return

        # Jobs of lost actors come first: one of them ended it, and only alone can it be seen which.
        if self._suspects:
            if not actor.calls:
                self._send(actor, [self._suspects.popleft()])
                actor.runs_alone = True

            return

        # Large shares at first, for less traffic; small ones at the end, so that all end together.
        while self._waiting and len(actor.calls) < _AT_ONCE:
            share = len(self._waiting) // (_SHARE * len(self._state.actors))
            self._send(actor, self._waiting.take(max(1, min(share, self._most_jobs))))

    def _send(self, actor: _Actor, positions: list[int]) -> None:
        encoded = [bytes(self._requests.of_job(self._jobs[position])) for position in positions]
        reference = actor.handle.run.remote(
            self._state.num_packages, [self._package], encoded, self._gathers
        )
        actor.calls[reference] = positions

    def _take(self, actor: _Actor, reference: Any) -> None:
        """Take what has come from an actor."""
        import ray

        if reference is actor.starting:
            self._state.greet(actor)
            return

        try:
            answers = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            # No client's program raises here: it is the data, or our own fault.
            if isinstance(error.cause, FedtailorError):
                raise error.cause from None

            raise RunError(
                f"an actor of engine 'ray' failed: {_last_line(error)}.", key="engine.name"
            ) from error
        except ray.exceptions.RayError:
            self._lose(actor)
            return

        positions = actor.calls.pop(reference)
        actor.runs_alone = False
        replies = [read_answer(answer.data, "ray") for answer in answers]

        # Sums may hold an upload of which nothing else has come.
        if self._gathers and len(replies) > 1 and not all(reply.arrived for reply in replies):
            for position in positions:
                self._waiting.put_back(position)
            return

        for position, reply in zip(positions, replies, strict=True):
            self._enter(position, reply.output)

    def _enter(self, position: int, output: Any) -> None:
        self._outputs[position] = self._merge(self._jobs[position], output)
        self._num_missing -= 1

    def _lose(self, actor: _Actor) -> None:
        """Run the jobs of a lost actor again, or give one up that ended its actor too often."""
        self._state.replace(actor)
        lost = [position for positions in actor.calls.values() for position in positions]
        if actor.runs_alone:
            self._ends.update(lost)

        for position in lost:
            if self._ends[position] < _MOST_ENDS:
                self._suspects.append(position)
            else:
                how = f"ended {_MOST_ENDS} times while it ran no other client"
                self._enter(position, Failure(NoAnswer(f"the actor of this client {how}")))


def _input_bytes(job: Job) -> int:
    return sum(leaf.nbytes for leaf in tree.leaves(job.inputs))


def _cannot_start(reason: str) -> RunError:
    return RunError(f"no actor of engine 'ray' can start: {reason.rstrip('.')}.", key="engine.name")


def _last_line(error: BaseException) -> str:
    """Return the last line of an error of Ray, which holds whole tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else describe_error(error)).rstrip(".")
