"""The files of a known data set: where they are, how they are read, and what errors say of them.

A file is read with its SHA-256. No NumPy, so that the tables of data sets are listed at once.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Sized
from pathlib import Path

from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_file

MAX_BYTES = 2**31
"""Most bytes of a file, and of what it holds (SynDigits has 1.5 GB of training images)."""

Report = Callable[[str, int, int], None]
"""Is told what is done, how many images, bytes or files so far, and of how many (0: unknown)."""

READING = "reading pictures"
EMBEDDING = "embedding examples"


def to_nobody(what: str, done: int, total: int) -> None:
    """Report nothing."""


def data_folder(folder: str | Path = "") -> Path:
    """Return the argument, else ``FEDTAILOR_DATA``, else ``~/.cache/fedtailor``: the data sets."""
    chosen = str(folder) or os.environ.get("FEDTAILOR_DATA", "") or "~/.cache/fedtailor"
    return Path(chosen).expanduser()


def cache_folder() -> Path:
    """Return the folder of decoded data: ``FEDTAILOR_CACHE`` or ``~/.cache/fedtailor``."""
    return Path(os.environ.get("FEDTAILOR_CACHE", "") or "~/.cache/fedtailor").expanduser()


def cache_entry(kind: str, name: str, key: str) -> Path:
    """Return the folder of an entry of a cache; its name is for people, and its key decides."""
    stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:80]
    return cache_folder() / kind / f"{stem}-{key[:16]}"


class Files:
    """The files of one data set below a data folder.

    Args:
        dataset: name of the data set.
        folder: the data folder.
        report: is told how many pictures have been read.
    """

    def __init__(self, dataset: str, folder: Path, report: Report = to_nobody) -> None:
        self.dataset = dataset
        self.folder = folder
        self.report = report
        self.sources: dict[str, str] = {}
        """SHA-256 of every file read, by its path in the data folder."""
        self.last = folder
        """The file that was read last."""

    def find(self, *relative_paths: str) -> Path:
        """Return the first of some paths in the data folder at which there is a file.

        Raises:
            DataError: there is none; the message names the paths.
        """
        for relative_path in relative_paths:
            path = self.folder / relative_path
            if path.is_file():
                return path

        raise self.missing(*relative_paths)

    def read(self, path: Path) -> bytes:
        """Return the content of a file.

        Raises:
            DataError: it cannot be read, or is larger than ``MAX_BYTES``.
        """
        self.last = path
        return read_bytes(path, self.sources, folder=self.folder)

    def read_text(self, path: Path) -> str:
        """Return the text of a file in UTF-8.

        Raises:
            DataError: it cannot be read, or holds something else.
        """
        try:
            return self.read(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise wrong_content(path, "text in UTF-8", str(error)) from error

    def missing(self, *relative_paths: str) -> DataError:
        """Return the error for a data set without a file at any of some paths."""
        first = self.folder / relative_paths[0]
        options = " or ".join(f"'{relative_path}'" for relative_path in relative_paths)
        return DataError(
            f"data set '{self.dataset}': file '{first.name}' was not found in {first.parent}. "
            f"{self.advice(options)}",
            key="data.dir",
            path=first,
            allowed="an existing file",
            got="missing",
        )

    def advice(self, missing: str) -> str:
        """Return in two sentences how to give the data set what is missing."""
        return (
            f"Give the folder that holds {missing} with --data-dir or in the environment variable "
            f"FEDTAILOR_DATA. How to get the data: fedtailor data list {self.dataset}."
        )


def matching_files(folder: Path, patterns: Iterable[str]) -> dict[Path, os.stat_result]:
    """Return the files of a folder that match any pattern, and what the system says of each."""
    files = {}
    names: set[str] = set()
    for pattern in patterns:
        # Unlike that of a path, this one enters folders that are links, as readers do.
        names.update(glob.glob(pattern, root_dir=folder, recursive=True))

    for path in (folder / name for name in names):
        try:
            status = path.stat()
        except OSError:  # removed in the meantime, or a broken link
            continue

        if stat.S_ISREG(status.st_mode):
            files[path] = status

    return files


def read_bytes(path: Path, sources: dict[str, str], *, folder: Path) -> bytes:
    """Return the content of a file, and write its SHA-256 to ``sources``.

    Raises:
        DataError: the file cannot be read, or is larger than ``MAX_BYTES``.
    """
    raw = read_file(path, limit=MAX_BYTES)
    sources[path.relative_to(folder).as_posix()] = hashlib.sha256(raw).hexdigest()
    return raw


def wrong_content(path: Path, allowed: str, got: object) -> DataError:
    """Return the error for a file with other content than expected; ``got`` may be an exception."""
    text = f"{type(got).__name__}: {got}" if isinstance(got, Exception) else str(got)
    text = text[:200]
    message = f"{path}: expected {allowed}, got {text}."
    return DataError(message, path=path, allowed=allowed, got=text)


def check_count(path: Path, labels: Sized, examples: Sized) -> None:
    """Check that a file has one label for each example.

    Raises:
        DataError: it has more or fewer.
    """
    if len(labels) != len(examples):
        allowed = f"{len(examples)} labels, one for each example"
        raise wrong_content(path, allowed, f"{len(labels)} labels")
