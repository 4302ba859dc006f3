"""Reading the files of a data set: bounded in size, with their SHA-256, and errors that name them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedtailor.core.errors import DataError
from fedtailor.data.download.sources import DOWNLOADS

MAX_BYTES = 2**30
"""Largest file, and largest content of a compressed file, that is read (EMNIST by class has 547 MB of images)."""


def read_bytes(path: Path, sources: dict[str, str], *, folder: Path) -> bytes:
    """Return the content of a file and note its SHA-256 in ``sources`` under its path within ``folder``.

    Raises:
        DataError: it cannot be read, or is larger than ``MAX_BYTES``.
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
    """Return the error for a data set none of whose ``places`` holds a file; ``folder`` is the data folder."""
    first, *others = places
    also = "".join(f" or '{other.relative_to(folder).as_posix()}'" for other in others)
    how = f"; or download it with: fedtailor data fetch {dataset}" if dataset in DOWNLOADS else ""
    return DataError(
        f"data set '{dataset}': file '{first.name}' was looked for in {first.parent} and is not there. "
        f"Give the folder that holds '{first.relative_to(folder).as_posix()}'{also} "
        f"with --data-dir or in the environment variable FEDTAILOR_DATA{how}.",
        key="data.dir",
        path=str(first),
        allowed="an existing file",
        got="missing",
    )


def damaged(path: Path, allowed: str, got: str) -> DataError:
    """Return the error for a file that does not hold what it should."""
    return DataError(f"{path}: expected {allowed}, got {got}.", path=str(path), allowed=allowed, got=got)
