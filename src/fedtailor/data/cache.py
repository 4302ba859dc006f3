"""The cache of decoded data sets, whose arrays are mapped into memory and shared by processes.

An entry is the folder ``decoded/NAME-SIGNATURE`` of the cache folder: the arrays as ``.npy``, the
other fields as ``meta.json``. It appears whole, by renaming, and is never changed. An entry that
differs from its digests is decoded again. The cache only saves time: if it cannot be written, data
stay in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.folders import whole_folder
from fedtailor.core.reading import open_regular, read_object
from fedtailor.data.columns import RawColumn, RawTable
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.folders import cache_folder

CACHE_VERSION = 4
"""Increased when the form of an entry changes."""

_ARRAYS = ("x", "y", "subclasses", "domains", "groups")
_TOO_FRESH = 1.0  # seconds in which a file can change again without a trace in its times
_ENTRY = re.compile(r"\.?.+-[0-9a-f]{16}")
"""A name and the start of a signature; nothing else in the folders is ours."""


class CacheEntry(NamedTuple):
    """One entry of the cache, or the remains of an unfinished one."""

    path: Path
    bytes: int
    """Bytes on the disk."""

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.path.name.removeprefix(".").rpartition("-")[0]


def entries() -> list[CacheEntry]:
    """Return the entries of the cache, sorted by path; the list is empty if there is no cache.

    Raises:
        DataError: the cache folder cannot be read.
    """
    folder = _folder()
    try:
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return [CacheEntry(path, _bytes_of(path)) for path in paths if _ENTRY.match(path.name)]
    except OSError as reason:
        raise _failed("read", folder, reason) from reason


def clear() -> list[CacheEntry]:
    """Remove every entry of the cache, and return what was removed.

    Everything in the cache can be made again, and processes that use an entry keep it until they
    end. Downloaded data sets, which may be in the same folder, stay.

    Raises:
        DataError: an entry cannot be removed; the entries before it are removed.
    """
    removed = []
    for entry in entries():
        try:
            if entry.path.is_dir() and not entry.path.is_symlink():
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink()
        except FileNotFoundError:  # another process removed it
            continue
        except OSError as reason:
            raise _failed("remove", entry.path, reason) from reason

        removed.append(entry)

    return removed


def _bytes_of(path: Path) -> int:
    """Return the size of a file, or of the files in a folder; ones that disappear count 0."""
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = [file for file in path.rglob("*") if not file.is_dir()]

    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            total += file.lstat().st_size

    return total


def _failed(action: str, path: Path, reason: OSError) -> DataError:
    return DataError(f"cannot {action} '{path}': {reason.strerror or reason}.", path=str(path))


def signature_of(patterns: Iterable[str], folder: Path) -> str:
    """Return a SHA-256 that changes when files or their readers change.

    It covers the folder and, for every file that matches, its path in the folder, size, times of
    modification and of change, and number in the file system, so that swapping two files of the
    same size and age is noticed. It also covers the source of the readers, so that data decoded by
    another version is not used.

    Args:
        patterns: relative to ``folder``, as in :class:`fedtailor.data.datasets.known.KnownDataset`.
        folder: the data folder.

    Returns:
        An empty string, with which :func:`cached` keeps nothing, if no file matches or a file has
        just been written.
    """
    # A file that can still change without a trace has no signature.
    files = []
    for path in {path for pattern in patterns for path in folder.glob(pattern)}:
        try:
            status = path.stat()
        except OSError:  # removed, or a broken link: its reader reports it if it needs the file
            continue

        if stat.S_ISREG(status.st_mode):
            if abs(time.time() - status.st_mtime) < _TOO_FRESH:
                return ""

            place = path.relative_to(folder).as_posix()
            times = (status.st_mtime_ns, status.st_ctime_ns)
            files.append((place, status.st_size, *times, status.st_ino))

    if not files:
        return ""

    return _digest_of([CACHE_VERSION, _source_digest(), os.path.realpath(folder), sorted(files)])


def cached(signature: str, build: Callable[[], Dataset], *, name: str) -> Dataset:
    """Return a data set from the cache; otherwise build it, and keep it in place of older ones.

    Args:
        signature: from :func:`signature_of`; empty: the cache is not used.
        build: reads and decodes the data set.
        name: name of the data set; characters other than letters and digits become ``_``.

    Returns:
        The same values either way, with a note if they could not be kept.
    """
    if not signature:
        return build()

    # The name is for people; the whole signature is compared when an entry is read.
    stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:80]
    folder = _folder() / f"{stem}-{signature[:16]}"
    dataset = _read(folder, signature)
    if dataset is not None:
        return dataset

    dataset = build()
    try:
        _write(folder, signature, dataset)

        # Older entries are of no use; processes that have mapped them keep them until they end.
        for other in folder.parent.glob(f"{stem}-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
    except OSError as reason:
        why = f"decoded data could not be kept in '{folder.parent}' ({reason.strerror or reason})"
        note = f"{why}: every run decodes it again."
        return dataclasses.replace(dataset, notes=(*dataset.notes, note))

    return dataset


def _folder() -> Path:
    return cache_folder() / "decoded"


def _read(folder: Path, signature: str) -> Dataset | None:
    """Return the data set of an entry; None if there is none that is as it was written."""
    try:
        meta = read_object(folder / "meta.json", within=folder)
        if meta["signature"] != signature or meta["fields_sha256"] != _digest_of(meta["fields"]):
            return None

        # JSON has lists only, where a data set has tuples.
        fields: dict[str, Any] = {}
        for name, value in meta["fields"].items():
            fields[name] = tuple(value) if isinstance(value, list) else value

        for name in meta["arrays"]:
            path = folder / f"{name}.npy"
            with open_regular(path, within=folder):  # NumPy would wait for a pipe
                pass

            # Copy-on-write: the file stays, and torch shares the memory without a warning.
            fields[name] = np.load(path, mmap_mode="c", allow_pickle=False)

        fields["normalize"] = Normalization(*map(tuple, fields["normalize"]))
        if fields["raw"] is not None:
            columns, unused = fields["raw"]
            named = tuple(RawColumn(name, tuple(texts)) for name, texts in columns)
            fields["raw"] = RawTable(named, tuple(unused))

        dataset = Dataset(**fields)
        return dataset if dataset.digest == meta["digest"] else None
    except Exception:  # a damaged array header raises exceptions of half a dozen kinds
        return None


def _write(folder: Path, signature: str, dataset: Dataset) -> None:
    """Write an entry, in place of one that could not be used."""
    values = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(dataset)}
    arrays = {name: values.pop(name) for name in _ARRAYS}
    present = {name: array for name, array in arrays.items() if array is not None}
    meta = {
        "signature": signature,
        "digest": dataset.digest,  # of the arrays
        "fields_sha256": _digest_of(values),
        "arrays": list(present),
        "fields": values,
    }
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with whole_folder(folder) as unfinished:
            for name, array in present.items():
                np.save(unfinished / f"{name}.npy", array, allow_pickle=False)

            text = json.dumps(meta, default=_plain)
            (unfinished / "meta.json").write_text(text, encoding="utf-8")
    except OSError:
        if not (folder / "meta.json").is_file():  # another process was not faster
            raise


def _digest_of(value: Any) -> str:
    """Return the SHA-256 of a value as JSON, which writing and reading do not change."""
    return hashlib.sha256(json.dumps(value, default=_plain, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold for a mapping or a NumPy number."""
    return value.item() if isinstance(value, np.generic) else dict(value)


@cache
def _source_digest() -> str:
    """Return the SHA-256 of the modules that read data."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())

    return digest.hexdigest()
