"""What the server does with masked vectors: it adds them up, and takes the masks off the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
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
    Session,
    SumMember,
    SumRequest,
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
    """Holders whose shares of most members do not fit."""


class TooFewSharesError(RefusedError):
    """More sites must answer before a sum can be opened."""


def unmask(
    session: Session,
    request: SumRequest,
    cohort: Sequence[SumMember],
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
    secrets = _Secrets(session, survivors, answers)
    total = total.astype("<u8")
    for member in cohort:
        secret = secrets.of(member)
        if member.number in survivors:
            key = derive(secret, context, "self", member.number)
            add_key_stream(total, key, sign=-1)
            continue

        # The masks that the survivors share with who is missing.
        for other in cohort:
            if other.number in survivors:
                key = pair_stream_key(secret, member.number, other, context)
                add_key_stream(total, key, sign=-1 if other.number < member.number else 1)

    return Opened(total, secrets.liars())


class _Secrets:
    """Puts the secrets of members together from shares, of which some may be wrong."""

    def __init__(self, session: Session, survivors: frozenset[int], answers: Answers) -> None:
        self._threshold = session.threshold
        self._survivors = survivors
        self._answers = answers
        self._weights_of = cache(weights_of)
        self._used: dict[SumMember, tuple[int, ...]] = {}
        """The holders of whose shares a secret was made."""
        self._suspects: set[int] = set()
        """Holders of shares that did not fit."""

    def of(self, member: SumMember) -> bytes:
        """Return the secret of a member that opens the sum.

        Raises:
            TooFewSharesError: too few shares, or too many wrong ones.
        """
        shares = self._shares_of(member)

        # Whoever was left out before comes last.
        order = sorted(shares, key=lambda holder: (holder in self._suspects, holder))
        for left_out in _ways_to_leave_out(order):
            rest = [holder for holder in order if holder not in left_out]
            holders = tuple(rest[: self._threshold])
            if len(holders) < self._threshold:
                break

            secret = combine(shares, self._weights_of(holders))
            if self._fits(secret, member):
                self._used[member] = holders
                self._suspects |= left_out
                return secret

        raise TooFewSharesError(
            f"the shares of the keys of site {member.number} do not fit: more sites must answer."
        )

    def liars(self) -> frozenset[int]:
        """Return the holders of wrong shares of most members.

        A single share that is wrong may be the fault of the member, who has made it.
        """
        most = len(self._used) / 2
        return frozenset(
            holder
            for holder in self._suspects
            if sum(self._is_wrong(member, holder) for member in self._used) > most
        )

    def _is_wrong(self, member: SumMember, holder: int) -> bool:
        """Return whether a share does not fit to those of which the secret was made."""
        if self._answers[holder].get(member.number) is None:
            return False

        others = [other for other in self._used[member] if other != holder]
        holders = (*others[: self._threshold - 1], holder)
        shares = self._shares_of(member)
        return not self._fits(combine(shares, self._weights_of(holders)), member)

    def _shares_of(self, member: SumMember) -> dict[int, bytes]:
        """Return the shares of a member's secret, by holder."""
        shares = {}
        for holder, by_member in self._answers.items():
            share = by_member.get(member.number)
            if share is not None:
                shares[holder] = share

        if len(shares) < self._threshold:
            raise TooFewSharesError(
                f"{len(shares)} of {self._threshold} needed sites have answered: the sum stays "
                "closed until more do.",
                got=len(shares),
            )
        return shares

    def _fits(self, secret: bytes, member: SumMember) -> bool:
        if member.number in self._survivors:
            return digest_of("commit", secret) == member.commitment
        return public_key(secret) == member.pair_key


def _ways_to_leave_out(holders: Sequence[int]) -> Iterator[frozenset[int]]:
    """Yield whom to leave out: nobody, then each, then any two."""
    for count in range(_MOST_LIARS + 1):
        yield from map(frozenset, combinations(holders, count))
