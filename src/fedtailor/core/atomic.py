"""Safe writing of files: whole or not at all, lines that survive a crash, safe names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedtailor.core.errors import RunError

_LONGEST_NAME = 120


def safe_name(name: str) -> str:
    """Return a file name for any text: what is not a letter, digit or ``_-.~`` is percent-encoded.

    >>> safe_name("../etc")
    '%2E.%2Fetc'
    """
    escaped = quote(name, safe="", errors="surrogatepass") or "%"
    if escaped.startswith("."):
        escaped = "%2E" + escaped[1:]
    if len(escaped) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
        escaped = f"{escaped[:_LONGEST_NAME]}~{digest}"
    return escaped


def to_json(value: Any, *, indent: int | None = None, compact: bool = False) -> str:
    """Return strict JSON: numbers that are not finite become null.

    Args:
        value: numbers, texts, truth values, None, and lists and tables of them.
        indent: blanks before the values of a table, one line each; None: all in one line.
        compact: whether to leave out the blank after a comma or colon.
    """
    separators = (",", ":") if compact else None
    try:
        return json.dumps(value, indent=indent, separators=separators, allow_nan=False)
    except (TypeError, ValueError):
        # Rare, and to look at every number first would take most of the time.
        finite = _finite(value)
        return json.dumps(finite, indent=indent, separators=separators, allow_nan=False)


def as_plain(value: Any) -> Any:
    """Return a value ready for JSON: names of fields become keys, and tuples lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif is_dataclass(value):
        value = {part.name: getattr(value, part.name) for part in fields(value)}

    if isinstance(value, Mapping):
        return {str(key): as_plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [as_plain(part) for part in value]

    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_finite(item) for item in value]
    return value


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file so that it is there whole or not at all, in place of an older one.

    Args:
        path: the file.
        content: of it.
        mode: of the file, but for what the user's umask takes away.

    Raises:
        RunError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            # One that a killed process with this number has left would keep its mode.
            discard(temporary)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

            os.replace(temporary, path)
            synchronize_folder(path.parent)
        except BaseException:  # an interruption leaves nothing behind either
            discard(temporary)
            raise


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user may read, from its first byte on, as :func:`write_whole`.

    Raises:
        RunError: the file cannot be written.
    """
    write_whole(path, content, mode=0o600)


def write_json(path: Path, value: Any, *, indent: int | None = None, compact: bool = False) -> None:
    """Write a value as :func:`to_json` does, and a line end, as :func:`write_whole` does.

    Raises:
        RunError: the file cannot be written.
    """
    write_whole(path, to_json(value, indent=indent, compact=compact) + "\n")


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> bytes:
    """Append one line of JSON per record, and synchronize; return what was appended.

    If that fails or is interrupted, the file is what it was, as far as that is possible.

    Raises:
        RunError: the file cannot be written.
    """
    text = "".join(to_json(record, compact=True) + "\n" for record in records).encode()
    if not text:
        return text

    with writing(path), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            _write_all(file, text)
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                file.truncate(before)

            raise

    return text


def cut_unfinished_line(path: Path) -> None:
    """Remove a last line without an end: its writer was killed. The file may be missing.

    Raises:
        RunError: the file cannot be written.
    """
    if not path.is_file():
        return

    with writing(path), path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            file.truncate(end)


def _write_all(file: FileIO, data: bytes) -> None:
    """Write all bytes to a file without a buffer, which may take a part of them at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def discard(path: Path) -> None:
    """Remove a file if that is possible. After an error, a second one must not hide the first."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def synchronize_folder(folder: Path) -> None:
    """Make the names of a folder's files survive a crash of the machine."""
    if os.name == "posix":  # elsewhere folders cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, unless it is there.

    Raises:
        RunError: it cannot be made.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=mode)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there.

    Raises:
        RunError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as reason:
        message = f"cannot remove '{path}': {reason.strerror or reason}."
        raise RunError(message, path=path) from reason


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of an error of the system in the block that a file or folder cannot be written.

    Raises:
        RunError: there was one.
    """
    try:
        yield
    except OSError as reason:
        raise unwritable(path, reason) from reason


def unwritable(path: Path, reason: OSError) -> RunError:
    """Return the error for a file or folder that cannot be written."""
    return RunError(f"cannot write '{path}': {reason.strerror or reason}.", path=path)
