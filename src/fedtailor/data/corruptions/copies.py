"""The cache of corrupted copies of examples, kept on disk between runs.

An entry is ``corrupted/KIND-SEVERITY-KEY.npy`` in the cache folder with its SHA-256 beside it; it
appears whole, by renaming, and is compared with the SHA-256 when it is read. The cache only saves
time: if it cannot be written, copies are made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import secrets
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_file
from fedtailor.data.corruptions import corrupt
from fedtailor.data.folders import cache_folder

COPIES_VERSION = 1
"""Increased when a corruption is computed differently."""

MAX_BYTES = 4 * 2**30
"""Most bytes of copies that are kept; the least recently used are removed first."""

_LONGEST_HEADER = 2**16
"""Bytes of an array file before its values."""

_CHUNK = 1000  # images between two reports of progress


def corrupted_copies(
    x: np.ndarray,
    rows: np.ndarray,
    kind: str,
    severity: int,
    *,
    digest: str,
    seed: int,
    frost: Sequence[np.ndarray] = (),
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Return corrupted copies of some examples, from the cache if possible.

    Args:
        x: all examples of a data set, (n, height, width, 1 or 3), uint8.
        rows: (copies,), the examples to copy.
        kind: name of a corruption.
        severity: 1 to 5.
        digest: digest of the data set.
        seed: seed of all random numbers.
        frost: pictures of frost.
        progress: called with the number of copies made so far.

    Returns:
        (copies, height, width, channels), uint8.
    """
    key = _key(digest, rows, kind, severity, seed, frost)
    path = cache_folder() / "corrupted" / f"{kind}-{severity}-{key}.npy"
    copies = _load(path, (len(rows), *x.shape[1:]))
    if copies is None:
        copies = np.empty((len(rows), *x.shape[1:]), np.uint8)
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            copies[start : start + _CHUNK] = corrupt(
                x[part], kind, severity, rows=part, seed=seed, frost=frost
            )
            if progress:
                progress(start + len(part))

        with contextlib.suppress(OSError):
            _save(path, copies)
    elif progress:
        progress(len(rows))

    return copies


def _key(
    digest: str, rows: np.ndarray, kind: str, severity: int, seed: int, frost: Sequence[np.ndarray]
) -> str:
    """Return a digest of everything that copies depend on."""
    content = hashlib.sha256(rows.astype("<i8").tobytes())
    if kind == "frost":
        for picture in frost:
            content.update(str(picture.shape).encode() + picture.tobytes())

    libraries = [
        version(name) for name in ("numpy", "scipy", "pillow")
    ]  # versions may draw, round or encode differently
    parts = [COPIES_VERSION, *libraries, digest, kind, severity, seed, content.hexdigest()]

    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _load(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the copies of an entry; None if there is no entry, or it differs from what was
    written.
    """
    try:
        raw = read_file(path, limit=math.prod(shape) + _LONGEST_HEADER)
        if hashlib.sha256(raw).hexdigest().encode() != read_file(_beside(path), limit=100):
            return None

        copies = np.load(io.BytesIO(raw), allow_pickle=False)
    except (DataError, ValueError, EOFError):
        return None

    if copies.shape != shape or copies.dtype != np.uint8:
        return None

    with contextlib.suppress(OSError):
        os.utime(path)  # used just now

    return np.asarray(copies)


def _save(path: Path, copies: np.ndarray) -> None:
    stream = io.BytesIO()
    np.save(stream, copies, allow_pickle=False)
    raw = stream.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, raw)
    _write(_beside(path), hashlib.sha256(raw).hexdigest().encode())
    _remove_oldest(path.parent)


def _write(path: Path, raw: bytes) -> None:
    """Write a file under a temporary name, then rename it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(raw)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_oldest(folder: Path) -> None:
    """Remove the least recently used entries, and unfinished ones, until the rest is within
    ``MAX_BYTES``.
    """
    files = []
    for path in folder.iterdir():
        if path.suffix == ".sha256":
            continue

        with contextlib.suppress(OSError):  # another process may have removed it
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))

    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MAX_BYTES:
            break

        with contextlib.suppress(OSError):
            _beside(path).unlink(missing_ok=True)
            path.unlink()
            total -= size


def _beside(path: Path) -> Path:
    """Return the file with an entry's SHA-256."""
    return path.with_suffix(".sha256")
