"""What all sites and the server of a run know: who is who, the members of a sum, its request.

A *member* is a site in a sum, with keys that it has made in advance for this sum alone. The
*context* is a digest of everything that a sum is made under. It goes into every mask, so that masks
of other contexts do not cancel: a server that tells sites different things cannot open anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedtailor.privacy.masks.primitives import (
    DIGEST_BYTES,
    RefusedError,
    digest_of,
    is_signed,
    pack,
)

_MEMBER = struct.Struct("<II32s32s32sH")
LONGEST_SIGNATURE = 104
"""Bytes of an ECDSA signature (P-384)."""


class Session(NamedTuple):
    """A run, and the sites that take part in its sums."""

    run: str
    """Its name."""
    roster: tuple[bytes, ...]
    """The public key of each site, by number."""
    threshold: int
    """Answers that open a sum."""
    colluding: int
    """Sites that may work with the server."""
    smallest: int
    """Sites that a sum is over, at least."""

    @property
    def digest(self) -> bytes:
        """Of the roster."""
        return digest_of("roster", *self.roster)

    @property
    def fewest(self) -> int:
        """Sites that a sum is over, at least: two of them do not work with the server."""
        return max(self.smallest, self.colluding + 2)

    @property
    def salt(self) -> bytes:
        """The run, for keys that are derived."""
        return self.run.encode()


class SumMember(NamedTuple):
    """A site in a sum."""

    number: int
    """Of the site."""
    key_index: int
    """Of its keys; each are for one context."""
    pair_key: bytes
    """Public; makes the masks with each other site."""
    commitment: bytes
    """Digest of the secret that makes the site's own mask."""
    shares_digest: bytes
    """Of the sealed shares of both secrets."""
    signature: bytes
    """Of the site."""

    def signed_digest(self, session: Session) -> bytes:
        """Return what the site signs."""
        numbers = pack(self.number, self.key_index, session.threshold)
        texts = (self.pair_key, self.commitment, self.shares_digest)
        return digest_of("bundle", session.salt, session.digest, numbers, *texts)


class SumRequest(NamedTuple):
    """What a sum is of."""

    kind: str
    """Such as ``train``."""
    round: int
    attempt: int
    plan: bytes
    """Digest of the plan of the run."""
    layout: bytes
    """Digest of what is where in the vector."""
    shared: bytes
    """Digest of what all sites have received: see :func:`digest_of_download`."""


def digest_of_download(shared: bytes) -> bytes:
    """Return the digest of what all sites receive."""
    return digest_of("shared", shared)


def context_of(session: Session, request: SumRequest, cohort: Sequence[SumMember]) -> bytes:
    """Return the digest of everything that a sum is made under."""
    numbers = pack(request.round, request.attempt, session.threshold)
    members = b"".join(
        pack(member.number, member.key_index) + member.pair_key for member in _in_order(cohort)
    )
    return digest_of(
        "round",
        session.salt,
        session.digest,
        request.plan,
        request.kind.encode(),
        numbers,
        request.layout,
        request.shared,
        members,
    )


def masked_digest(session: Session, context: bytes) -> bytes:
    """Return what a site signs that has masked a vector for a sum."""
    return digest_of("masked", session.salt, session.digest, context)


def survivors_digest(session: Session, context: bytes, survivors: Iterable[int]) -> bytes:
    """Return what a site signs that agrees on who is in a sum."""
    numbers = pack(*sorted(survivors))
    return digest_of("survivors", session.salt, session.digest, context, numbers)


def channel_digest(session: Session, number: int, key: bytes) -> bytes:
    """Return what a site signs of the key under which others seal shares for it."""
    return digest_of("channel", session.salt, session.digest, pack(number), key)


def check_cohort(session: Session, cohort: Sequence[SumMember]) -> None:
    """Check that a cohort is large enough, and of different sites of the roster.

    Raises:
        RefusedError: it is not.
    """
    numbers = {member.number for member in cohort}
    if len(numbers) < len(cohort) or not numbers <= set(range(len(session.roster))):
        raise RefusedError("the sites of a sum must be different ones of the roster.")
    check_size(session, len(cohort))
    if len({member.pair_key for member in cohort}) < len(cohort):
        raise RefusedError("two sites of a sum have the same key.")


def check_survivors(
    session: Session, cohort: Sequence[SumMember], survivors: frozenset[int]
) -> None:
    """Check that enough members of a cohort are said to be in its sum, and nobody else.

    Raises:
        RefusedError: it is not so.
    """
    if not survivors <= {member.number for member in cohort}:
        raise RefusedError("somebody is said to be in a sum who was not asked.")
    check_size(session, len(survivors))


def check_size(session: Session, size: int) -> None:
    """Check that a sum is over enough sites.

    Raises:
        RefusedError: it is not.
    """
    if size < session.fewest:
        raise RefusedError(
            f"the server asks for a sum over {size} sites; it must be over {session.fewest} or "
            "more.",
            allowed=session.fewest,
            got=size,
        )


def check_signature(session: Session, member: SumMember) -> None:
    """Check that the keys of a member are those of its site.

    Raises:
        RefusedError: they are not.
    """
    point = session.roster[member.number]
    if not is_signed(point, member.signature, member.signed_digest(session)):
        raise RefusedError(f"the keys of site {member.number} are not signed by it.")


def write_cohort(cohort: Sequence[SumMember]) -> bytes:
    """Return the members of a sum as bytes."""
    parts = []
    for member in _in_order(cohort):
        fixed = _MEMBER.pack(*member[:-1], len(member.signature))
        parts.append(fixed + member.signature)
    return b"".join(parts)


def read_cohort(raw: bytes, session: Session) -> tuple[SumMember, ...]:
    """Return the members that :func:`write_cohort` wrote.

    Raises:
        RefusedError: the bytes are no cohort, or one of more sites than the roster has.
    """
    members: list[SumMember] = []
    start = 0
    while start < len(raw):
        if len(members) == len(session.roster):
            raise RefusedError("a sum is of more sites than the roster has.")
        member, start = read_member(raw, start)
        members.append(member)

    if members != _in_order(members):
        raise RefusedError("the sites of a sum are not in order.")
    return tuple(members)


def read_member(raw: bytes, start: int) -> tuple[SumMember, int]:
    """Return the member that begins at a place, and the place after it.

    Raises:
        RefusedError: there is none.
    """
    end = start + _MEMBER.size
    if end > len(raw):
        raise RefusedError("the keys of a site are cut off.")

    number, index, key, commitment, digest, length = _MEMBER.unpack(raw[start:end])
    signature = raw[end : end + length]
    if length > LONGEST_SIGNATURE or len(signature) < length:
        raise RefusedError("the signature of a site is cut off, or too long.")
    return SumMember(number, index, key, commitment, digest, signature), end + length


def _in_order(cohort: Sequence[SumMember]) -> list[SumMember]:
    return sorted(cohort, key=lambda member: member.number)


assert _MEMBER.size == 8 + 3 * DIGEST_BYTES + 2
