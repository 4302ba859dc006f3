"""Uploads that are checked and added up where they are made, in place of the server.

The server adds uploads in a tree over client ids (:mod:`fedtailor.core.reduction`). An engine whose
clients run in several places makes parts of that tree there. The total has the same bits, whoever
runs where.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Failure, GatheringEngine, Job, Program
from fedtailor.core.message import Mean, Messages, Sum, Upload, upload_bytes
from fedtailor.core.reduction import FieldSum, PartialSum, Reduction
from fedtailor.core.upload_checks import Problem, problem_with
from fedtailor.simulation.quarantine import problem_at_client

Entries = Mapping[str, Mean | Sum | PartialSum]
"""What goes to the sums under the id of one client, by field: its own upload, or the sum of
several."""


class ReducedUpload(NamedTuple):
    """What stands for an upload that was checked and added to those of neighbors."""

    problem: Problem | None
    """Why the client's round must not be used. Nothing of it is in a sum then."""
    num_bytes: int
    """Of the upload; 0 if it does not count."""
    sums: Entries
    """Of this client and of neighbors; empty if those of this client came with a neighbor's."""
    rest: Upload
    """The fields that are not summed."""

    @property
    def fields(self) -> dict[str, Any]:
        """What goes to the server, by field."""
        return {**self.sums, **self.rest}


class UploadSums:
    """The sums of some clients' uploads.

    It is made where they run, and again where several such places send theirs.
    """

    def __init__(self, reduction: Reduction, jobs: Iterable[Job]) -> None:
        """Begin with the jobs of these clients, any part of the round."""
        cohort = reduction.cohort
        members = set()
        expected: set[int] = set()
        for job in jobs:
            place = bisect.bisect_left(cohort, job.client)
            if cohort[place : place + 1] == (job.client,):
                members.add(job.client)

                # Its neighbors decide what can be joined.
                expected.update(cohort[max(place - 1, 0) : place + 2])

        self._members = members
        self._totals = {name: FieldSum(expected) for name in reduction.summed}
        self._has_any = False
        """Whether an upload was reduced."""
        self._alone: tuple[int, Entries] | None = None
        """The first one, until there is a second: one alone is sent as it is, which takes half of
        the bytes of a sum."""

    def reduce(self, job: Job, output: Any, messages: Messages) -> Any:
        """Check and add what a client uploads; return its output without what was added."""
        if isinstance(output, Failure):
            self._skip(job.client)
            return output

        problem = problem_with(output.upload, messages, job.size) or problem_at_client(
            output.state, output.metrics
        )
        if problem is not None or job.client not in self._members:
            self._skip(job.client)
            return output._replace(upload=ReducedUpload(problem, 0, {}, {}))

        # What is summed is taken out of the output, so that it is not sent too.
        num_bytes = upload_bytes(output.upload, messages)
        rest = dict(output.upload)
        entries = {name: rest.pop(name) for name in self._totals}
        self._add_unless_alone(job.client, entries)

        return output._replace(upload=ReducedUpload(None, num_bytes, {}, rest))

    def merge(self, job: Job, output: Any) -> Any:
        """Add the sums that came with a client's output; return the output without them."""
        if isinstance(output, Failure) or not output.upload.sums:
            self._skip(job.client)
            return output
        self._add(job.client, output.upload.sums)
        return output._replace(upload=output.upload._replace(sums={}))

    def _add_unless_alone(self, client: int, entries: Entries) -> None:
        if not self._has_any:
            self._has_any = True
            self._alone = (client, entries)
            return

        if self._alone is not None:
            self._add(*self._alone)
            self._alone = None
        self._add(client, entries)

    def _add(self, client: int, entries: Entries) -> None:
        for name, total in self._totals.items():
            total.add(client, entries[name])

    def _skip(self, client: int) -> None:
        if client in self._members:
            for total in self._totals.values():
                total.skip(client)

    def attach(self, jobs: Sequence[Job], outputs: Sequence[Any]) -> list[Any]:
        """Return outputs with the sums, each at the client under whose id it goes."""
        entries = self._entries()
        attached = []
        for job, output in zip(jobs, outputs, strict=True):
            if job.client in entries:
                output = output._replace(upload=output.upload._replace(sums=entries[job.client]))
            attached.append(output)
        return attached

    def _entries(self) -> dict[int, Entries]:
        """Return what goes to the server, by client."""
        if self._alone is not None:
            return dict([self._alone])

        # A part is under the lowest id of those who are in it.
        entries: defaultdict[int, dict[str, PartialSum]] = defaultdict(dict)
        for name, total in self._totals.items():
            for client, part in total.parts().items():
                entries[client][name] = part

        return dict(entries)


def reduce_uploads(
    jobs: Sequence[Job],
    outputs: Iterable[Any],
    *,
    algorithm: Algorithm[Any, Any, Any],
    reduction: Reduction,
) -> list[Any]:
    """Return outputs of clients' rounds with :class:`ReducedUpload` in place of their uploads.

    Args:
        jobs: of the clients, whose messages are the same.
        outputs: of their programs, in the same order, or :class:`Failure`. Each upload is dropped
            before the next one is taken.
        algorithm: declares the messages.
        reduction: what the server would do.
    """
    messages = algorithm.messages(algorithm.bind(jobs[0].task))
    sums = UploadSums(reduction, jobs)
    reduced = []
    for job, output in zip(jobs, outputs, strict=True):
        reduced.append(sums.reduce(job, output, messages))
    return sums.attach(jobs, reduced)


def map_reduced(
    engine: GatheringEngine,
    program: Program,
    common: Any,
    jobs: Sequence[Job],
    algorithm: Algorithm[Any, Any, Any],
    reduction: Reduction,
) -> list[Any]:
    """Run clients' rounds on an engine that reduces uploads where they are made.

    The sums of several places are added up as they come, so that few of them are in memory.
    """
    sums = UploadSums(reduction, jobs)
    gather = partial(reduce_uploads, algorithm=algorithm, reduction=reduction)
    outputs = engine.map_gathered(program, common, jobs, gather, sums.merge)
    return sums.attach(jobs, outputs)
