"""What is known of every data set, and what of it is in the data folder; nothing is read or decoded."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Literal

from fedtailor.core.errors import find_name
from fedtailor.data.datasets.known import DATASETS
from fedtailor.data.download.fetch import is_there
from fedtailor.data.download.sources import DOWNLOADS, ELSEWHERE

State = Literal["included", "present", "partial", "absent"]


def inventory(folder: Path) -> list[dict[str, Any]]:
    """Return one record per known data set, ready for JSON, by name.

    ``state`` is ``included`` (no files are needed), ``present`` (all that can be fetched is there, and something for
    every other file), ``partial`` (some files are there) or ``absent``. Whether files can be read is only known to
    who reads them.

    Args:
        folder: the data folder; it need not exist.
    """
    return [describe_dataset(name, folder) for name in sorted(DATASETS)]


def describe_dataset(name: str, folder: Path) -> dict[str, Any]:
    """Return the record of one known data set.

    Raises:
        ConfigError: there is no data set of that name.
    """
    name = find_name("dataset", name, DATASETS, key="dataset")
    known = DATASETS[name]
    found = {pattern: _sizes(folder, pattern) for pattern in known.files}
    together = {path: size for sizes in found.values() for path, size in sizes.items()}
    return {
        "name": name,
        "description": known.description,
        "examples": known.examples if known.examples >= 0 else None,
        "state": _state(name, folder, found),
        "files": len(together),
        "bytes": sum(together.values()),
        "license": known.license,
        "citation": known.citation,
        "tested_on": known.tested_on,
        "fetchable": name in DOWNLOADS,
        "urls": [download.url for download in DOWNLOADS.get(name, ())],
        "elsewhere": ELSEWHERE.get(name),
    }


def _state(name: str, folder: Path, found: dict[str, dict[Path, int]]) -> State:
    if not found:
        return "included"
    if not any(found.values()):
        return "absent"
    fetched = [is_there(download, folder) for download in DOWNLOADS.get(name, ())]
    if name in ELSEWHERE:  # what is not fetched has a pattern of its own
        fetched += [bool(sizes) for sizes in found.values()]
    return "present" if all(fetched) else "partial"


def _sizes(folder: Path, pattern: str) -> dict[Path, int]:
    """Return the files that match, with their sizes in bytes; unfinished downloads and archives are none of them."""
    sizes = {}
    for path in folder.glob(pattern):
        try:
            status = path.stat()
        except OSError:  # removed meanwhile, or a link to nothing
            continue
        if stat.S_ISREG(status.st_mode) and path.suffix not in (".part", ".zip"):
            sizes[path] = status.st_size
    return sizes
