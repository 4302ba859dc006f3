"""Download, check and unpack the published files of a known data set.

A library was considered: pooch 1.9 cannot resume a download or limit its size, and loses what has
arrived when a connection breaks, which is much for archives of 160 MB to 37 GB.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from fedtailor.core.errors import DataError, find_name
from fedtailor.data.datasets.known import DATASETS, Download

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each retry; the count starts again when a try gets further than all before it."""
MAX_UNKNOWN = 64 * 2**30
"""Most bytes of a file whose size is not known in advance."""

_TIMEOUT = (15.0, 60.0)  # seconds to connect, and to wait for bytes
_CHUNK = 2**18


class FetchProgress(Protocol):
    """A function that reports progress while files are fetched."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Report bytes of a download, or files of an archive; ``total`` 0: unknown."""


def fetch(
    name: str, folder: Path, *, progress: FetchProgress = lambda what, done, total: None
) -> list[Path]:
    """Download the missing published files of a known data set, and unpack them.

    A file that exists is kept if its checksum is right; a file that was decompressed or unpacked is
    kept unchecked. An interrupted download stays as ``FILE.part`` and is resumed.

    Args:
        name: in :data:`fedtailor.data.datasets.known.DATASETS`.
        folder: the data folder.
        progress: called with the progress of each file.

    Returns:
        The files of the data set; none if it needs no files.

    Raises:
        ConfigError: no data set has that name.
        DataError: the data set cannot be fetched, a server or the disk failed, or a file differs
            from the published one.
    """
    name = find_name("dataset", name, DATASETS, key="dataset")
    entry = DATASETS[name]
    if entry.files and not entry.downloads:
        places = ", ".join(entry.files)
        raise DataError(
            f"data set '{name}' cannot be fetched. {entry.elsewhere} "
            f"Data folder: {folder} (files: {places}).",
            key="dataset",
            got=name,
        )

    paths = []
    for download in entry.downloads:
        try:
            _fetch_one(download, folder, progress)
        except OSError as reason:
            raise _cannot_write(folder / download.path, reason) from reason

        paths += [path for path in _present_files(download, folder) if path is not None]

    return paths


def is_there(download: Download, folder: Path) -> bool:
    """Return whether the data folder holds the files of a download, by their names only."""
    return None not in _present_files(download, folder)


def _present_files(download: Download, folder: Path) -> list[Path | None]:
    """Return the path of every file that a download gives, or of its decompressed copy."""
    paths: list[Path | None] = []
    for place in download.gives or (download.path,):
        candidates = (folder / place, folder / place.removesuffix(".gz"))
        paths.append(next((path for path in candidates if path.is_file()), None))

    return paths


def _fetch_one(download: Download, folder: Path, progress: FetchProgress) -> None:
    """Fetch one file unless it is there, and unpack it if it is an archive."""
    # What was unpacked or decompressed has no checksum.
    path = folder / download.path
    if is_there(download, folder) and (download.gives or not path.is_file()):
        return

    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        _download(download, path, progress)
    elif difference := _difference(path, download):
        advice = "Remove the file or move it away to fetch the published one."
        raise DataError(f"'{path}': {difference} {advice}", path=str(path))

    if download.unpack:
        unpack(path, download, folder, lambda files: progress(f"unpacking {path.name}", files, 0))
        path.unlink()


def _download(download: Download, path: Path, progress: FetchProgress) -> None:
    """Download a file beside its place, and move it there if it is the published one."""
    part = path.with_name(f"{path.name}.part")
    _check_space(path, download.size + download.unpacked - _size(part))

    def report(done: int, total: int) -> None:
        progress(path.name, done, total or download.size)

    transfer(download.url, part, report, limit=download.size or MAX_UNKNOWN)
    if difference := _difference(part, download):
        part.unlink()
        advice = "The download was removed. Run the same command to try again."
        raise DataError(f"{download.url}: {difference} {advice}", path=download.url)

    os.replace(part, path)


def _difference(path: Path, download: Download) -> str:
    """Return a sentence if the checksum of a file is not the published one."""
    algorithm, _, published = download.checksum.partition(":")
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, algorithm).hexdigest()

    if checksum == published:
        return ""
    return f"its {algorithm} is {checksum}; the published file has {published}."


def _check_space(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        message = f"'{path}' needs {needed:,} more bytes, but the disk has {free:,} left."
        raise DataError(message, path=str(path), allowed=f"{needed:,} bytes", got=f"{free:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Retry(requests.RequestException):
    """A server's answer that is unusable now and may be usable at the next try."""


def transfer(url: str, part: Path, report: Callable[[int, int], None], *, limit: int) -> None:
    """Download a file; resume after the bytes in ``part`` if the server supports it.

    Args:
        url: http or https.
        part: keeps the downloaded bytes if the connection breaks.
        report: called with the downloaded bytes and the bytes of the whole file (0: unknown).
        limit: most bytes that the whole file may have.

    Raises:
        DataError: the server cannot be reached, does not have the file, or sends more than it
            announced or than ``limit`` (``part`` is removed), or the connection keeps breaking.
        OSError: the file cannot be written.
    """
    most = _size(part)
    failures = 0
    while True:
        try:
            _transfer_once(url, part, report, limit)
            return
        except (requests.RequestException, HTTPError) as reason:
            # A try that got further than all before it is no failure in a row.
            failures = failures + 1 if _size(part) <= most else 1
            most = max(most, _size(part))
            if failures > len(PAUSES):
                raise _broken(url, part, reason) from reason

            time.sleep(PAUSES[failures - 1])


def _transfer_once(url: str, part: Path, report: Callable[[int, int], None], limit: int) -> None:
    """Try once to download the rest of the file."""
    have = _size(part)
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"

    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        done, total = _start_and_total(response, part, have)
        most = total or limit
        if most > limit:
            raise _too_long(url, part, limit)

        report(done, total)
        if done == total > 0:
            return

        with part.open("ab" if done else "wb") as file:
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                done += len(chunk)
                if done > most:
                    raise _too_long(url, part, most)

                file.write(chunk)
                report(done, total)

    if total and done != total:
        raise _Retry(f"the connection closed after {done} of {total} bytes")


def _start_and_total(response: requests.Response, part: Path, have: int) -> tuple[int, int]:
    """Return the position at which the answer starts, and the bytes of the file (0: unknown)."""
    status = response.status_code
    if status == 200:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else 0

    if status in (206, 416):
        content_range = response.headers.get("Content-Range", "")
        places = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", content_range)
        if places and int(places[1] or places[2]) == have:
            return have, int(places[2])

        part.unlink()  # it is longer than the file, or the server would start elsewhere
        raise _Retry(f"the server answered {status} to a request for the rest")

    if status in (408, 425, 429) or status >= 500:
        raise _Retry(f"the server answered {status} {response.reason}")

    message = f"{response.url}: the server answered {status} {response.reason}; "
    raise DataError(f"{message}the file may have moved.", path=response.url, got=status)


def unpack(archive: Path, download: Download, folder: Path, report: Callable[[int], None]) -> None:
    """Unpack an archive beside its place, then move the files there, replacing existing ones.

    Names that lead out of the folder are refused by Python's filter for archives of data, or lose
    what leads there. Files in ``download.gives`` are moved last.

    Raises:
        DataError: the archive is damaged or too large, or holds what is refused.
        OSError: a file cannot be written.
    """
    target = folder / download.into
    expected = {folder / place for place in download.gives}
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target) as name:
        unpacked = Path(name)
        left = 2 * download.unpacked
        try:
            for files, size in enumerate(_extract(archive, download.unpack, unpacked), 1):
                left -= size
                if left < 0:
                    raise _refuse(archive, f"at most {2 * download.unpacked} bytes", "more")
                report(files)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError) as reason:
            got = f"{type(reason).__name__}: {reason}"
            raise _refuse(archive, "an intact archive of plain files", got) from reason

        root = unpacked / download.strip
        # A file in `gives` says that all are there, so those are moved last.
        places = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        places.sort(key=lambda place: target / place in expected)
        absent = expected.difference(target / place for place in places)
        if absent:
            raise _refuse(archive, f"the file '{min(absent)}'", "none")

        for place in places:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            os.replace(root / place, target / place)


def _extract(archive: Path, kind: str, unpacked: Path) -> Iterator[int]:
    """Yield the size of every member before it is unpacked in turn."""
    if kind == "tar":
        with tarfile.open(archive, "r|*") as tar:
            for info in tar:
                if not (info.isreg() or info.isdir()):
                    raise ValueError(f"'{info.name}' is a link or a device")

                yield info.size
                tar.extract(info, unpacked, filter="data")
    else:
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                yield member.file_size
                packed.extract(member, unpacked)


def _refuse(archive: Path, allowed: str, got: str) -> DataError:
    message = f"{archive}: expected {allowed}, got {got}."
    return DataError(message, path=str(archive), allowed=allowed, got=got)


def _too_long(url: str, part: Path, limit: int) -> DataError:
    """Remove the downloaded bytes and return the error for a file that is longer than it can be."""
    part.unlink(missing_ok=True)
    allowed = f"at most {limit:,} bytes"
    message = f"{url}: expected {allowed}, got more. The download was removed."
    return DataError(message, path=url, allowed=allowed, got="more")


def _broken(url: str, part: Path, reason: Exception) -> DataError:
    """Return the error for a connection that failed, or broke too often."""
    root: BaseException = reason
    while root.__context__ is not None:
        root = root.__context__

    # The text without addresses of objects.
    text = re.sub(r"<[^>]*>:? ?", "", str(root)) or type(root).__name__
    host = urlsplit(url).netloc
    message = (
        f"{host} cannot be reached or does not answer ({text}). "
        f"Without a network, put {url} into '{part.parent}'."
    )
    if have := _size(part):
        message = (
            f"the connection to {host} broke ({text}) after {have:,} bytes. "
            "Run the same command again to resume the download."
        )

    return DataError(message, path=url, got=text)


def _cannot_write(path: Path, reason: OSError) -> DataError:
    """Return the error for a full disk, or a folder that cannot be written."""
    message = f"cannot write '{reason.filename or path}': {reason.strerror or reason}."
    if reason.errno == errno.ENOSPC:
        message += " Free some space and run the same command again to resume the download."
    return DataError(message, path=str(path))
