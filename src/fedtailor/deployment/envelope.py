"""Messages between the server and a site: a JSON object and named blobs, and how a socket has them.

A frame is: the magic bytes, the version of the format, the length of the JSON text, that text with
the head and the names and lengths of the blobs, and the blobs. Only the standard library is
imported, because a new process handles every message of a site.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Mapping, Sequence
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


def send(connection: socket.socket, envelope: Envelope) -> None:
    """Write a message to a stream socket.

    Raises:
        DataError: the head is not JSON, or a limit is exceeded; nothing was written.
        OSError: the connection broke, or a time limit of the socket passed.
    """
    connection.sendall(check(envelope))
    for blob in envelope.blobs.values():
        connection.sendall(blob)


def receive(connection: socket.socket) -> Envelope:
    """Read one message from a stream socket.

    Memory grows with what has arrived, not with what is announced.

    Raises:
        DataError: the message is damaged, or a limit is exceeded.
        ConnectionError: the other side closed the connection before the end of the message.
        OSError: the connection broke, or a time limit of the socket passed.
    """
    length = _text_length(_read(connection, _PREFIX.size))
    try:
        text = _read(connection, length).decode()
    except UnicodeDecodeError as error:
        raise DataError("the head of a message is not UTF-8 text") from error

    head, sizes = _parse(text)
    blobs = {name: _read(connection, size) for name, size in sizes.items()}
    return Envelope(head, blobs)


def head_to_text(head: Mapping[str, Any]) -> str:
    """Return a head as JSON text.

    Raises:
        DataError: it is not a JSON object with text keys and finite numbers, or it is too large.
    """
    _check_object(head)
    return _to_json(head)


def head_from_text(text: str) -> dict[str, Any]:
    """Return the head that a JSON text holds.

    Raises:
        DataError: the text is not a JSON object, is too large, or names a key twice.
    """
    if len(text) > LARGEST_HEAD:
        raise _too_large(len(text))
    return _check_object(_from_json(text))


def check(envelope: Envelope) -> bytes:
    """Check that a message can be sent, and return its frame without the blobs.

    Raises:
        DataError: the head is not JSON, or a limit is exceeded.
    """
    _check_object(envelope.head)
    sizes = [[name, len(blob)] for name, blob in envelope.blobs.items()]
    _check_blobs(sizes)
    text = _to_json({"head": envelope.head, "blobs": sizes}).encode()
    return _PREFIX.pack(MAGIC, VERSION, len(text)) + text


def check_blob(name: object, size: object) -> None:
    """Check the name and the size of a blob.

    Raises:
        DataError: the name has other characters, or the size is not from 0 to ``LARGEST_FRAME``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = "a blob's name must have 1 to 100 letters, digits and _ . -"
        raise DataError(message, key="blobs", got=repr(name)[:100])

    if type(size) is not int or not 0 <= size <= LARGEST_FRAME:
        message = f"a blob's size must be from 0 to {LARGEST_FRAME} bytes"
        raise DataError(message, key=name, got=repr(size)[:100])


def _text_length(prefix: bytes) -> int:
    """Return the length of the JSON text that a prefix announces."""
    magic, version, length = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        message = "this is not a message of fedtailor: its first bytes differ"
        raise DataError(message, allowed=MAGIC, got=repr(magic))
    if version != VERSION:
        message = "the message has another version of the format"
        raise DataError(message, allowed=VERSION, got=version)
    if length > LARGEST_HEAD:
        raise _too_large(length)
    return int(length)


def _parse(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the head, and the sizes of the blobs by name."""
    value = _from_json(text)
    if not isinstance(value, dict) or set(value) != {"head", "blobs"}:
        raise DataError("a message must have a head and blobs")

    sizes = value["blobs"]
    are_pairs = isinstance(sizes, list) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in sizes
    )
    if not are_pairs:
        raise DataError("the blobs of a message must be pairs of a name and a size", key="blobs")

    _check_blobs(sizes)
    return _check_object(value["head"]), dict(sizes)


def _check_object(head: Any) -> dict[str, Any]:
    if not isinstance(head, dict):
        got = type(head).__name__
        raise DataError(f"the head of a message must be an object, got {got}", key="head")
    return head


def _check_blobs(sizes: Sequence[Sequence[Any]]) -> None:
    """Check the pairs of name and size of all blobs of a message."""
    for name, size in sizes:
        check_blob(name, size)

    total = sum(size for _, size in sizes)
    if len({name for name, _ in sizes}) != len(sizes):
        raise DataError("a message names a blob twice", key="blobs")
    if len(sizes) > MOST_BLOBS:
        message = f"a message has too many blobs: {len(sizes)}, at most {MOST_BLOBS}"
        raise DataError(message, key="blobs")
    if total > LARGEST_FRAME:
        message = f"a message is too large: {total} bytes of blobs, at most {LARGEST_FRAME}"
        raise DataError(message, key="blobs")


def _to_json(value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"the head of a message must be JSON: {error}", key="head") from error
    if len(text) > LARGEST_HEAD:
        raise _too_large(len(text))
    return text


def _from_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the head of a message is not JSON: {error}", key="head") from error


def _too_large(size: int) -> DataError:
    message = f"the head of a message is too large: {size} bytes, at most {LARGEST_HEAD}"
    return DataError(message, key="head")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key appears twice")
    return values


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _read(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(_CHUNK, size - len(received)))
        if not chunk:
            progress = f"{len(received)} of {size} bytes"
            raise ConnectionError(f"the connection was closed after {progress}")

        received += chunk

    return bytes(received)
