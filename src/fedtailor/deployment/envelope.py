"""Messages between the server and a site: a JSON object and named blobs, and how a socket has them.

A frame is: the length of the JSON text, that text with the head and the sizes of the blobs by name,
and the blobs. Only the standard library is imported, because a new process handles every message of
a site.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedtailor.core.errors import DataError, one_line
from fedtailor.core.reading import most_values, strict_json
from fedtailor.deployment.limits import LARGEST_FRAME, LARGEST_HEAD, LONGEST_TEXT, MOST_HEAD_VALUES

_PREFIX = struct.Struct("<I")
_CHUNK = 1024**2
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)


class Envelope(NamedTuple):
    """A message: what it is about, and its payload."""

    head: dict[str, Any]
    """A JSON object: text keys; numbers are finite."""
    blobs: Mapping[str, bytes] = {}
    """Payload by name. A name has 1 to 100 letters, digits and ``_ . -``."""


def to_frame(envelope: Envelope) -> list[bytes]:
    """Return a message as the parts of a frame.

    Raises:
        DataError: the head is not JSON, or a limit is exceeded.
    """
    sizes = {name: len(blob) for name, blob in envelope.blobs.items()}
    _check_sizes(sizes)
    _check_object(envelope.head)
    text = head_to_text({"head": envelope.head, "blobs": sizes}).encode()
    return [_PREFIX.pack(len(text)) + text, *envelope.blobs.values()]


def send(connection: socket.socket, envelope: Envelope) -> None:
    """Write a message to a stream socket.

    Raises:
        DataError: the head is not JSON, or a limit is exceeded; nothing was written.
        OSError: the connection broke, or a time limit of the socket passed.
    """
    for part in to_frame(envelope):
        connection.sendall(part)


def receive(connection: socket.socket) -> Envelope:
    """Read one message from a stream socket.

    Memory grows with what has arrived, not with what is announced.

    Raises:
        DataError: the message is damaged, or a limit is exceeded.
        ConnectionError: the other side closed the connection before the end of the message.
        OSError: the connection broke, or a time limit of the socket passed.
    """
    return read_frame(connection.recv)


def read_frame(source: Callable[[int], bytes]) -> Envelope:
    """Read one message from a function that returns at most so many of the next bytes.

    Raises:
        DataError: the message is damaged, or a limit is exceeded.
        ConnectionError: the bytes end before the message does.
    """
    (length,) = _PREFIX.unpack(_read(source, _PREFIX.size))
    if length > LARGEST_HEAD:
        raise _too_large(length)

    frame = head_from_text(_read(source, length))
    if set(frame) != {"head", "blobs"}:
        raise DataError("a message must have a head and blobs")

    head = _check_object(frame["head"])
    sizes = _check_object(frame["blobs"])
    _check_sizes(sizes)
    return Envelope(head, {name: _read(source, size) for name, size in sizes.items()})


def head_to_text(head: Mapping[str, Any]) -> str:
    """Return a head as JSON text.

    Raises:
        DataError: it is not a JSON object with text keys and finite numbers, or it is too large.
    """
    _check_object(head)
    try:
        text = json.dumps(head, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"the head of a message must be JSON: {error}", key="head") from error

    if len(text) > LARGEST_HEAD:
        raise _too_large(len(text))
    return text


def head_from_text(text: str | bytes) -> dict[str, Any]:
    """Return the head that a JSON text holds.

    Raises:
        DataError: the text is not a JSON object, exceeds a limit, or names a key twice.
    """
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    if len(raw) > LARGEST_HEAD:
        raise _too_large(len(raw))
    if most_values(raw) > MOST_HEAD_VALUES:
        message = f"the head of a message has more than {MOST_HEAD_VALUES} values"
        raise DataError(message, key="head")

    try:
        head = strict_json(raw)
    except (ValueError, RecursionError) as error:
        reason = one_line(str(error))
        raise DataError(f"the head of a message is not JSON: {reason}", key="head") from error

    _check_texts(head)
    return _check_object(head)


def _check_texts(head: Any) -> None:
    """Check that no text of a head is long, since messages and pages show texts."""
    values = [head]
    while values:
        value = values.pop()
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            message = f"a text in the head of a message has more than {LONGEST_TEXT} characters"
            raise DataError(message, key="head", got=one_line(value)[:100])
        if isinstance(value, dict):
            values.extend(value)
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)


def check_blob(name: str, size: object) -> None:
    """Check the name and the size of a blob.

    Raises:
        DataError: the name has other characters, or the size is not from 0 to ``LARGEST_FRAME``.
    """
    if not _NAME.fullmatch(name):
        message = "a blob's name must have 1 to 100 letters, digits and _ . -"
        raise DataError(message, key="blobs", got=repr(name)[:100])

    if type(size) is not int or not 0 <= size <= LARGEST_FRAME:
        message = f"a blob's size must be from 0 to {LARGEST_FRAME} bytes"
        raise DataError(message, key=name, got=repr(size)[:100])


def _check_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        got = type(value).__name__
        raise DataError(f"the head of a message must be an object, got {got}", key="head")
    return value


def _check_sizes(sizes: Mapping[str, Any]) -> None:
    """Check the sizes of all blobs of a message."""
    for name, size in sizes.items():
        check_blob(name, size)

    # Each may be small enough, and all together too large.
    total = sum(sizes.values())
    if total > LARGEST_FRAME:
        message = f"a message is too large: {total} bytes of blobs, at most {LARGEST_FRAME}"
        raise DataError(message, key="blobs")


def _too_large(size: int) -> DataError:
    message = f"the head of a message is too large: {size} bytes, at most {LARGEST_HEAD}"
    return DataError(message, key="head")


def _read(source: Callable[[int], bytes], size: int) -> bytes:
    # Chunks, so that a size that is only announced takes no memory.
    received = bytearray()
    while len(received) < size:
        chunk = source(min(_CHUNK, size - len(received)))
        if not chunk:
            progress = f"{len(received)} of {size} bytes"
            raise ConnectionError(f"the connection was closed after {progress}")

        received += chunk

    return bytes(received)
