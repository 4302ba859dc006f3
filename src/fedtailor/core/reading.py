"""Guarded reading of our own files: the caller gets their content or one of our errors.

Files may be damaged, or come from a stranger. Only regular files are opened, so that a pipe or a
device cannot stop the reader; lengths are limited, so that memory is; and a link that leads out of
the folder may be refused.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedtailor.core.errors import ConfigError, DataError

LARGEST_TEXT = 2**27
"""Bytes of a file, or of one line of a file of lines, that is JSON."""
LARGEST_TOML = 2**20
"""Bytes of a TOML file."""
LARGEST_LINES = 2**35
"""Bytes of a file of lines."""
_LONGEST_LINE = 2**24
"""Bytes of a line."""

UNEXPECTED: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the content of a file raises if it is not what was written."""


class UnreadableError(DataError):
    """The system refused to read a file; nothing is known of its content."""


@contextmanager
def open_regular(path: Path, *, within: Path | None = None) -> Iterator[BufferedReader]:
    """Open a regular file for reading.

    Args:
        path: the file.
        within: a folder; if given, a link must not lead out of it.

    Raises:
        UnreadableError: the file is missing or cannot be read; the cause is the :class:`OSError`.
        DataError: it is not a regular file, or lies outside the folder.
    """
    # Opening a pipe must not wait for a writer; not every system has every flag.
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)

    try:
        if within is not None:
            target = Path(os.path.realpath(path))
            if not target.is_relative_to(os.path.realpath(within)):
                raise damaged(path, f"it is a link that leads out of '{within}'")

        descriptor = os.open(path, flags)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise damaged(path, "it is not a file with content")

            yield file
    except OSError as reason:
        raise UnreadableError(
            f"cannot read '{path}': {reason.strerror or reason}.", path=path
        ) from reason
    except ValueError as reason:  # a null character
        raise DataError(f"{str(path)!r} cannot be the name of a file.", path=path) from reason


def read_file(path: Path, *, limit: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: the file.
        limit: most bytes.
        within: see :func:`open_regular`.

    Raises:
        UnreadableError: the file is missing or cannot be read.
        DataError: it is not a regular file, too long, or lies outside the folder.
    """
    with open_regular(path, within=within) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise damaged(path, f"it has more than {limit} bytes")

        # Python takes the memory that it is asked for before it reads.
        return file.read(size)


def read_object(path: Path, *, within: Path | None = None) -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises:
        UnreadableError: the file is missing or cannot be read.
        DataError: it holds something else, is nested too deep, or is anything that
            :func:`read_file` refuses.
    """
    value = parse_json(read_file(path, limit=LARGEST_TEXT, within=within), path)
    if not isinstance(value, dict):
        raise damaged(path, "it holds no object")
    return value


def read_lines(path: Path, *, within: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of lines of JSON; a missing file has none.

    A last line without its end was being written when its writer was killed, and is left out.

    Raises:
        UnreadableError: the file cannot be read.
        DataError: a line is not an object, or too long; the lines before it have been yielded.
    """
    try:
        with open_regular(path, within=within) as file:
            if os.fstat(file.fileno()).st_size > LARGEST_LINES:
                raise damaged(path, f"it has more than {LARGEST_LINES} bytes")

            while line := file.readline(_LONGEST_LINE):
                if not line.endswith(b"\n"):
                    if len(line) == _LONGEST_LINE:
                        raise damaged(path, f"a line has more than {_LONGEST_LINE} bytes")
                    return

                record = parse_json(line, path)
                if not isinstance(record, dict):
                    raise damaged(path, "a line holds no object")

                yield record
    except UnreadableError as error:
        if not is_missing(error):
            raise


def is_missing(error: DataError) -> bool:
    """Return whether a file could not be read because it does not exist."""
    return isinstance(error.__cause__, FileNotFoundError)


def parse_json(raw: bytes, path: Path) -> Any:
    """Return the value of JSON text.

    Raises:
        DataError: it is not JSON, or nested too deep; the message names the path.
    """
    try:
        return json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as reason:
        raise damaged(path, str(reason)) from reason


def strict_json(text: str | bytes) -> Any:
    """Return the value of JSON text that may come from a stranger.

    No key of an object is there twice: other readers could read another value of it.

    Raises:
        RecursionError: it is nested too deep.
        ValueError: it is not JSON, or a key is there twice.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)


def most_values(raw: bytes) -> int:
    """Return the most values that JSON text can hold, without reading it.

    A value of three bytes takes a hundred in memory, so their number is bounded first.

    Example:
        >>> most_values(b'{"a": [1, 2]}')
        3
    """
    return sum(raw.count(mark) for mark in (b"[", b"{", b","))


def parse_toml(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the values of TOML text.

    Raises:
        DataError: it is not TOML, or nested too deep; the message names the path.
    """
    try:
        # Editors of Windows write a mark before the first letter.
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as reason:
        raise _not_toml(path, f"byte {reason.start} is not UTF-8") from reason
    except tomllib.TOMLDecodeError as reason:
        raise _not_toml(path, str(reason)) from reason
    except RecursionError as reason:
        raise _not_toml(path, "its values are nested too deep") from reason
    except ValueError as reason:
        raise _not_toml(path, "a number in it is too long") from reason


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file that a person has written.

    Raises:
        UnreadableError: the file is missing or cannot be read.
        ConfigError: it is not TOML, too long, or nested too deep.
    """
    try:
        return parse_toml(read_file(path, limit=LARGEST_TOML), path)
    except UnreadableError:
        raise
    except DataError as error:
        raise ConfigError(error.message, path=path) from error


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file that is not what was written."""
    return DataError(f"'{path}' is damaged: {reason.rstrip('.')}.", path=path)


@contextmanager
def content_of(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Say that a file is damaged if its content raises in the block.

    Args:
        path: the file.
        others: exceptions beside those of :data:`UNEXPECTED`.

    Raises:
        DataError: the file is damaged.
    """
    try:
        yield
    except (*UNEXPECTED, *others) as reason:
        raise damaged(path, f"{type(reason).__name__}: {reason!s:.200}") from reason


def _not_toml(path: Path, reason: str) -> DataError:
    return DataError(f"'{path}' is not valid TOML: {reason}.", path=path)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        doubled = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the field '{doubled:.80}' is there twice")
    return record


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
