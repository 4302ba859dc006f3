"""Decoded data sets on disk, mapped into memory: decoded once, shared by processes, paged in where they are used.

An entry is the folder ``decoded/NAME-SIGNATURE`` of the cache folder: the arrays as ``.npy``, the rest as
``meta.json``. It appears whole, by renaming, and is never changed. What is loaded, arrays and the rest, has the digests
that were noted when it was written; anything else is decoded again. The cache only saves time: where it cannot be
written, data stay in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data import cache_folder
from fedtailor.data.dataset import Dataset, Normalization

CACHE_VERSION = 2
"""Increased when the form of an entry changes."""

_ARRAYS = ("x", "y", "subclasses", "domains")
_TOO_FRESH = 1.0  # seconds in which a file can change again without a trace in its times
_ENTRY = re.compile(r"\.?\w+-[0-9a-f]{16}(\.[0-9a-f]{16})?")  # names of entries, finished and not
_ABANDONED = 86_400.0  # seconds after which an unfinished entry is nobody's


def signature_of(patterns: Iterable[str], folder: Path) -> str:
    """Return a SHA-256 that changes when files or their readers do.

    It is over the folder and, for every file that matches, its path there, size, times of modification and of change,
    and number in the file system, so that two files of one size and age that change places are noticed; and over the
    source of the readers: what another version decoded is not taken for what this one would.

    Args:
        patterns: relative to ``folder``, as in :class:`fedtailor.data.datasets.known.KnownDataset`.
        folder: the data folder.

    Returns:
        An empty string, with which :func:`cached` keeps nothing, if there is no such file or one has just been written.
    """
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    files = []
    for path in found:
        try:
            status = path.stat()
        except OSError:  # removed meanwhile, or a link to nothing: the reader will say so if it needs it
            continue
        if stat.S_ISREG(status.st_mode):
            if abs(time.time() - status.st_mtime) < _TOO_FRESH:
                return ""
            place = path.relative_to(folder).as_posix()
            files.append((place, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    if not files:
        return ""
    return _digest_of([CACHE_VERSION, _source_digest(), os.path.realpath(folder), sorted(files)])


def cached(signature: str, build: Callable[[], Dataset], *, name: str) -> Dataset:
    """Return a data set from the cache; otherwise build it and keep it there, in place of older ones of its name.

    Args:
        signature: from :func:`signature_of`; empty: nothing is looked for, and nothing kept.
        build: reads and decodes.
        name: of the data set; what is not a letter or digit becomes ``_``.

    Returns:
        The same values either way. A note is added where they could not be kept.
    """
    if not signature:
        return build()
    stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:80]
    folder = cache_folder() / "decoded" / f"{stem}-{signature[:16]}"
    found = _load(folder, signature)
    if found is not None:
        return found
    dataset = build()
    try:
        _write(folder, signature, dataset)
        _remove_older(folder, stem)
    except OSError as reason:
        text = f"decoded data could not be kept in '{folder.parent}' ({reason.strerror or reason}): "
        note = text + "they are decoded anew in every run."
        return dataclasses.replace(dataset, notes=(*dataset.notes, note))
    return dataset


def _load(folder: Path, signature: str) -> Dataset | None:
    """Return the data set of an entry; None if there is none, or it is not what was written."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if (meta["signature"], meta["fields_sha256"]) != (signature, _digest_of(meta["fields"])):
            return None
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in meta["fields"].items()
        }
        for name in meta["arrays"]:
            # copy-on-write: the file stays as it is, and torch can share the memory without a warning
            fields[name] = np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        fields["normalize"] = Normalization(*map(tuple, fields["normalize"]))
        dataset = Dataset(**fields)
        return dataset if meta["digest"] == dataset.digest else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, DataError):
        return None


def _write(folder: Path, signature: str, dataset: Dataset) -> None:
    """Write an entry beside its place, then rename it; what is there already and unfit gives way."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    arrays = {name: array for name in _ARRAYS if (array := getattr(dataset, name)) is not None}
    names = (field.name for field in dataclasses.fields(dataset))
    fields = {name: getattr(dataset, name) for name in names if name not in _ARRAYS}
    meta = {
        "signature": signature,
        "digest": dataset.digest,  # of the arrays
        "fields_sha256": _digest_of(fields),
        "arrays": list(arrays),
        "fields": fields,
    }
    try:
        temporary.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        (temporary / "meta.json").write_text(json.dumps(meta, default=_plain), encoding="utf-8")
        _put(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(temporary: Path, folder: Path) -> None:
    """Rename a finished entry; where another process was faster, its entry stays."""
    try:
        if folder.exists():
            os.replace(folder, temporary / "replaced")
        os.replace(temporary, folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    except OSError:
        if not (folder / "meta.json").is_file():
            raise


def _digest_of(value: Any) -> str:
    """Return the SHA-256 of a value as JSON, the same before it is written and after it is read."""
    return hashlib.sha256(json.dumps(value, default=_plain, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return what JSON can hold for a mapping or a number of numpy."""
    return value.item() if isinstance(value, np.generic) else dict(value)


def _remove_older(folder: Path, stem: str) -> None:
    """Remove entries of the same name, and what was left unfinished long ago; processes that use them keep them."""
    pattern = re.compile(rf"\.?{stem}-[0-9a-f]{{16}}(\.[0-9a-f]{{16}})?")
    for other in folder.parent.iterdir():
        if other == folder or not pattern.fullmatch(other.name):
            continue
        with contextlib.suppress(OSError):  # another process may have removed it
            if not other.name.startswith(".") or time.time() - other.stat().st_mtime > _ABANDONED:
                shutil.rmtree(other, ignore_errors=True)


@cache
def _source_digest() -> str:
    """Return the SHA-256 of the modules that read data."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Entry(NamedTuple):
    """A decoded data set in the cache."""

    name: str
    """Name of the data set."""
    path: Path
    """Its folder."""
    size: int
    """Bytes on disk."""


def entries() -> list[Entry]:
    """Return the decoded data sets in the cache, by name."""
    found = []
    for path in sorted((cache_folder() / "decoded").glob("*-*")):
        if path.is_dir() and not path.name.startswith("."):
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            found.append(Entry(path.name.rpartition("-")[0], path, size))
    return found


def clear() -> int:
    """Delete the decoded data sets in the cache, finished or not, and return how many finished ones there were.

    Downloaded files stay. A process that uses an entry keeps it until it ends.

    Raises:
        DataError: an entry cannot be deleted.
    """
    removed = len(entries())
    folder = cache_folder() / "decoded"
    try:
        for path in folder.iterdir() if folder.is_dir() else ():
            if _ENTRY.fullmatch(path.name):
                shutil.rmtree(path)
    except OSError as reason:
        raise DataError(f"cannot delete '{reason.filename}': {reason.strerror}.", path=str(folder)) from reason
    return removed
