"""The keys of one site: all are derived from one secret, so that repeats give the same bits.

A *bundle* is what a site makes in advance for one sum: its keys, signed, and the shares of their
secrets, sealed for every other site. The server keeps it and shows a holder its sealed shares only
with the request to open the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedtailor.privacy.masks.primitives import (
    SEAL_BYTES,
    RefusedError,
    agree_on_key,
    derive,
    digest_of,
    is_signed,
    pack,
    public_key,
    seal,
    sign,
    unseal,
)
from fedtailor.privacy.masks.session import (
    Session,
    SumMember,
    channel_digest,
    check_signature,
    read_member,
    write_cohort,
)
from fedtailor.privacy.masks.shares import PRIME, SHARE_BYTES, make_share

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
"""Bytes of the sealed shares of one site for another."""
_PROBE = bytes(range(1, 33))
"""A secret with which a key is tried."""


class Channel(NamedTuple):
    """The key under which others seal shares for a site."""

    key: bytes
    """Public."""
    signature: bytes
    """Of the site."""


class Shares(NamedTuple):
    """What a holder has of the two secrets of a bundle."""

    pair: bytes
    """Of the secret that makes the masks with each other site."""
    own: bytes
    """Of the secret that makes the site's own mask."""


class Bundle(NamedTuple):
    """What a site makes in advance for one sum."""

    member: SumMember
    sealed: tuple[bytes, ...]
    """The sealed shares by holder; empty for the site itself."""


class SiteKeys:
    """The keys of one site in one run."""

    def __init__(
        self, session: Session, number: int, identity: EllipticCurvePrivateKey, master: bytes
    ) -> None:
        """Use a secret of this site and run.

        Args:
            session: the run.
            number: of the site.
            identity: its private key; the roster has the public one.
            master: 32 random bytes, which never leave the site.
        """
        self._session = session
        self._number = number
        self._identity = identity
        self._master = master
        self._seals: dict[int, bytes] = {}

    def channel(self) -> Channel:
        """Return the key under which others seal shares for this site."""
        key = public_key(self._channel_secret())
        digest = channel_digest(self._session, self._number, key)
        return Channel(key, sign(self._identity, digest))

    def pair_secret(self, index: int) -> bytes:
        """Return the secret that makes the masks with each other site."""
        return self._derive("pair", index)

    def own_secret(self, index: int) -> bytes:
        """Return the secret that makes the site's own mask."""
        return self._derive("self", index)

    def bundle(self, index: int, channels: Sequence[bytes]) -> Bundle:
        """Make the keys of one sum.

        Args:
            index: its number; each is for one sum.
            channels: the checked channel keys of all sites.
        """
        session = self._session
        sealed = tuple(
            self._sealed(index, holder, shares, channels)
            for holder, shares in enumerate(self.shares_for(index, range(len(session.roster))))
        )
        member = SumMember(
            self._number,
            index,
            pair_key=public_key(self.pair_secret(index)),
            commitment=digest_of("commit", self.own_secret(index)),
            shares_digest=digest_of("shares", *sealed),
            signature=b"",
        )
        signature = sign(self._identity, member.signed_digest(session))
        return Bundle(member._replace(signature=signature), sealed)

    def shares_for(self, index: int, holders: Iterable[int]) -> list[Shares]:
        """Return what holders have of this site's secrets."""
        pair = self._coefficients(self.pair_secret(index), index, 0)
        own = self._coefficients(self.own_secret(index), index, 1)
        return [Shares(make_share(pair, holder), make_share(own, holder)) for holder in holders]

    def _coefficients(self, secret: bytes, index: int, kind: int) -> list[int]:
        """Return the polynomial of one of the two secrets."""
        coefficients = [int.from_bytes(secret, "little")]

        # Random numbers below the prime: 64 bytes are reduced without a bias that matters.
        for degree in range(1, self._session.threshold):
            raw = self._derive("share", index, kind, degree, length=64)
            coefficients.append(int.from_bytes(raw, "little") % PRIME)

        return coefficients

    def unseal_shares(
        self, member: SumMember, sealed: bytes, channels: Sequence[bytes]
    ) -> Shares | None:
        """Return what this site holds of another's secrets; None if the seal is broken."""
        key = self._seal_key(member.number, self._number, channels)
        about = _about_shares(self._session, member.number, self._number, member.key_index)
        text = unseal(key, member.key_index, sealed, about)
        if text is None or len(text) != 2 * SHARE_BYTES:
            return None
        return Shares(text[:SHARE_BYTES], text[SHARE_BYTES:])

    def sign(self, digest: bytes) -> bytes:
        """Return this site's signature of a digest."""
        return sign(self._identity, digest)

    def _sealed(self, index: int, holder: int, shares: Shares, channels: Sequence[bytes]) -> bytes:
        if holder == self._number:
            return b""

        key = self._seal_key(self._number, holder, channels)
        about = _about_shares(self._session, self._number, holder, index)
        return seal(key, index, shares.pair + shares.own, about)

    def _seal_key(self, maker: int, holder: int, channels: Sequence[bytes]) -> bytes:
        """Return the key between two sites, of which this is one."""
        other = holder if maker == self._number else maker
        if other not in self._seals:
            self._seals[other] = agree_on_key(self._channel_secret(), channels[other])
        return derive(self._seals[other], self._session.salt, "seal", maker, holder)

    def _channel_secret(self) -> bytes:
        return self._derive("channel")

    def _derive(self, tag: str, *numbers: int, length: int = 32) -> bytes:
        return derive(self._master, self._session.salt, tag, *numbers, length=length)


def check_channels(session: Session, channels: Sequence[Channel]) -> None:
    """Check the channel keys of all sites.

    Raises:
        RefusedError: one is not signed by its site, or two are the same.
    """
    if len(channels) != len(session.roster):
        raise RefusedError("there must be a channel key of every site of the roster.")

    for number, channel in enumerate(channels):
        check_channel(session, number, channel)
    if len({channel.key for channel in channels}) < len(channels):
        raise RefusedError("two sites have the same channel key.")


def check_channel(session: Session, number: int, channel: Channel) -> None:
    """Check the channel key of a site.

    Raises:
        RefusedError: it is no key, or not signed by the site.
    """
    digest = channel_digest(session, number, channel.key)
    if not is_signed(session.roster[number], channel.signature, digest):
        raise RefusedError(f"the channel key of site {number} is not signed by it.")
    agree_on_key(_PROBE, channel.key)


def check_bundle(session: Session, bundle: Bundle) -> None:
    """Check what a site has made for a sum, as far as a server can.

    Raises:
        RefusedError: it is not signed by the site, or what is signed is something else.
    """
    member = bundle.member
    check_signature(session, member)
    if digest_of("shares", *bundle.sealed) != member.shares_digest:
        raise RefusedError(f"the sealed shares of site {member.number} are not those it signed.")

    # Other sites would refuse a sum with such a key.
    agree_on_key(_PROBE, member.pair_key)


def write_bundles(bundles: Sequence[Bundle]) -> bytes:
    """Return bundles of one site as bytes."""
    parts = []
    for bundle in bundles:
        parts.append(write_cohort([bundle.member]))
        parts.extend(bundle.sealed)
    return b"".join(parts)


def read_bundles(raw: bytes, session: Session, number: int, indices: range) -> list[Bundle]:
    """Return the bundles that a site has made, checked.

    Args:
        raw: of :func:`write_bundles`.
        session: the run.
        number: of the site.
        indices: of the bundles that were asked for.

    Raises:
        RefusedError: they are not these bundles of this site.
    """
    bundles = []
    start = 0
    for index in indices:
        member, start = read_member(raw, start)
        if (member.number, member.key_index) != (number, index):
            raise RefusedError(f"site {number} has sent other keys than those it was asked for.")

        sealed = []
        for holder in range(len(session.roster)):
            size = 0 if holder == number else SEALED_BYTES
            sealed.append(raw[start : start + size])
            start += size

        bundle = Bundle(member, tuple(sealed))
        check_bundle(session, bundle)
        bundles.append(bundle)

    if start != len(raw):
        raise RefusedError(f"site {number} has sent more keys than it was asked for.")
    return bundles


def _about_shares(session: Session, maker: int, holder: int, index: int) -> bytes:
    return digest_of("sealed", session.salt, session.digest, pack(maker, holder, index))
