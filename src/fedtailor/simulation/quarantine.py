"""Checks of what clients return, and the errors that end a run in which nothing can be used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import to_host
from fedtailor.core.engine import Failure
from fedtailor.core.errors import ClientError, RunError
from fedtailor.core.federation import Roster
from fedtailor.core.upload_checks import Problem
from fedtailor.simulation.report import RoundReport, describe, too_few

LARGEST_NUMBER = torch.finfo(torch.float32).max
"""The largest number that is recorded. Sums and means over clients stay finite."""
_MOST_NUMBERS = 1000
"""Metrics of one client."""


def problem_at_client(state: Any, metrics: Mapping[str, Any]) -> Problem | None:
    """Return why a client's round must not be used, as far as the client sees it, or None.

    The server checks the upload.
    """
    # The next round would begin from it.
    try:
        finite = all_finite(state)
    except (TypeError, ValueError, RuntimeError) as error:
        return Problem("state", "", f"client state: {error}")
    if not finite:
        return Problem("not finite", "", "client state: values that are not finite")
    text = problem_with_numbers(metrics, "metric")
    return Problem("metric", "", text) if text else None


def problem_with_numbers(numbers: Mapping[str, Any], what: str) -> str:
    """Return why numbers cannot be recorded, in a sentence without its period.

    Empty if they can be.
    """
    if len(numbers) > _MOST_NUMBERS:
        return f"{len(numbers)} {what}s; at most {_MOST_NUMBERS} are recorded"
    for name, value in numbers.items():
        if not isinstance(value, Tensor) or value.dim() != 0:
            return f"{what} '{name}' is not a single number"
        if not _is_recordable(value):
            return f"{what} '{name}' is {float(value):g}, which is not recorded"
    return ""


def usable_numbers(numbers: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the numbers that can be recorded."""
    usable = {}
    for name, value in numbers.items():
        is_single = isinstance(value, Tensor) and value.dim() == 0
        if is_single and _is_recordable(value):
            usable[name] = value
    return dict(itertools.islice(usable.items(), _MOST_NUMBERS))


def _is_recordable(value: Tensor) -> bool:
    return abs(float(value)) <= LARGEST_NUMBER


def problem_with_personal(personal: Any) -> str:
    """Return why a client's model must not be kept, in a sentence without its period.

    Empty if it can be.
    """
    try:
        if not _is_usable(personal):
            return "the model holds values that are not finite; it is scored, and not kept"

        types = {leaf.dtype for leaf in tree.leaves(personal)}
    except (TypeError, RuntimeError) as error:
        return f"the model cannot be kept: {error}"

    if torch.bfloat16 in types:
        return (
            "the model holds values of type torch.bfloat16, which are not written; it is scored, "
            "and not kept"
        )
    return ""


def refuse_too_few(
    report: RoundReport, usable: int, clients: int, needed: int, roster: Roster
) -> NoReturn:
    """Raise because too few clients did usable work in all attempts at a round."""
    # One example says more than a count.
    kinds = ("absent", "failed", "quarantine")
    event = next((event for event in report.events if event["kind"] in kinds), None)
    example = ""
    if event:
        example = f"; client {roster.name_of(event['client'])}: {event['reason'].rstrip('.')}"

    attempts = f"in {report.attempt + 1} attempts, " if report.attempt > 0 else ""
    what = too_few(usable, clients, needed)
    raise RunError(f"round {report.round}: {attempts}{what}{example}.", key="local_update")


def all_finite(value: tree.Tree) -> bool:
    """Return whether every number of a tree is finite."""
    # All leaves at once: a device is waited for only once.
    ends = to_host(
        [_ends(leaf) for leaf in tree.leaves(value)],
        "whether all numbers of a client's tree are finite",
    )
    return all(math.isfinite(end) for pair in ends for end in pair)


def _is_usable(personal: tree.Tree) -> bool:
    """Return whether no number of a model is NaN or plus infinity.

    Minus infinity is allowed: it is the bias of a class of which nobody has examples.
    """
    largest = to_host(
        [_ends(leaf)[-1] for leaf in tree.leaves(personal)],
        "whether the numbers of a client's model can be used",
    )

    # NaN is not less than any number.
    return all(bool(end < math.inf) for end in largest)


def _ends(leaf: Tensor) -> tuple[Tensor, ...]:
    """Return numbers that are finite if all of a tensor are: its smallest one and its largest."""
    if not leaf.is_floating_point() or leaf.numel() == 0:
        return (torch.where(torch.isfinite(leaf).all(), 0.0, math.inf),)
    return tuple(torch.aminmax(leaf))  # ten times as fast as isfinite


def refuse_total_failure(
    failed: Sequence[tuple[int, Failure]], count: int, stage: str, round: int, roster: Roster
) -> None:
    """Raise if all clients failed: then the program is at fault, not a client."""
    if failed and len(failed) == count:
        client, first = failed[0]
        message = f"every client failed, this one with {describe(first)}"
        name = roster.name_of(client)
        raise ClientError(
            message, client=client, stage=stage, round=round, name=name
        ) from first.reason
