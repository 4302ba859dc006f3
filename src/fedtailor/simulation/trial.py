"""A round on a few examples, which shows what the declaration of a method does not say."""

from __future__ import annotations

import dataclasses

import torch

from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.federation import Federation, Split
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import simulate

_EXAMPLES = 8
"""Training examples of a client."""


def trial_round(algorithm: AnyAlgorithm, federation: Federation) -> RoundReport | None:
    """Train one round on a few examples of two clients; None if the method fails on them."""
    # Two clients with a few examples each: enough to see what a method reports.
    clients = [
        client for client in federation.roster.known if len(federation.splits[client].train)
    ][:2]
    splits = [federation.splits[client] for client in clients]
    small = dataclasses.replace(
        federation,
        splits=[Split(split.train[:_EXAMPLES], split.val[:4], split.test[:4]) for split in splits],
        num_new=0,
        client_names=(),
        conditions=(),
        client_tasks=(),
        complete=federation.complete[:0],
    )

    try:
        (report,) = simulate(algorithm, small, Reference(), Schedule(rounds=1), seed=0)
    except Exception:  # a user's method, or one that needs more examples
        return None

    return report


def reported_numbers(algorithm: AnyAlgorithm, task: Task) -> tuple[str, ...]:
    """Return the names of the training metrics of a method, from made-up examples.

    There are none if the method fails on them.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (2 * _EXAMPLES, *task.input_shape)
    x = torch.rand(shape, generator=generator)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.arange(len(x)) % task.num_classes

    nothing = torch.arange(0)
    parts = torch.split(torch.arange(len(x)), _EXAMPLES)
    splits = [Split(part, nothing, nothing) for part in parts]
    report = trial_round(algorithm, Federation(x, y, splits, task))
    return () if report is None else tuple(sorted(report.metrics))
