"""Helpers to read the files of a data set: a size limit, the SHA-256, and errors that name the
file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedtailor.core.errors import DataError
from fedtailor.data.download.sources import DOWNLOADS

MAX_BYTES = 2**30
"""Most bytes of a file, and of the content of a compressed file (EMNIST by class has 547 MB of
images)."""


def read_bytes(path: Path, sources: dict[str, str], *, folder: Path) -> bytes:
    """Return the content of a file and write its SHA-256 to ``sources`` under its path within
    ``folder``.

    Raises:
        DataError: the file cannot be read, or is larger than ``MAX_BYTES``.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise damaged(path, f"at most {MAX_BYTES} bytes", f"{size} bytes")

        raw = path.read_bytes()
    except OSError as error:
        raise damaged(path, "a file that can be read", error.strerror or str(error)) from error

    sources[path.relative_to(folder).as_posix()] = hashlib.sha256(raw).hexdigest()
    return raw


def missing(dataset: str, folder: Path, places: list[Path]) -> DataError:
    """Return the error for a data set without a file at any of ``places``; ``folder`` is the data
    folder.
    """
    first, *others = places
    also = "".join(f" or '{other.relative_to(folder).as_posix()}'" for other in others)
    how = f", or download it with: fedtailor data fetch {dataset}" if dataset in DOWNLOADS else ""
    return DataError(
        f"data set '{dataset}': file '{first.name}' was not found in {first.parent}. "
        f"Give the folder that holds '{first.relative_to(folder).as_posix()}'{also} "
        f"with --data-dir or in the environment variable FEDTAILOR_DATA{how}.",
        key="data.dir",
        path=str(first),
        allowed="an existing file",
        got="missing",
    )


def damaged(path: Path, allowed: str, got: str) -> DataError:
    """Return the error for a file with other content than expected."""
    return DataError(
        f"{path}: expected {allowed}, got {got}.", path=str(path), allowed=allowed, got=got
    )
