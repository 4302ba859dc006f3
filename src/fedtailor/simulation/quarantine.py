"""What of a client's round can be used, and when a run cannot go on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.engine import Failure
from fedtailor.core.errors import ClientError, RunError
from fedtailor.core.message import Messages, Problem, problem_with


def problem_with_output(output: Any, messages: Messages) -> Problem | None:
    """Return why a client's round must not be used, or None if it can be."""
    if isinstance(output, Failure):
        return Problem("failure", "", describe(output))
    state, upload, metrics, _ = output
    problem = problem_with(upload, messages)
    if problem is not None:
        return problem
    try:
        finite = all_finite(state)
    except TypeError as error:
        return Problem("state", "", f"client state: {error}")
    if not finite:
        return Problem("not finite", "", "client state: values that are not finite")
    for name, value in metrics.items():
        if not isinstance(value, Tensor) or value.dim() != 0:
            return Problem("metric", "", f"metric '{name}' is not a single number")
    return None


def refuse_total_quarantine(round: int, events: Sequence[Mapping[str, Any]], clients: int) -> NoReturn:
    """Raise because the last work of none of so many clients could be used: then the fault is no client's."""
    last = next(event for event in events if event["kind"] == "quarantine")
    raise RunError(
        f"round {round}: the work of none of the {clients} clients can be used; "
        f"client {last['client']}: {last['reason'].rstrip('.')}.",
        key="local_update",
    )


def all_finite(value: tree.Tree) -> bool:
    """Return whether every number of a tree is finite."""
    return all(_is_finite(leaf) for leaf in tree.leaves(value))


def _is_finite(leaf: Tensor) -> bool:
    if not leaf.is_floating_point() or leaf.numel() == 0:
        return bool(torch.isfinite(leaf).all())
    return all(math.isfinite(end) for end in map(float, torch.aminmax(leaf)))  # ten times as fast as a look at each


def describe(failure: Failure) -> str:
    """Return what a client's program raised."""
    return f"{type(failure.reason).__name__}: {failure.reason}"


def refuse_total_failure(failed: Sequence[tuple[int, Failure]], count: int, stage: str, round: int) -> None:
    """Raise if all of so many clients failed: then the fault is the program's, not a client's."""
    if failed and len(failed) == count:
        client, first = failed[0]
        message = f"every client failed, this one with {describe(first)}"
        raise ClientError(message, client=client, stage=stage, round=round) from first.reason
