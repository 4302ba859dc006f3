"""Secrets in shares, of which enough give the secret, and fewer nothing.

Source: Shamir, "How to share a secret", CACM 1979, over the integers modulo 2^256 + 297, a prime
above all secrets of 32 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
SHARE_BYTES = 33
_SECRET_BYTES = 32


def make_share(coefficients: Sequence[int], holder: int) -> bytes:
    """Return the share of a holder.

    Args:
        coefficients: of the polynomial; the first is the secret.
        holder: its number, from 0.
    """
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * (holder + 1) + coefficient) % PRIME
    return value.to_bytes(SHARE_BYTES, "little")


def weights_of(holders: Sequence[int]) -> dict[int, int]:
    """Return by what shares are multiplied, so that they add up to the secret."""
    weights = {}
    for holder in holders:
        above = 1
        below = 1
        for other in holders:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        weights[holder] = above * pow(below, -1, PRIME) % PRIME

    return weights


def combine(shares: Mapping[int, bytes], weights: Mapping[int, int]) -> bytes:
    """Return the secret of shares: any 32 bytes if they are too few, or one is wrong.

    Args:
        shares: by holder.
        weights: of :func:`weights_of`, for the holders whose shares count.
    """
    total = sum(
        int.from_bytes(shares[holder], "little") * weight for holder, weight in weights.items()
    )
    return (total % PRIME).to_bytes(SHARE_BYTES, "little")[:_SECRET_BYTES]
