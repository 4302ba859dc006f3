"""The inventory of known data sets: what they are, and which files are there.

No file is opened.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Literal

from fedtailor.core.errors import find_name
from fedtailor.data.datasets.known import DATASETS, KnownDataset
from fedtailor.data.fetch import is_there

State = Literal["included", "present", "partial", "absent"]


def inventory(folder: Path) -> list[dict[str, Any]]:
    """Return one record per known data set, ready for JSON, by name.

    ``state`` is ``included`` (no files are needed), ``present`` (all files that can be fetched
    exist, and at least one for every other pattern), ``partial`` (some files exist) or ``absent``.
    Whether the files can be read is not tested.

    Args:
        folder: the data folder; it need not exist.
    """
    return [describe_dataset(name, folder) for name in sorted(DATASETS)]


def describe_dataset(name: str, folder: Path) -> dict[str, Any]:
    """Return the record of one known data set.

    Raises:
        ConfigError: no data set has that name.
    """
    name = find_name("dataset", name, DATASETS, key="dataset")
    known = DATASETS[name]
    files = {pattern: _sizes(folder, pattern) for pattern in known.files}
    together: dict[Path, int] = {}
    for sizes in files.values():
        together |= sizes  # a file may match several patterns

    return {
        "name": name,
        "description": known.description,
        "examples": known.examples if known.examples >= 0 else None,
        "state": _state(known, folder, files),
        "files": len(together),
        "bytes": sum(together.values()),
        "license": known.license,
        "citation": known.citation,
        "tested_on": known.tested_on,
        "fetchable": bool(known.downloads),
        "urls": [download.url for download in known.downloads],
        "elsewhere": known.elsewhere or None,
    }


def _state(known: KnownDataset, folder: Path, files: dict[str, dict[Path, int]]) -> State:
    if not files:
        return "included"
    if not any(files.values()):
        return "absent"
    complete = [is_there(download, folder) for download in known.downloads]
    if known.elsewhere:  # files that cannot be fetched have patterns of their own
        complete += [bool(sizes) for sizes in files.values()]
    return "present" if all(complete) else "partial"


def _sizes(folder: Path, pattern: str) -> dict[Path, int]:
    """Return the files that match and their sizes in bytes.

    Unfinished downloads and archives are left out.
    """
    sizes = {}
    for path in folder.glob(pattern):
        try:
            status = path.stat()
        except OSError:  # removed in the meantime, or a broken link
            continue

        if stat.S_ISREG(status.st_mode) and path.suffix not in (".part", ".zip"):
            sizes[path] = status.st_size

    return sizes
