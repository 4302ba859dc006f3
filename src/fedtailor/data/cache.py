"""The cache of decoded data sets, whose arrays are mapped into memory and shared by processes.

An entry is the folder ``decoded/NAME-SIGNATURE`` of the cache folder: the arrays as ``.npy``, the
other fields as ``meta.json``. It appears whole, by renaming, and is never changed. An entry whose
digests differ from those in ``meta.json`` is decoded again. The cache only saves time: if it cannot
be written, data stay in memory.

:func:`entries` and :func:`clear` also cover the corrupted copies of images, which
:mod:`fedtailor.data.corruptions.copies` keeps in the same folder.
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
from fedtailor.core.reading import open_regular, read_object
from fedtailor.data.columns import Columns, RawColumn, RawTable
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.folders import cache_folder

CACHE_VERSION = 3
"""Increased when the form of an entry changes."""

_ARRAYS = ("x", "y", "subclasses", "domains", "groups")
_TOO_FRESH = 1.0  # seconds in which a file can change again without a trace in its times
_ABANDONED = 86_400.0  # seconds after which an unfinished entry counts as abandoned
_DECODED = "decoded"
_CORRUPTED = "corrupted"
_ENTRY = re.compile(
    r"\.?.+-[0-9a-f]{16}"
)  # a name and the start of a signature; nothing else is ours


class CacheEntry(NamedTuple):
    """One entry of the cache, or the remains of an unfinished one."""

    kind: str
    """``decoded`` (a data set) or ``corrupted`` (corrupted copies of images)."""
    path: Path
    """A folder of a decoded data set, or the file of corrupted copies."""
    bytes: int
    """Bytes on the disk."""

    @property
    def name(self) -> str:
        """Return the name of what is kept, without its signature."""
        return self.path.name.removeprefix(".").rpartition("-")[0]


def entries() -> list[CacheEntry]:
    """Return the entries of the cache, sorted by path; the list is empty if there is no cache.

    Raises:
        DataError: the cache folder cannot be read.
    """
    found = []
    for kind in (_CORRUPTED, _DECODED):
        folder = cache_folder() / kind
        try:
            if folder.is_dir():
                paths = sorted(path for path in folder.iterdir() if _ENTRY.match(path.name))
                found += [CacheEntry(kind, path, _bytes_of(path)) for path in paths]
        except OSError as reason:
            raise _failed("read", folder, reason) from reason

    return found


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
    """Return the size of a file, or of all files in a folder; files that disappear in the meantime
    count 0.
    """
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = [each for each in path.rglob("*") if not each.is_dir()]
    total = 0
    for each in files:
        with contextlib.suppress(FileNotFoundError):
            total += each.lstat().st_size
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
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    files = []
    for path in found:
        try:
            status = path.stat()
        except (
            OSError
        ):  # removed in the meantime, or a broken link: the reader reports it if it needs the file
            continue

        if stat.S_ISREG(status.st_mode):
            if abs(time.time() - status.st_mtime) < _TOO_FRESH:
                return ""

            place = path.relative_to(folder).as_posix()
            files.append(
                (place, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            )

    if not files:
        return ""

    return _digest_of([CACHE_VERSION, _source_digest(), os.path.realpath(folder), sorted(files)])


def cached(signature: str, build: Callable[[], Dataset], *, name: str) -> Dataset:
    """Return a data set from the cache; otherwise build it and keep it there, in place of older
    entries of its name.

    Args:
        signature: from :func:`signature_of`; empty: the cache is not used.
        build: reads and decodes the data set.
        name: name of the data set; characters other than letters and digits become ``_``.

    Returns:
        The same values either way, with a note if they could not be kept.
    """
    if not signature:
        return build()

    stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:80]
    folder = cache_folder() / _DECODED / f"{stem}-{signature[:16]}"
    found = _load(folder, signature)
    if found is not None:
        return found

    dataset = build()
    try:
        _write(folder, signature, dataset)
        _remove_older(folder, stem)
    except OSError as reason:
        why = f"decoded data could not be kept in '{folder.parent}' ({reason.strerror or reason})"
        note = f"{why}: every run decodes it again."
        return dataclasses.replace(dataset, notes=(*dataset.notes, note))

    return dataset


def _load(folder: Path, signature: str) -> Dataset | None:
    """Return the data set of an entry; None if there is no entry, or it differs from what was
    written.
    """
    try:
        meta = read_object(folder / "meta.json", within=folder)
        if (meta["signature"], meta["fields_sha256"]) != (signature, _digest_of(meta["fields"])):
            return None

        fields: dict[str, Any] = {}
        for name, value in meta["fields"].items():
            fields[name] = tuple(value) if isinstance(value, list) else value

        for name in meta["arrays"]:
            path = folder / f"{name}.npy"
            with open_regular(
                path, within=folder
            ):  # nothing else is given to NumPy, which would wait for a pipe
                pass

            # copy-on-write: the file never changes, and torch can share the memory without a
            # warning
            fields[name] = np.load(path, mmap_mode="c", allow_pickle=False)

        mean, std = fields["normalize"]
        fields["normalize"] = Normalization(tuple(mean), tuple(std))
        if fields["raw"] is not None:
            columns, unused = fields["raw"]
            named = tuple(RawColumn(name, tuple(texts)) for name, texts in columns)
            fields["raw"] = RawTable(named, tuple(unused))

        if fields["columns"] is not None:
            fields["columns"] = Columns.from_json(fields["columns"])

        dataset = Dataset(**fields)
        return dataset if meta["digest"] == dataset.digest else None
    except Exception:  # a damaged array header raises exceptions of half a dozen kinds
        return None


def _write(folder: Path, signature: str, dataset: Dataset) -> None:
    """Write an entry under a temporary name, then rename it; it replaces an entry that could not be
    used.
    """
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    values = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(dataset)}
    arrays = {name: values[name] for name in _ARRAYS if values[name] is not None}
    fields = {name: value for name, value in values.items() if name not in _ARRAYS}
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
    """Rename a finished entry; if another process was faster, its entry stays."""
    try:
        if folder.exists():
            os.replace(folder, temporary / "replaced")
        os.replace(temporary, folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    except OSError:
        if not (folder / "meta.json").is_file():
            raise


def _digest_of(value: Any) -> str:
    """Return the SHA-256 of a value as JSON, which writing and reading do not change."""
    return hashlib.sha256(json.dumps(value, default=_plain, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold for a mapping, a NumPy number or a plan of columns."""
    if isinstance(value, Columns):
        return value.to_json()
    return value.item() if isinstance(value, np.generic) else dict(value)


def _remove_older(folder: Path, stem: str) -> None:
    """Remove other entries of the same name and abandoned ones; processes that use them keep them
    until they end.
    """
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
