"""Download, check and unpack the published files of a known data set.

A library was considered: pooch 1.9 cannot resume a download, and loses what has arrived when a
connection breaks, which is much for archives of 160 MB to 37 GB.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from fedtailor.core.errors import DataError, find_name
from fedtailor.data.datasets import DATASETS, PublishedFile
from fedtailor.data.files import Report, to_nobody

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each retry; the count starts again when a try gets further than all before it."""

_TIMEOUT = (15.0, 60.0)  # seconds to connect, and to wait for bytes
_CHUNK = 2**18


def fetch(name: str, folder: Path, *, progress: Report = to_nobody) -> list[Path]:
    """Download the missing published files of a known data set, and unpack them.

    A file that exists is kept if its checksum is right; a file that was decompressed or unpacked is
    kept unchecked. An interrupted download stays as ``FILE.part`` and is resumed.

    Args:
        name: in :data:`fedtailor.data.datasets.DATASETS`.
        folder: the data folder.
        progress: is told the bytes of each download, and when an archive is unpacked.

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
        relative_paths = ", ".join(entry.files)
        raise DataError(
            f"data set '{name}' cannot be fetched. {entry.elsewhere} "
            f"Data folder: {folder} (files: {relative_paths}).",
            key="dataset",
            got=name,
        )

    paths = []
    for published in entry.downloads:
        try:
            _fetch_one(published, folder, progress)
        except OSError as reason:  # of the disk: the server's are caught below
            path = reason.filename or folder / published.path
            message = f"cannot write '{path}': {reason.strerror or reason}."
            raise DataError(message, path=path) from reason

        paths += [path for path in _present_files(published, folder) if path is not None]

    return paths


def is_there(published: PublishedFile, folder: Path) -> bool:
    """Return whether the data folder holds the files of a download, by their names only."""
    return None not in _present_files(published, folder)


def _present_files(published: PublishedFile, folder: Path) -> list[Path | None]:
    """Return the path of every file that a download gives, or of its decompressed copy."""
    paths: list[Path | None] = []
    for relative_path in published.gives or (published.path,):
        candidates = [folder / relative_path, folder / relative_path.removesuffix(".gz")]
        if published.strip:
            # Who has unpacked the archive has this folder.
            unpacked = folder / published.into
            unpacked = unpacked.parent / published.strip / Path(relative_path).name
            candidates += [unpacked, unpacked.with_suffix("")]

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
        raise DataError(f"'{path}': {difference} {advice}", path=path)

    if published.unpack:
        unpack(path, published, folder, progress)
        path.unlink()


def _download(published: PublishedFile, path: Path, progress: Report) -> None:
    """Download a file beside its place, and move it there if it is the published one."""
    part = path.with_name(f"{path.name}.part")
    transfer(published.url, part, partial(progress, path.name))
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
            # A try that got further than all before it does not count as a failure.
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
        status = response.status_code
        if status == 416:  # there is no rest, and the checksum says whether the part is right
            return
        if status in (408, 425, 429) or status >= 500:
            raise requests.RequestException(f"the server answered {status} {response.reason}")
        if status not in (200, 206):
            message = f"{url}: the server answered {status} {response.reason}; "
            raise DataError(f"{message}the file may have moved.", path=url, got=status)

        # 206: the rest of the file; 200: all of it.
        done = have if status == 206 else 0
        length = int(response.headers.get("Content-Length", 0))
        total = done + length if length else 0
        report(done, total)
        with part.open("ab" if done else "wb") as file:
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                report(done, total)

    if total and done != total:
        raise requests.RequestException(f"the connection closed after {done} of {total} bytes")


def _broken(url: str, part: Path, reason: Exception) -> DataError:
    """Return the error for a connection that failed, or broke too often."""
    # The first cause says most.
    root: BaseException = reason
    while root.__context__ is not None:
        root = root.__context__

    text = str(root) or type(root).__name__
    message = (
        f"{urlsplit(url).netloc} cannot be reached or does not answer ({text}), after "
        f"{_size(part):,} bytes. Run the same command again to resume the download; without a "
        f"network, put {url} into '{part.parent}'."
    )
    return DataError(message, path=url, got=text)


def unpack(archive: Path, published: PublishedFile, folder: Path, progress: Report) -> None:
    """Unpack an archive beside its place, then move the files there, replacing existing ones.

    Its checksum says that it is the published one.

    Raises:
        OSError: a file cannot be written.
    """
    target = folder / published.into
    progress(f"unpacking {archive.name}", 0, 0)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target) as name:
        if published.unpack == "tar":
            with tarfile.open(archive) as tar:
                tar.extractall(name, filter="data")
        else:
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(name)

        # A file in `gives` says that all are there, so those are moved last.
        root = Path(name) / published.strip
        expected = {folder / relative_path for relative_path in published.gives}
        relative_paths = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        relative_paths.sort(key=lambda relative_path: target / relative_path in expected)
        for relative_path in relative_paths:
            (target / relative_path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(root / relative_path, target / relative_path)
