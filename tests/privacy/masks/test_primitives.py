"""Digests, keys, streams and shares against published and independent values."""

import hashlib
import hmac
from itertools import combinations

import numpy as np
import pytest

from fedtailor.privacy.masks.primitives import (
    RefusedError,
    add_key_stream,
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
from fedtailor.privacy.masks.shares import combine, make_share, weights_of
from masked_world import IDENTITIES, POINTS


def test_the_key_stream_is_that_of_rfc_8439():
    vector = np.zeros(4, dtype="<u8")
    add_key_stream(vector, bytes(32), sign=1)

    # Test vector 1 of appendix A.1.
    stream = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert vector.tobytes().hex() == stream


def test_a_long_stream_goes_on_from_chunk_to_chunk():
    whole = np.zeros(2**17 + 5, dtype="<u8")
    add_key_stream(whole, bytes(range(32)), sign=1)
    start = np.zeros(2**17, dtype="<u8")
    add_key_stream(start, bytes(range(32)), sign=1)

    assert (whole[: 2**17] == start).all()
    assert (whole[2**17 :] != whole[:5]).all()
    add_key_stream(whole, bytes(range(32)), sign=-1)
    assert not whole.any()


def test_key_agreement_is_that_of_rfc_7748():
    # Section 5.2.
    secret = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    public = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    shared = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"

    assert agree_on_key(secret, public).hex() == shared
    assert agree_on_key(secret, public_key(public)) == agree_on_key(public, public_key(secret))


def test_derived_keys_are_those_of_hkdf():
    salt = b"run"
    info = b"tag\0" + pack(3, 4)
    middle = hmac.digest(salt, b"secret", "sha256")
    first = hmac.digest(middle, info + b"\1", "sha256")
    second = hmac.digest(middle, first + info + b"\2", "sha256")

    assert derive(b"secret", salt, "tag", 3, 4, length=64) == first + second
    assert digest_of("tag", b"ab") == hashlib.sha256(b"tag\0" + pack(2) + b"ab").digest()
    assert digest_of("tag", b"a", b"b") != digest_of("tag", b"ab")


def test_a_key_of_low_order_is_refused():
    with pytest.raises(RefusedError, match="no key"):
        agree_on_key(bytes(range(32)), bytes(32))
    with pytest.raises(RefusedError, match="no key"):
        agree_on_key(bytes(range(32)), b"short")


def test_a_seal_opens_for_its_index_and_purpose_only():
    key = bytes(range(32))
    sealed = seal(key, 7, b"text", b"about")

    assert unseal(key, 7, sealed, b"about") == b"text"
    assert unseal(key, 8, sealed, b"about") is None
    assert unseal(key, 7, sealed, b"other") is None
    assert unseal(key, 7, sealed[:-1] + b"x", b"about") is None
    assert unseal(key, 7, b"", b"about") is None


def test_a_signature_is_of_one_site_and_one_digest():
    signature = sign(IDENTITIES[0], b"digest")

    assert is_signed(POINTS[0], signature, b"digest")
    assert not is_signed(POINTS[1], signature, b"digest")
    assert not is_signed(POINTS[0], signature, b"other")
    assert not is_signed(POINTS[0], b"", b"digest")
    assert not is_signed(b"no point", signature, b"digest")


def test_any_three_of_five_shares_give_the_secret_and_two_do_not():
    secret = bytes(range(200, 232))
    coefficients = [int.from_bytes(secret, "little"), 2**255 + 5, 3**150]
    shares = {holder: make_share(coefficients, holder) for holder in range(5)}

    for count in range(3, 6):
        for holders in combinations(range(5), count):
            assert combine(shares, weights_of(holders)) == secret
    for holders in combinations(range(5), 2):
        assert combine(shares, weights_of(holders)) != secret
