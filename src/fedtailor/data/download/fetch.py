"""Fetch the published files of a known data set: checked, resumable, put where the readers look for them."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from fedtailor.core.errors import DataError, find_name
from fedtailor.data.datasets.known import DATASETS
from fedtailor.data.download.sources import DOWNLOADS, ELSEWHERE, Download

MAX_UNKNOWN = 64 * 2**30
"""Most bytes of a file whose size is not known beforehand."""

_SPARE = 2**28  # bytes that stay free on the disk while a file comes whose size nobody says


class FetchProgress(Protocol):
    """What is told while files are fetched."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Say how far ``what`` has come: bytes of a download, or files of an archive; ``total`` 0: not known."""


def fetch(
    name: str,
    folder: Path,
    *,
    progress: FetchProgress = lambda what, done, total: None,
    downloads: Mapping[str, tuple[Download, ...]] = DOWNLOADS,
) -> list[Path]:
    """Download what is published of a known data set and not there yet, and unpack it.

    A file is there if its checksum is right; one that is kept decompressed or unpacked is taken as it is. What came
    before a connection broke stays as ``FILE.part`` and is gone on with.

    Args:
        name: in :data:`fedtailor.data.datasets.known.DATASETS`.
        folder: the data folder.
        progress: told how far each file has come.
        downloads: by name of the data set.

    Returns:
        The files that are there afterwards; none where the data set needs no files.

    Raises:
        ConfigError: there is no data set of that name.
        DataError: nothing can be fetched, a server or the disk failed, or a file is not what was published.
    """
    name = find_name("dataset", name, DATASETS, key="dataset")
    if name not in downloads and DATASETS[name].files:
        places = ", ".join(DATASETS[name].files)
        raise DataError(
            f"data set '{name}' cannot be fetched. {ELSEWHERE[name]} Data folder: {folder} (files: {places}).",
            key="dataset",
            got=name,
        )
    return [path for download in downloads.get(name, ()) for path in _fetch_one(download, folder, progress)]


def is_there(download: Download, folder: Path) -> bool:
    """Return whether what a download gives is in the data folder, looking at names only."""
    return all(_kept(folder / path) is not None for path in download.gives or (download.path,))


def _kept(path: Path) -> Path | None:
    """Return the path of a file, or of the file that it is when decompressed, if one of them is there."""
    return next(
        (each for each in (path, path.with_suffix("") if path.suffix == ".gz" else path) if each.is_file()), None
    )


def _fetch_one(download: Download, folder: Path, progress: FetchProgress) -> list[Path]:
    """Fetch one file, unpack it if it is an archive, and return the files that are there."""
    path = folder / download.path
    try:
        if not (is_there(download, folder) and (download.gives or not path.is_file())):
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(download, path, progress)
            if download.unpack:
                _unpack(download, folder, progress)
    except OSError as reason:
        raise _cannot_write(path, reason) from reason
    return [found for each in download.gives or (download.path,) if (found := _kept(folder / each)) is not None]


def _download(download: Download, path: Path, progress: FetchProgress) -> None:
    """Download a file to its place, unless it is there with the right checksum."""
    algorithm, _, published = download.checksum.partition(":")
    if path.is_file():
        found = _checksum(path, algorithm)
        if found == published:
            return
        raise DataError(
            f"'{path}' is there, but its {algorithm} is {found}, and of the published file {published}. "
            "Remove it, or move it away, to fetch that one.",
            path=str(path),
            allowed=published,
            got=found,
        )
    from fedtailor.data.download.transfer import transfer

    part = path.with_name(f"{path.name}.part")
    have = part.stat().st_size if part.exists() else 0
    _check_space(path, download.size - have + download.unpacked)

    def report(done: int, total: int) -> None:
        if not (total or download.size):
            _check_space(path, _SPARE + download.unpacked)
        elif done in (0, have):
            _check_space(path, (total or download.size) - done + download.unpacked)
        progress(path.name, done, total or download.size)

    transfer(download.url, part, report, limit=download.size or MAX_UNKNOWN)
    found = _checksum(part, algorithm)
    if found != published:
        part.unlink()
        raise DataError(
            f"{download.url}: the {algorithm} of what came is {found}, and of the published file {published}. "
            "It was removed; the same command tries again.",
            path=download.url,
            allowed=published,
            got=found,
        )
    os.replace(part, path)


def _unpack(download: Download, folder: Path, progress: FetchProgress) -> None:
    """Unpack an archive, then remove it."""
    from fedtailor.data.download.unpack import unpack

    assert download.unpack
    archive, target = folder / download.path, folder / download.into
    _check_space(archive, download.unpacked)
    wanted = {folder / path for path in download.gives}
    unpack(
        archive,
        download.unpack,
        target,
        max_bytes=2 * download.unpacked,
        strip=download.strip,
        last=wanted.__contains__,
        report=lambda files: progress(f"unpacking {archive.name}", files, 0),
    )
    absent = sorted(str(path.relative_to(folder)) for path in wanted if not path.is_file())
    if absent:
        raise DataError(f"{archive}: expected the file '{absent[0]}' in it, got none.", path=str(archive))
    archive.unlink()


def _checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _check_space(path: Path, needed: int) -> None:
    """Check that the disk has room for so many bytes more.

    Raises:
        DataError: it has not.
    """
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"'{path}' needs {needed:,} bytes more, but the disk has {free:,} left.",
            path=str(path),
            allowed=f"{needed:,} bytes",
            got=f"{free:,} bytes",
        )


def _cannot_write(path: Path, reason: OSError) -> DataError:
    """Return the error for a disk that is full, or a folder that cannot be written."""
    after = " Make room; the same command goes on there." if reason.errno == errno.ENOSPC else ""
    return DataError(f"cannot write '{reason.filename or path}': {reason.strerror or reason}.{after}", path=str(path))
