"""A site in the sums of a run: it masks, agrees on who is in a sum, and opens one sum at most."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedtailor.privacy.masks.journal import Journal
from fedtailor.privacy.masks.keys import (
    Bundle,
    Channel,
    Shares,
    SiteKeys,
    check_channels,
)
from fedtailor.privacy.masks.primitives import (
    RefusedError,
    add_key_stream,
    agree_on_key,
    derive,
    is_signed,
    public_key,
)
from fedtailor.privacy.masks.session import (
    Session,
    SumMember,
    SumRequest,
    check_cohort,
    check_signature,
    check_survivors,
    context_of,
    masked_digest,
    survivors_digest,
)

MOST_ATTEMPTS = 3
"""Attempts at a round that a site masks."""


class MaskingSite:
    """What a site does in sums. Every step is in the journal before its answer is returned."""

    def __init__(self, session: Session, number: int, keys: SiteKeys, journal: Journal) -> None:
        """Take part in a run.

        Args:
            session: the run, as this site has agreed to it: the roster that it trusts, and the
                smallest sum and the colluding sites that it allows.
            number: of this site.
            keys: of this site.
            journal: what it has done before.
        """
        self._session = session
        self._number = number
        self._keys = keys
        self._journal = journal
        self._checked: set[SumMember] = set()
        """Members whose signatures are right."""

    def learn_channels(self, channels: Sequence[Channel]) -> None:
        """Learn under which keys shares are sealed for the other sites; they never change.

        Raises:
            RefusedError: a key is not that of its site, or others were learned before.
        """
        check_channels(self._session, channels)
        keys = [channel.key for channel in channels]
        if keys[self._number] != self._keys.channel().key:
            raise RefusedError(
                "this site has other keys than when the run began: it takes part in sums again in "
                "the next run."
            )
        if not self._journal.channels:
            self._journal.note_channels(keys)
        elif self._journal.channels != keys:
            raise RefusedError("the server has sent other channel keys before.")

    def bundles(self, indices: Iterable[int]) -> list[Bundle]:
        """Make the keys of sums to come.

        Raises:
            RefusedError: the channel keys are not known.
        """
        return [self._keys.bundle(index, self._channels()) for index in indices]

    def mask(
        self, request: SumRequest, cohort: Sequence[SumMember], vector: np.ndarray
    ) -> np.ndarray:
        """Return a vector under masks; a repeated request gets the same bits.

        Args:
            request: what the sum is of.
            cohort: all members, with this site.
            vector: (entries,), 64-bit whole numbers without a sign. It stays as it is.

        Raises:
            RefusedError: the sum could tell more than a sum, or contradicts an earlier answer.
            RunError: the journal cannot be written.
        """
        self.allow(request, cohort)
        return self._masked(request, cohort, vector)

    def allow(self, request: SumRequest, cohort: Sequence[SumMember]) -> None:
        """Check a request to mask, and note that it was answered.

        Raises:
            RefusedError: as :meth:`mask`.
            RunError: the journal cannot be written.
        """
        check_cohort(self._session, cohort)
        mine = self._my_keys(cohort)
        self._check_signatures(cohort)

        context = context_of(self._session, request, cohort)
        journal = self._journal
        if journal.masked.get(mine.key_index, context) != context:
            raise RefusedError("the keys of this site were used for another sum.")
        self._check_answered(request, context)
        self._check_order(request)
        if self._number not in journal.settled.get(context, {self._number}):
            raise RefusedError("this sum was closed without this site.")
        if journal.opened_rounds.get((request.kind, request.round), context) != context:
            raise RefusedError(f"a sum of round {request.round} was opened already.")

        if mine.key_index not in journal.masked:
            journal.note("mask", request, context, index=mine.key_index)

    def confirm(self, request: SumRequest, cohort: Sequence[SumMember]) -> bytes:
        """Return a signature that this site has masked a vector for a sum.

        Other sites open its own mask in no other sum. Without that, a server could have it masked
        for a sum that nobody else knows, and then opened in another one.

        Raises:
            RefusedError: it has not.
        """
        context = context_of(self._session, request, cohort)
        if context not in self._journal.vectors:
            raise RefusedError("this site has masked no vector for this sum.")
        return self._keys.sign(masked_digest(self._session, context))

    def agree(
        self, request: SumRequest, cohort: Sequence[SumMember], survivors: frozenset[int]
    ) -> bytes:
        """Return a signature of who is in a sum; a site agrees to one such set only.

        Raises:
            RefusedError: this site has settled on another set, or the set cannot be right.
            RunError: the journal cannot be written.
        """
        context = self._context(request, cohort, survivors)
        self._settle(request, context, survivors)
        return self._keys.sign(survivors_digest(self._session, context, survivors))

    def open(
        self,
        request: SumRequest,
        cohort: Sequence[SumMember],
        survivors: frozenset[int],
        sealed: Mapping[int, bytes],
        confirmed: Mapping[int, bytes],
        agreed: Mapping[int, bytes],
    ) -> dict[int, bytes | None]:
        """Return this site's shares of what opens a sum.

        Args:
            request: what the sum is of.
            cohort: all members.
            survivors: those who have sent a vector.
            sealed: this site's sealed shares, by member.
            confirmed: signatures of the survivors that they have masked for this sum.
            agreed: signatures of sites that agree on the survivors, if members are missing.

        Returns:
            By member: the share of the own mask of a survivor, or of the masks of pairs of who is
            missing; None if its seal is broken.

        Raises:
            RefusedError: sites do not agree, or this would open two sums.
            RunError: the journal cannot be written.
        """
        context = self._context(request, cohort, survivors)
        self._check_signatures(cohort)
        self._check_confirmed(context, survivors, confirmed)
        if len(survivors) < len(cohort):
            self._check_agreed(context, survivors, agreed)
        self._settle(request, context, survivors)

        wanted = {member: member.number in survivors for member in cohort}
        self._check_opened(request, context, wanted)
        shares = {member: self._shares_of(member, sealed) for member in cohort}
        rows = [[member.number, member.key_index, is_own] for member, is_own in wanted.items()]
        self._journal.note("open", request, context, shares=rows)
        return {
            member.number: _pick(share, is_own=wanted[member]) for member, share in shares.items()
        }

    def _masked(
        self, request: SumRequest, cohort: Sequence[SumMember], vector: np.ndarray
    ) -> np.ndarray:
        context = context_of(self._session, request, cohort)
        index = self._my_keys(cohort).key_index
        masked = vector.astype("<u8")

        # Two vectors under the same masks would tell their difference.
        digest = hashlib.sha256(masked.data).hexdigest()
        if self._journal.vectors.get(context, digest) != digest:
            raise RefusedError("this site has masked another vector for this sum.")
        if context not in self._journal.vectors:
            self._journal.note("vector", request, context, sha256=digest)

        own = derive(self._keys.own_secret(index), context, "self", self._number)
        add_key_stream(masked, own, sign=1)

        # What the lower number adds, the higher one subtracts.
        secret = self._keys.pair_secret(index)
        for member in cohort:
            if member.number != self._number:
                key = pair_stream_key(secret, self._number, member, context)
                add_key_stream(masked, key, sign=1 if self._number < member.number else -1)

        return masked

    def _context(
        self, request: SumRequest, cohort: Sequence[SumMember], survivors: frozenset[int]
    ) -> bytes:
        """Return the context of a sum if it can be one."""
        check_cohort(self._session, cohort)
        check_survivors(self._session, cohort, survivors)
        return context_of(self._session, request, cohort)

    def _settle(self, request: SumRequest, context: bytes, survivors: frozenset[int]) -> None:
        """Settle on who is in a sum, for ever."""
        journal = self._journal
        self._check_answered(request, context)
        if self._number in survivors and context not in journal.vectors:
            raise RefusedError("this site is said to have answered, and has not.")
        if journal.settled.get(context, survivors) != survivors:
            raise RefusedError(
                f"the server asks to open two different sums of round {request.round}: tell the "
                "others."
            )

        if context not in journal.settled:
            journal.note("settle", request, context, survivors=sorted(survivors))

    def _check_opened(
        self, request: SumRequest, context: bytes, wanted: Mapping[SumMember, bool]
    ) -> None:
        """Check that this opens one share of each bundle, ever, and one sum of a round."""
        journal = self._journal
        for member, is_own in wanted.items():
            share = (context, is_own)
            if journal.opened.get((member.number, member.key_index), share) != share:
                raise RefusedError(
                    f"the keys of site {member.number} were opened for something else."
                )
        if journal.opened_rounds.get((request.kind, request.round), context) != context:
            raise RefusedError(f"another sum of round {request.round} was opened already.")

    def _check_answered(self, request: SumRequest, context: bytes) -> None:
        """Check that an attempt has one context, and that there are few attempts."""
        attempts = self._journal.answered.get((request.kind, request.round), {})
        if attempts.get(request.attempt, context) != context:
            raise RefusedError(
                f"round {request.round} was answered with other sites, or another plan or model."
            )
        if request.attempt not in attempts and len(attempts) >= MOST_ATTEMPTS:
            raise RefusedError(f"round {request.round} was tried {MOST_ATTEMPTS} times.")

    def _check_order(self, request: SumRequest) -> None:
        rounds = [round for kind, round in self._journal.answered if kind == request.kind]
        if rounds and request.round < max(rounds):
            raise RefusedError(f"round {request.round} is over.")

    def _check_signatures(self, cohort: Sequence[SumMember]) -> None:
        for member in cohort:
            if member not in self._checked:
                check_signature(self._session, member)
                self._checked.add(member)

    def _check_confirmed(
        self, context: bytes, survivors: frozenset[int], confirmed: Mapping[int, bytes]
    ) -> None:
        """Check that every survivor has signed that it masked for this sum."""
        digest = masked_digest(self._session, context)
        for number in sorted(survivors):
            point = self._session.roster[number]
            if not is_signed(point, confirmed.get(number, b""), digest):
                raise RefusedError(f"site {number} has not confirmed that it is in this sum.")

    def _check_agreed(
        self, context: bytes, survivors: frozenset[int], agreed: Mapping[int, bytes]
    ) -> None:
        """Check that enough sites have signed who is in a sum."""
        session = self._session
        digest = survivors_digest(session, context, survivors)
        right = [
            number
            for number, signature in agreed.items()
            if 0 <= number < len(session.roster)
            and is_signed(session.roster[number], signature, digest)
        ]
        if len(right) < session.threshold:
            raise RefusedError(
                f"{len(right)} sites agree on who is in this sum, and {session.threshold} must."
            )

    def _my_keys(self, cohort: Sequence[SumMember]) -> SumMember:
        """Return this site's own entry, which must have its own keys."""
        mine = next((member for member in cohort if member.number == self._number), None)
        if mine is None or mine.pair_key != public_key(self._keys.pair_secret(mine.key_index)):
            raise RefusedError("the sites of a sum do not have this site with its own keys.")
        return mine

    def _shares_of(self, member: SumMember, sealed: Mapping[int, bytes]) -> Shares | None:
        if member.number == self._number:
            return self._keys.shares_for(member.key_index, [self._number])[0]

        text = sealed.get(member.number, b"")
        return self._keys.unseal_shares(member, text, self._channels())

    def _channels(self) -> list[bytes]:
        if not self._journal.channels:
            raise RefusedError("the channel keys of the sites are not known.")
        return self._journal.channels


def pair_stream_key(secret: bytes, number: int, other: SumMember, context: bytes) -> bytes:
    """Return the key of the mask between a site, whose secret this is, and another."""
    first, second = sorted((number, other.number))
    return derive(agree_on_key(secret, other.pair_key), context, "pair", first, second)


def _pick(shares: Shares | None, *, is_own: bool) -> bytes | None:
    if shares is None:
        return None
    return shares.own if is_own else shares.pair
