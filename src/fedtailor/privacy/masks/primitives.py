"""What masks are made of: digests, derived keys, key agreement, key streams, seals, signatures."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedtailor.core.errors import DataError

DIGEST_BYTES = 32
"""Bytes of a digest, a key and a secret."""
SEAL_BYTES = 16
"""Bytes by which a sealed text is longer."""
_LENGTH = 4
"""Bytes of the length of a text."""
_CHUNK = 2**17
"""Numbers of a key stream that are in memory at a time."""
_BLOCK = 64
"""Bytes that a buffer must have to spare."""
_SIGNATURE = ec.ECDSA(hashes.SHA384())


class RefusedError(DataError):
    """A request that no honest server or site makes, or that would tell more than a sum."""


def pack(*numbers: int) -> bytes:
    """Return numbers as 32-bit little-endian bytes."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def digest_of(tag: str, *parts: bytes) -> bytes:
    """Return the SHA-256 of parts under a tag; no other parts have the same text."""
    digest = hashlib.sha256(tag.encode() + b"\0")
    for part in parts:
        digest.update(pack(len(part)) + part)
    return digest.digest()


def derive(secret: bytes, salt: bytes, tag: str, *numbers: int, length: int = 32) -> bytes:
    """Return a key made of a secret (HKDF-SHA256)."""
    info = tag.encode() + b"\0" + pack(*numbers)
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key of a secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree_on_key(secret: bytes, public: bytes) -> bytes:
    """Return what the owners of two X25519 keys share.

    Raises:
        RefusedError: the public key is no key.
    """
    try:
        other = X25519PublicKey.from_public_bytes(public)
        return X25519PrivateKey.from_private_bytes(secret).exchange(other)
    except ValueError as error:
        # A point of low order would make a key that everybody knows.
        raise RefusedError("the key of a site is no key.") from error


def add_key_stream(vector: np.ndarray, key: bytes, *, sign: int) -> None:
    """Add the key stream of ChaCha20 to a vector, in place, or subtract it.

    Args:
        vector: (entries,), 64-bit whole numbers without a sign; they wrap around.
        key: 32 bytes, for one stream only: the nonce is 0.
        sign: 1 or -1.
    """
    change = np.add if sign > 0 else np.subtract
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    size = 8 * min(_CHUNK, len(vector))
    zeros = memoryview(bytes(size))
    buffer = bytearray(size + _BLOCK)

    # The whole stream would need as much memory as the vector.
    for start in range(0, len(vector), _CHUNK):
        part = vector[start : start + _CHUNK]
        stream.update_into(zeros[: 8 * len(part)], buffer)
        change(part, np.frombuffer(buffer, "<u8", len(part)), out=part)


def seal(key: bytes, index: int, text: bytes, about: bytes) -> bytes:
    """Return a text that only who has the key can read or make.

    Args:
        key: for one text with this index only.
        index: makes the nonce.
        text: what is sealed.
        about: what it belongs to; it is not sealed, and nothing else opens it.
    """
    return ChaCha20Poly1305(key).encrypt(_nonce(index), text, about)


def unseal(key: bytes, index: int, sealed: bytes, about: bytes) -> bytes | None:
    """Return the text of :func:`seal`; None if it was sealed otherwise, or changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(index), sealed, about)
    except (InvalidTag, ValueError):
        return None


def _nonce(index: int) -> bytes:
    return pack(index) + bytes(8)


def sign(identity: ec.EllipticCurvePrivateKey, digest: bytes) -> bytes:
    """Return a site's signature of a digest (ECDSA, SHA-384)."""
    return bytes(identity.sign(digest, _SIGNATURE))


def is_signed(point: bytes, signature: bytes, digest: bytes) -> bool:
    """Return whether the owner of a public key has signed a digest."""
    try:
        _key_of(point).verify(signature, digest, _SIGNATURE)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=1024)
def _key_of(point: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), point)


def join_texts(texts: Iterable[bytes]) -> bytes:
    """Return texts as one: each with its length before it."""
    return b"".join(pack(len(text)) + text for text in texts)


def split_texts(raw: bytes, *, most: int) -> list[bytes]:
    """Return the texts that :func:`join_texts` has joined.

    Args:
        raw: the bytes.
        most: how many texts there may be.

    Raises:
        RefusedError: the bytes are something else, or more texts.
    """
    texts: list[bytes] = []
    start = 0
    while start < len(raw):
        if len(texts) == most:
            raise RefusedError(f"there are more than {most} texts.")

        begin = start + _LENGTH
        start = begin + int.from_bytes(raw[start:begin], "little")
        if len(raw) < max(begin, start):
            raise RefusedError("a text is cut off.")
        texts.append(raw[begin:start])

    return texts
