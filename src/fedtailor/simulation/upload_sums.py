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
from typing import Any

from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.engine import Failure, GatheringEngine, Job, Program
from fedtailor.core.message import Mean, Messages, Sum
from fedtailor.core.reduction import PartialSum, Reduction
from fedtailor.core.upload_checks import problem_with
from fedtailor.simulation.quarantine import problem_at_client

Entries = Mapping[str, Mean | Sum | PartialSum]
"""What goes to the sums under the id of one client, by field: its own upload, or the sum of
several."""


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
            position = bisect.bisect_left(cohort, job.client)
            if cohort[position : position + 1] == (job.client,):
                members.add(job.client)

                # Its neighbors decide what can be joined.
                expected.update(cohort[max(position - 1, 0) : position + 2])

        self._members = members
        self._totals = reduction.sums(expected)
        self._reduction = reduction
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

        # Where examples are bounded, only the upload decides whether it is sent.
        at_client = problem_at_client(output.state, output.metrics)
        is_bounded = job.task.example_bound is not None
        if is_bounded and at_client is not None and at_client.kind != "state":
            at_client = None

        problem = (
            problem_with(output.upload, messages, job.size)
            or self._reduction.problem_with(output.upload, job.client)
            or at_client
        )
        if problem is not None or job.client not in self._members:
            self._skip(job.client)
            return output._replace(upload={}, problem=problem or (), num_bytes=0)

        # What is summed is taken out of the output, so that it is not sent too.
        num_bytes = self._reduction.bytes_of(output.upload, messages)
        bounded = self._reduction.bounded(output.upload, job.client)
        output = output._replace(upload=bounded)
        entries, output = self._take_out(output)
        self._add_unless_alone(job.client, entries)
        return output._replace(num_bytes=num_bytes)

    def merge(self, job: Job, output: Any) -> Any:
        """Add the sums that came with a client's output; return the output without them."""
        entries: Entries = {}
        if not isinstance(output, Failure):
            entries, output = self._take_out(output)

        # A neighbor's output may bring those of this client.
        if entries:
            self._add(job.client, entries)
        else:
            self._skip(job.client)

        return output

    def _take_out(self, output: Any) -> tuple[Entries, Any]:
        """Return the fields of an upload that are summed, and the output without them."""
        rest = dict(output.upload)
        entries = {name: rest.pop(name) for name in self._totals if name in rest}
        return entries, output._replace(upload=rest)

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
        """Return outputs with the sums in the upload of the client under whose id they go."""
        entries = self._entries()
        attached = []
        for job, output in zip(jobs, outputs, strict=True):
            if job.client in entries:
                output = output._replace(upload={**entries[job.client], **output.upload})
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
    algorithm: AnyAlgorithm,
    reduction: Reduction,
) -> list[Any]:
    """Return outputs of clients' rounds, whose uploads are checked and added up.

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
    algorithm: AnyAlgorithm,
    reduction: Reduction,
) -> list[Any]:
    """Run clients' rounds on an engine that reduces uploads where they are made.

    The sums of several places are added up as they come, so that few of them are in memory.
    """
    sums = UploadSums(reduction, jobs)
    gather = partial(reduce_uploads, algorithm=algorithm, reduction=reduction)
    outputs = engine.map_gathered(program, common, jobs, gather, sums.merge)
    return sums.attach(jobs, outputs)
