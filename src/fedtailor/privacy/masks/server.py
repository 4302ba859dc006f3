"""What the server does with masked vectors: it adds them up, and takes the masks off the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from fedtailor.privacy.masks.primitives import (
    RefusedError,
    add_key_stream,
    derive,
    digest_of,
    public_key,
)
from fedtailor.privacy.masks.session import (
    Member,
    Request,
    Session,
    context_of,
)
from fedtailor.privacy.masks.shares import combine, weights_of
from fedtailor.privacy.masks.site import pair_stream_key

_MOST_LIARS = 2
"""Holders of wrong shares that are looked for."""

Answers = Mapping[int, Mapping[int, bytes | None]]
"""The shares of every holder, by member."""


class Opened(NamedTuple):
    """A sum without masks."""

    total: np.ndarray
    """(entries,), 64-bit whole numbers without a sign."""
    liars: frozenset[int]
    """Holders whose shares do not fit."""


class TooFewSharesError(RefusedError):
    """More sites must answer before a sum can be opened."""


def unmask(
    session: Session,
    request: Request,
    cohort: Sequence[Member],
    survivors: frozenset[int],
    total: np.ndarray,
    answers: Answers,
) -> Opened:
    """Take the masks off a sum.

    Args:
        session: the run.
        request: what the sum is of.
        cohort: all members.
        survivors: those whose vectors are in the sum.
        total: the sum of the masked vectors, (entries,). It stays as it is.
        answers: shares of at least ``session.threshold`` holders of each member.

    Raises:
        TooFewSharesError: too few shares, or too many wrong ones.
    """
    context = context_of(session, request, cohort)
    secrets, liars = _combined(session, cohort, survivors, answers)
    total = total.astype("<u8")
    for member in cohort:
        secret = secrets[member.number]
        if member.number in survivors:
            key = derive(secret, context, "self", member.number)
            add_key_stream(total, key, sign=-1)
        else:
            _remove_pairs(total, member, secret, cohort, survivors, context)

    return Opened(total, liars)


def _remove_pairs(
    total: np.ndarray,
    missing: Member,
    secret: bytes,
    cohort: Sequence[Member],
    survivors: frozenset[int],
    context: bytes,
) -> None:
    """Take off the masks that the survivors share with who is missing."""
    for other in cohort:
        if other.number in survivors:
            key = pair_stream_key(secret, missing.number, other, context)
            add_key_stream(total, key, sign=-1 if other.number < missing.number else 1)


def _combined(
    session: Session, cohort: Sequence[Member], survivors: frozenset[int], answers: Answers
) -> tuple[dict[int, bytes], frozenset[int]]:
    """Return the secret of every member, and the holders whose shares do not fit."""
    secrets = {}
    liars: frozenset[int] = frozenset()
    weights: dict[tuple[int, ...], dict[int, int]] = {}
    for member in cohort:
        shares = _shares_of(session, member, answers)

        # Whoever has lied once is left out from the start.
        honest = sorted(set(shares) - liars)
        for left_out in _suspects(honest):
            holders = tuple(number for number in honest if number not in left_out)
            holders = holders[: session.threshold]
            if len(holders) < session.threshold:
                raise TooFewSharesError(
                    f"the shares of the keys of site {member.number} do not fit: more sites must "
                    "answer."
                )

            if holders not in weights:
                weights[holders] = weights_of(holders)
            secret = combine(shares, weights[holders])
            if _fits(secret, member, is_own=member.number in survivors):
                secrets[member.number] = secret
                liars |= left_out
                break
        else:
            raise TooFewSharesError(
                f"more than {_MOST_LIARS} sites have sent wrong shares of the keys of site "
                f"{member.number}."
            )

    return secrets, liars


def _shares_of(session: Session, member: Member, answers: Answers) -> dict[int, bytes]:
    """Return the shares of a member's secret, by holder."""
    shares = {}
    for holder, by_member in answers.items():
        share = by_member.get(member.number)
        if share is not None:
            shares[holder] = share

    if len(shares) < session.threshold:
        raise TooFewSharesError(
            f"{len(shares)} of {session.threshold} needed sites have answered: the sum stays "
            "closed until more do.",
            got=len(shares),
        )
    return shares


def _suspects(holders: Sequence[int]) -> Iterator[frozenset[int]]:
    """Yield whom to leave out: nobody, then each, then any two."""
    for count in range(_MOST_LIARS + 1):
        yield from map(frozenset, combinations(holders, count))


def _fits(secret: bytes, member: Member, *, is_own: bool) -> bool:
    if is_own:
        return digest_of("commit", secret) == member.commitment
    return public_key(secret) == member.pair_key
