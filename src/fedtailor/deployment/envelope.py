"""Messages between the server and a site: a JSON object and named blobs, as bytes or over a socket.

A frame is: the magic bytes, the version of the format, the length of the JSON text, that text with
the head and the names and lengths of the blobs, and the blobs. Only the standard library is
imported, because a new process handles every message of a site.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from fedtailor.core.errors import DataError

MAGIC = b"FTEN"
VERSION = 1
LARGEST_HEAD = 8 * 1024**2
"""Bytes of the JSON text of a frame."""
MOST_BLOBS = 64
LARGEST_FRAME = 2 * 1024**3 - 1
"""Bytes of a whole frame, and so of one blob. Flower's protobuf messages end there too."""

_PREFIX = struct.Struct("<4sII")
_CHUNK = 1024**2
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)


class Envelope(NamedTuple):
    """A message: what it is about, and its payload."""

    head: dict[str, Any]
    """A JSON object: text keys; numbers are finite."""
    blobs: Mapping[str, bytes] = {}
    """Payload by name. A name has 1 to 100 letters, digits and ``_ . -``."""


def to_bytes(envelope: Envelope) -> bytes:
    """Return a message as one frame.

    Raises:
        DataError: the head is not JSON, or a limit is exceeded.
    """
    return b"".join([_start(envelope), *envelope.blobs.values()])


def from_bytes(frame: bytes) -> Envelope:
    """Return the message of a frame.

    Raises:
        DataError: the frame is damaged, or a limit is exceeded.
    """
    length = _read_prefix(frame[: _PREFIX.size])
    start = _PREFIX.size + length
    if start > len(frame):
        raise DataError(
            f"a message ends in its head: {start} bytes announced, {len(frame)} received"
        )

    head, sizes = _read_text(frame[_PREFIX.size : start], LARGEST_FRAME)
    announced = start + sum(sizes.values())
    if announced != len(frame):
        raise DataError(
            f"a message has the wrong length: {announced} bytes announced, {len(frame)} received"
        )

    blobs = {}
    for name, size in sizes.items():
        blobs[name] = frame[start : start + size]
        start += size

    return Envelope(head, blobs)


def send(connection: socket.socket, envelope: Envelope) -> None:
    """Write a message to a stream socket.

    Raises:
        DataError: the head is not JSON, or a limit is exceeded; nothing was written.
        OSError: the connection broke, or a time limit of the socket passed.
    """
    connection.sendall(_start(envelope))
    for blob in envelope.blobs.values():
        connection.sendall(blob)


def receive(connection: socket.socket, limit: int = LARGEST_FRAME) -> Envelope:
    """Read one message from a stream socket. Memory grows with what has arrived, not with what is
    announced.

    Args:
        connection: a connected stream socket.
        limit: the largest frame to accept, in bytes.

    Raises:
        DataError: the message is damaged, or a limit is exceeded.
        ConnectionError: the other side closed the connection before the end of the message.
        OSError: the connection broke, or a time limit of the socket passed.
    """
    length = _read_prefix(_read(connection, _PREFIX.size))
    head, sizes = _read_text(_read(connection, length), limit)
    blobs = {name: _read(connection, size) for name, size in sizes.items()}
    return Envelope(head, blobs)


def head_to_text(head: Mapping[str, Any]) -> str:
    """Return a head as JSON text.

    Raises:
        DataError: it is not a JSON object with text keys and finite numbers, or it is too large.
    """
    if not isinstance(head, dict):
        raise DataError(
            f"the head of a message must be a dict, got {type(head).__name__}", key="head"
        )
    return _to_json(head)


def head_from_text(text: str) -> dict[str, Any]:
    """Return the head that a JSON text holds.

    Raises:
        DataError: the text is not a JSON object, is too large, or names a key twice.
    """
    if len(text) > LARGEST_HEAD:
        raise DataError(
            f"the head of a message is too large: {len(text)} characters, at most {LARGEST_HEAD}"
        )

    value = _from_json(text)
    if not isinstance(value, dict):
        raise DataError(
            f"the head of a message must be a JSON object, got {type(value).__name__}", key="head"
        )

    return value


def check(envelope: Envelope) -> None:
    """Check that a message can be sent.

    Raises:
        DataError: the head is not JSON, or a limit is exceeded.
    """
    _start(envelope)


def check_blob(name: object, size: object) -> None:
    """Check the name and the size of a blob.

    Raises:
        DataError: the name has other characters, or the size is not from 0 to ``LARGEST_FRAME``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DataError(
            "a blob's name must have 1 to 100 letters, digits and _ . -",
            key="blobs",
            got=repr(name)[:100],
        )

    if type(size) is not int or not 0 <= size <= LARGEST_FRAME:
        raise DataError(
            f"a blob's size must be from 0 to {LARGEST_FRAME} bytes", key=name, got=repr(size)[:100]
        )


def _start(envelope: Envelope) -> bytes:
    """Return a frame without its blobs."""
    head = envelope.head
    if not isinstance(head, dict):
        raise DataError(
            f"the head of a message must be a dict, got {type(head).__name__}", key="head"
        )

    for name, blob in envelope.blobs.items():
        check_blob(name, len(blob))

    sizes = [[name, len(blob)] for name, blob in envelope.blobs.items()]
    _check_limits(sizes, LARGEST_FRAME)
    text = _to_json({"head": head, "blobs": sizes}).encode()
    return _PREFIX.pack(MAGIC, VERSION, len(text)) + text


def _read_prefix(prefix: bytes) -> int:
    """Return the length of the JSON text."""
    if len(prefix) < _PREFIX.size:
        raise DataError(f"a message ends in its first {_PREFIX.size} bytes")

    magic, version, length = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise DataError(
            "this is not a message of fedtailor: its first bytes differ",
            allowed=MAGIC,
            got=repr(magic),
        )

    if version != VERSION:
        raise DataError(
            "the message has another version of the format", allowed=VERSION, got=version
        )

    if length > LARGEST_HEAD:
        raise DataError(
            f"the head of a message is too large: {length} bytes, at most {LARGEST_HEAD}"
        )

    return int(length)


def _read_text(text: bytes, limit: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the head, and the sizes of the blobs by name."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise DataError("the head of a message is not UTF-8 text") from error

    value = _from_json(decoded)
    if not isinstance(value, dict) or set(value) != {"head", "blobs"}:
        raise DataError("a message must have a head and blobs")

    head = value["head"]
    sizes = value["blobs"]
    if not isinstance(head, dict):
        raise DataError(
            f"the head of a message must be a JSON object, got {type(head).__name__}", key="head"
        )

    if not isinstance(sizes, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in sizes
    ):
        raise DataError("the blobs of a message must be pairs of a name and a size", key="blobs")

    for name, size in sizes:
        check_blob(name, size)

    if len({name for name, _ in sizes}) != len(sizes):
        raise DataError("a message names a blob twice", key="blobs")

    _check_limits(sizes, limit - len(text) - _PREFIX.size)
    return head, dict(sizes)


def _check_limits(sizes: list[list[Any]], limit: int) -> None:
    if len(sizes) > MOST_BLOBS:
        raise DataError(
            f"a message has too many blobs: {len(sizes)}, at most {MOST_BLOBS}", key="blobs"
        )

    total = sum(size for _, size in sizes)
    if total > limit:
        raise DataError(
            f"a message is too large: {total} bytes of blobs, at most {limit}", key="blobs"
        )


def _to_json(value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"the head of a message must be JSON: {error}", key="head") from error

    if len(text) > LARGEST_HEAD:
        raise DataError(
            f"the head of a message is too large: {len(text)} bytes, at most {LARGEST_HEAD}",
            key="head",
        )

    return text


def _from_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the head of a message is not JSON: {error}", key="head") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _read(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(_CHUNK, size - len(received)))
        if not chunk:
            raise ConnectionError(
                f"the connection was closed after {len(received)} of {size} bytes"
            )

        received += chunk

    return bytes(received)
