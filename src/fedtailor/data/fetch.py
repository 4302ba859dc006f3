"""Download, check and unpack the published files of a known data set.

A library was considered: pooch 1.9 cannot resume a download, and loses what has arrived when a
connection breaks, which is much for archives of 160 MB to 37 GB.
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
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from fedtailor.core.errors import DataError, find_name
from fedtailor.data.datasets import DATASETS, PublishedFile
from fedtailor.data.files import Report, damaged, to_nobody

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each retry; the count starts again when a try gets further than all before it."""

_TIMEOUT = (15.0, 60.0)  # seconds to connect, and to wait for bytes
_CHUNK = 2**18
_UNUSABLE_NAMES = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""Of a name that is too long, or of a file that another member needs as a folder."""


def fetch(name: str, folder: Path, *, progress: Report = to_nobody) -> list[Path]:
    """Download the missing published files of a known data set, and unpack them.

    A file that exists is kept if its checksum is right; a file that was decompressed or unpacked is
    kept unchecked. An interrupted download stays as ``FILE.part`` and is resumed.

    Args:
        name: in :data:`fedtailor.data.datasets.DATASETS`.
        folder: the data folder.
        progress: is told the bytes of each download, and the files unpacked from an archive.

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
    for published in entry.downloads:
        try:
            _fetch_one(published, folder, progress)
        except OSError as reason:
            raise _cannot_write(folder / published.path, reason) from reason

        paths += [path for path in _present_files(published, folder) if path is not None]

    return paths


def is_there(published: PublishedFile, folder: Path) -> bool:
    """Return whether the data folder holds the files of a download, by their names only."""
    return None not in _present_files(published, folder)


def _present_files(published: PublishedFile, folder: Path) -> list[Path | None]:
    """Return the path of every file that a download gives, or of its decompressed copy."""
    paths: list[Path | None] = []
    for place in published.gives or (published.path,):
        candidates = (folder / place, folder / place.removesuffix(".gz"))
        paths.append(next((path for path in candidates if path.is_file()), None))

    return paths


def _fetch_one(published: PublishedFile, folder: Path, progress: Report) -> None:
    """Fetch one file unless it is there, and unpack it if it is an archive."""
    # What was unpacked or decompressed has no checksum.
    path = folder / published.path
    if is_there(published, folder) and (published.gives or not path.is_file()):
        return

    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        _download(published, path, progress)
    elif difference := _difference(path, published):
        advice = "Remove the file or move it away to fetch the published one."
        raise DataError(f"'{path}': {difference} {advice}", path=str(path))

    if published.unpack:
        unpack(path, published, folder, progress)
        path.unlink()


def _download(published: PublishedFile, path: Path, progress: Report) -> None:
    """Download a file beside its place, and move it there if it is the published one."""
    part = path.with_name(f"{path.name}.part")
    needed = published.size + published.unpacked - _size(part)
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        message = f"'{path}' needs {needed:,} more bytes, but the disk has {free:,} left."
        raise DataError(message, path=str(path), allowed=f"{needed:,} bytes", got=f"{free:,} bytes")

    def report(done: int, total: int) -> None:
        progress(path.name, done, total or published.size)

    transfer(published.url, part, report)
    if difference := _difference(part, published):
        part.unlink()
        advice = "The download was removed. Run the same command to try again."
        raise DataError(f"{published.url}: {difference} {advice}", path=published.url)

    os.replace(part, path)


def _difference(path: Path, published: PublishedFile) -> str:
    """Return a sentence if the checksum of a file is not the published one."""
    algorithm, _, expected = published.checksum.partition(":")
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, algorithm).hexdigest()

    if checksum == expected:
        return ""
    return f"its {algorithm} is {checksum}; the published file has {expected}."


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Retry(requests.RequestException):
    """A server's answer that is unusable now and may be usable at the next try."""


def transfer(url: str, part: Path, report: Callable[[int, int], None]) -> None:
    """Download a file; resume after the bytes in ``part`` if the server supports it.

    Args:
        url: http or https.
        part: keeps the downloaded bytes if the connection breaks.
        report: called with the downloaded bytes and the bytes of the whole file (0: unknown).

    Raises:
        DataError: the server cannot be reached or does not have the file, or the connection keeps
            breaking.
        OSError: the file cannot be written.
    """
    most = _size(part)
    failures = 0
    while True:
        try:
            _transfer_once(url, part, report)
            return
        except (requests.RequestException, HTTPError) as reason:
            # A try that got further than all before it is no failure in a row.
            failures = failures + 1 if _size(part) <= most else 1
            most = max(most, _size(part))
            if failures > len(PAUSES):
                raise _broken(url, part, reason) from reason

            time.sleep(PAUSES[failures - 1])


def _transfer_once(url: str, part: Path, report: Callable[[int, int], None]) -> None:
    """Try once to download the rest of the file."""
    have = _size(part)
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"

    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        done, total = _start_and_total(response, part, have)
        report(done, total)
        if done == total > 0:
            return

        with part.open("ab" if done else "wb") as file:
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                report(done, total)

    if total and done != total:
        raise _Retry(f"the connection closed after {done} of {total} bytes")


def _start_and_total(response: requests.Response, part: Path, have: int) -> tuple[int, int]:
    """Return the position at which the answer starts, and the bytes of the file (0: unknown)."""
    status = response.status_code
    if status == 200:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else 0

    # The rest of the file; 416: there is none, the part may be complete.
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


def unpack(archive: Path, published: PublishedFile, folder: Path, progress: Report) -> None:
    """Unpack an archive beside its place, then move the files there, replacing existing ones.

    The checksum says that the archive is the published one. All the same, Python's filter for
    archives of data refuses names that lead out of the folder.

    Raises:
        DataError: the archive is damaged, or lacks a file that it should give.
        OSError: a file cannot be written.
    """
    target = folder / published.into
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target) as name:
        unpacked = Path(name)
        try:
            for files, _ in enumerate(_extract(archive, published.unpack, unpacked), 1):
                progress(f"unpacking {archive.name}", files, 0)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as reason:
            raise damaged(archive, "an intact archive of plain files", reason) from reason
        except OSError as reason:
            if reason.errno not in _UNUSABLE_NAMES:
                raise
            raise damaged(archive, "names that files can have here", reason) from reason

        # A file in `gives` says that all are there, so those are moved last.
        root = unpacked / published.strip
        expected = {folder / place for place in published.gives}
        places = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        places.sort(key=lambda place: target / place in expected)
        absent = expected.difference(target / place for place in places)
        if absent:
            raise damaged(archive, f"the file '{min(absent)}'", "none")

        for place in places:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            os.replace(root / place, target / place)


def _extract(archive: Path, kind: str, unpacked: Path) -> Iterator[None]:
    """Unpack the members of an archive, one a step."""
    if kind == "tar":
        with tarfile.open(archive, "r|*") as tar:
            for info in tar:
                tar.extract(info, unpacked, filter="data")
                yield
    else:
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                packed.extract(name, unpacked)
                yield


def _broken(url: str, part: Path, reason: Exception) -> DataError:
    """Return the error for a connection that failed, or broke too often."""
    # The first cause says most; its text without addresses of objects.
    root: BaseException = reason
    while root.__context__ is not None:
        root = root.__context__

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
