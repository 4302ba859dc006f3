"""What steps with bounded examples tell of one example: epsilon of every client, and of sums."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

DELTA = 1e-5
"""Probability with which an example may be told more about than epsilon says."""
_TOLERANCE = 1e-12


class ClientRound(NamedTuple):
    """The private steps of a client in a round."""

    round: int
    client: int
    steps: int
    rate: float
    """The largest probability with which an example is in a step."""


def epsilon_by_client(
    noise: float, delta: float, history: Iterable[ClientRound]
) -> dict[int, float]:
    """Return epsilon of every client's examples, for whoever sees its single uploads.

    It also holds for whoever sees sums and models made of them. Neighbors differ by one example of
    one client, and examples of other clients say nothing of it, so that a federation has the
    largest of these numbers.

    Args:
        noise: deviation over the bound of an example (``training.example_noise``).
        delta: of every epsilon.
        history: of all rounds whose uploads were used.
    """
    from fedtailor.privacy.accountant import Release, epsilon_of

    steps: dict[int, Counter[float]] = defaultdict(Counter)
    for done in history:
        steps[done.client][done.rate] += done.steps

    # Many clients may have the same history.
    known: dict[tuple[tuple[float, int], ...], float] = {}
    result = {}
    for client, counts in sorted(steps.items()):
        key = tuple(sorted(counts.items()))
        if key not in known:
            known[key] = epsilon_of(delta, [Release(noise, *part) for part in key])
        result[client] = known[key]

    return result


def epsilon_of_sums(noise: float, delta: float, history: Sequence[ClientRound]) -> float | None:
    """Return epsilon for whoever sees sums over the clients of a round only, or None.

    Every client adds its noise, so the sum of m clients has sqrt(m) times as much, if each has
    taken one step with all its examples, if uploads are linear in the noisy gradients and weighted
    by numbers of examples, and if clients keep nothing from round to round. All m must keep their
    noise to themselves.

    Args:
        noise: as in :func:`epsilon_by_client`.
        delta: as there.
        history: as there.

    Returns:
        None if a client has taken more than one step in a round, or drawn batches: a sum then has
        no common noise.
    """
    from fedtailor.privacy.accountant import Release, epsilon_of

    if any(done.steps != 1 or done.rate < 1 - _TOLERANCE for done in history):
        return None

    sizes = Counter(Counter(done.round for done in history).values())
    releases = []
    for size, rounds in sorted(sizes.items()):
        releases.append(Release(noise * math.sqrt(size), 1.0, rounds))
    return epsilon_of(delta, releases)


def example_record(
    noise: float,
    delta: float,
    history: Sequence[ClientRound],
    *,
    has_common_noise: bool,
) -> dict[str, Any]:
    """Return what the result of a run says of its examples.

    Args:
        noise: as in :func:`epsilon_by_client`.
        delta: as there.
        history: as there.
        has_common_noise: whether the server gets sums only, to which every client adds its noise.
    """
    by_client = epsilon_by_client(noise, delta, history)
    record: dict[str, Any] = {
        "unit": "example",
        "noise": noise,
        "delta": delta,
        "epsilon": max(by_client.values(), default=0.0),
        "by_client": {str(client): epsilon for client, epsilon in by_client.items()},
    }
    of_sums = epsilon_of_sums(noise, delta, history) if has_common_noise else None
    if of_sums is not None:
        record["epsilon_of_sums"] = of_sums
    return record
