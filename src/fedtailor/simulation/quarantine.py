"""Checks of what clients return, and the errors that end a run in which nothing can be used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.engine import Failure
from fedtailor.core.errors import ClientError, RunError
from fedtailor.core.message import Problem


def problem_at_client(state: Any, metrics: Mapping[str, Any]) -> Problem | None:
    """Return why a client's round must not be used, as far as the client sees it, or None if it can be.

    The server checks the upload.
    """
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
    """Raise because none of the work of so many clients could be used: then no single client is at fault."""
    last = next((event for event in events if event["kind"] in ("quarantine", "failed")), None)
    example = f"; client {last['client']}: {last['reason'].rstrip('.')}" if last else ""
    noun = "client" if clients == 1 else "clients"
    raise RunError(f"round {round}: none of the work of the {clients} {noun} can be used{example}.", key="local_update")


def all_finite(value: tree.Tree) -> bool:
    """Return whether every number of a tree is finite."""
    return all(_is_finite(leaf) for leaf in tree.leaves(value))


def _is_finite(leaf: Tensor) -> bool:
    if not leaf.is_floating_point() or leaf.numel() == 0:
        return bool(torch.isfinite(leaf).all())
    return all(math.isfinite(end) for end in map(float, torch.aminmax(leaf)))  # ten times as fast as isfinite


def describe(failure: Failure) -> str:
    """Return what a client's program raised."""
    return f"{type(failure.reason).__name__}: {failure.reason}"


def refuse_total_failure(failed: Sequence[tuple[int, Failure]], count: int, stage: str, round: int) -> None:
    """Raise if all of so many clients failed: then the program is at fault, not a client."""
    if failed and len(failed) == count:
        client, first = failed[0]
        message = f"every client failed, this one with {describe(first)}"
        raise ClientError(message, client=client, stage=stage, round=round) from first.reason
