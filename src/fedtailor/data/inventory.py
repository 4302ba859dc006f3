"""The inventory of known data sets: what they are, and which files are there.

No file is opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from fedtailor.core.errors import find_name
from fedtailor.data.datasets import DATASETS, KnownDataset
from fedtailor.data.fetch import is_there
from fedtailor.data.files import matching_files

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
    dataset = DATASETS[name]

    sizes = _sizes(folder, dataset.files)
    return {
        "name": name,
        "description": dataset.description,
        "examples": dataset.examples if dataset.examples >= 0 else None,
        "state": _state(dataset, folder, has_files=bool(sizes)),
        "files": len(sizes),
        "bytes": sum(sizes.values()),
        "license": dataset.license,
        "citation": dataset.citation,
        "tested_on": dataset.tested_on,
        "fetchable": bool(dataset.downloads),
        "urls": [download.url for download in dataset.downloads],
        "elsewhere": dataset.elsewhere or None,
    }


def _state(dataset: KnownDataset, folder: Path, *, has_files: bool) -> State:
    if not dataset.files:
        return "included"
    if not has_files:
        return "absent"

    # Files that cannot be fetched have patterns of their own.
    complete = [is_there(download, folder) for download in dataset.downloads]
    if dataset.elsewhere:
        complete += [bool(_sizes(folder, [pattern])) for pattern in dataset.files]

    return "present" if all(complete) else "partial"


def _sizes(folder: Path, patterns: Iterable[str]) -> dict[Path, int]:
    """Return the files that match and their bytes, without unfinished downloads and archives."""
    files = matching_files(folder, patterns).items()
    return {path: status.st_size for path, status in files if path.suffix not in (".part", ".zip")}
