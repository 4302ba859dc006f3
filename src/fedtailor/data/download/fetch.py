"""Download, check and unpack the published files of a known data set."""

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
"""Most bytes of a file whose size is not known in advance."""

_SPARE = 2**28  # bytes that must stay free on the disk during a download of unknown size


class FetchProgress(Protocol):
    """A function that reports progress while files are fetched."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Report the progress of ``what``: bytes of a download, or files of an archive; ``total``
        0: unknown.
        """


def fetch(
    name: str,
    folder: Path,
    *,
    progress: FetchProgress = lambda what, done, total: None,
    downloads: Mapping[str, tuple[Download, ...]] = DOWNLOADS,
) -> list[Path]:
    """Download the missing published files of a known data set, and unpack them.

    A file that exists is kept if its checksum is right; a file that was decompressed or unpacked is
    kept unchecked. An interrupted download stays as ``FILE.part`` and is resumed.

    Args:
        name: in :data:`fedtailor.data.datasets.known.DATASETS`.
        folder: the data folder.
        progress: called with the progress of each file.
        downloads: sources by name of the data set.

    Returns:
        The files of the data set; none if it needs no files.

    Raises:
        ConfigError: no data set has that name.
        DataError: the data set cannot be fetched, a server or the disk failed, or a file differs
            from the published one.
    """
    name = find_name("dataset", name, DATASETS, key="dataset")
    if name not in downloads and DATASETS[name].files:
        places = ", ".join(DATASETS[name].files)
        raise DataError(
            f"data set '{name}' cannot be fetched. {ELSEWHERE[name]} Data folder: {folder} (files: {places}).",
            key="dataset",
            got=name,
        )

    paths = []
    for download in downloads.get(name, ()):
        paths += _fetch_one(download, folder, progress)

    return paths


def is_there(download: Download, folder: Path) -> bool:
    """Return whether the data folder holds the files of a download, by their names only."""
    return None not in _present_files(download, folder)


def _present_files(download: Download, folder: Path) -> list[Path | None]:
    """Return the path of every file that a download gives, compressed or not; None for one that is
    missing.
    """
    return [_find_file(folder / path) for path in download.gives or (download.path,)]


def _find_file(path: Path) -> Path | None:
    """Return the path of a file, or of its decompressed copy, if one of them exists."""
    if path.is_file():
        return path
    if path.suffix == ".gz" and path.with_suffix("").is_file():
        return path.with_suffix("")
    return None


def _fetch_one(download: Download, folder: Path, progress: FetchProgress) -> list[Path]:
    """Fetch one file, unpack it if it is an archive, and return the files that exist afterwards."""
    path = folder / download.path
    unpacked = download.gives and is_there(download, folder)
    decompressed = not download.gives and not path.is_file() and is_there(download, folder)
    if not unpacked and not decompressed:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(download, path, progress)
            if download.unpack:
                _unpack(download, folder, progress)
        except OSError as reason:
            raise _cannot_write(path, reason) from reason

    return [found for found in _present_files(download, folder) if found is not None]


def _download(download: Download, path: Path, progress: FetchProgress) -> None:
    """Download a file to its place, unless it exists with the right checksum."""
    algorithm, _, published = download.checksum.partition(":")
    if path.is_file():
        found = _checksum(path, algorithm)
        if found == published:
            return

        raise DataError(
            f"'{path}' exists, but its {algorithm} is {found}; the published file has {published}. "
            "Remove the file or move it away to fetch the published one.",
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
            f"{download.url}: the downloaded file has the {algorithm} {found}; the published file has {published}. "
            "The download was removed. Run the same command to try again.",
            path=download.url,
            allowed=published,
            got=found,
        )

    os.replace(part, path)


def _unpack(download: Download, folder: Path, progress: FetchProgress) -> None:
    """Unpack an archive and remove it."""
    from fedtailor.data.download.unpack import unpack

    assert download.unpack
    archive = folder / download.path
    target = folder / download.into
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
        raise DataError(
            f"{archive}: expected the file '{absent[0]}' in the archive, got none.",
            path=str(archive),
        )

    archive.unlink()


def _checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _check_space(path: Path, needed: int) -> None:
    """Check that the disk has room for ``needed`` more bytes.

    Raises:
        DataError: the disk has less.
    """
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"'{path}' needs {needed:,} more bytes, but the disk has {free:,} left.",
            path=str(path),
            allowed=f"{needed:,} bytes",
            got=f"{free:,} bytes",
        )


def _cannot_write(path: Path, reason: OSError) -> DataError:
    """Return the error for a full disk, or a folder that cannot be written."""
    message = f"cannot write '{reason.filename or path}': {reason.strerror or reason}."
    if reason.errno == errno.ENOSPC:
        message += " Free some space and run the same command again to resume the download."
    return DataError(message, path=str(path))
