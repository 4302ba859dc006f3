"""Corrupted copies of examples, kept in the cache between runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedtailor.data import cache
from fedtailor.data.corruptions import corrupt

COPIES_VERSION = 1
"""Increased when a corruption is computed differently."""

MAX_BYTES = 4 * 2**30
"""Most bytes of copies that are kept; the least recently used are removed first."""

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
    progress: Callable[[int], None] = lambda done: None,
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
    signature = _signature(digest, rows, kind, severity, seed, frost)
    folder = cache.entry_folder("corrupted", f"{kind}-{severity}", signature)
    shape = (len(rows), *x.shape[1:])
    copies = _read(folder, signature, shape)
    if copies is not None:
        progress(len(rows))
        return copies

    copies = np.empty(shape, np.uint8)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        copies[start : start + _CHUNK] = corrupt(
            x[part], kind, severity, rows=part, seed=seed, frost=frost
        )
        progress(start + len(part))

    with contextlib.suppress(OSError):
        content = {"sha256": hashlib.sha256(copies.data).hexdigest()}
        cache.write_entry(folder, signature, {"copies": copies}, content)
        _remove_oldest()

    return copies


def _signature(
    digest: str, rows: np.ndarray, kind: str, severity: int, seed: int, frost: Sequence[np.ndarray]
) -> str:
    """Return a digest of everything that copies depend on."""
    content = hashlib.sha256(rows.astype("<i8").tobytes())
    if kind == "frost":
        for picture in frost:
            content.update(str(picture.shape).encode() + picture.tobytes())

    # Other versions of these may draw, round or encode differently.
    libraries = [version(name) for name in ("numpy", "scipy", "pillow")]
    parts = [COPIES_VERSION, *libraries, digest, kind, severity, seed, content.hexdigest()]
    return cache.digest_of(parts)


def _read(folder: Path, signature: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the copies of an entry; None if there is none that is as it was written."""
    stored = cache.read_entry(folder, signature)
    if stored is None:
        return None

    arrays, fields = stored
    copies = arrays.get("copies", np.empty(0))
    if copies.shape != shape or copies.dtype != np.uint8:
        return None
    if hashlib.sha256(np.ascontiguousarray(copies).data).hexdigest() != fields.get("sha256"):
        return None

    with contextlib.suppress(OSError):
        os.utime(folder)  # used just now
    return copies


def _remove_oldest() -> None:
    """Remove the least recently used entries until the rest is within ``MAX_BYTES``."""
    copies = [entry for entry in cache.entries() if entry.kind == "corrupted"]
    total = sum(entry.bytes for entry in copies)
    for entry in sorted(copies, key=lambda entry: entry.path.stat().st_mtime):
        if total <= MAX_BYTES:
            break

        shutil.rmtree(entry.path, ignore_errors=True)
        total -= entry.bytes
