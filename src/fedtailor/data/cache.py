"""The cache of decoded data sets, whose arrays are mapped into memory and shared by processes.

An entry is the folder ``decoded/NAME-SIGNATURE`` of the cache folder: the arrays as ``.npy``, the
other fields as ``meta.json``. It appears whole, by renaming, and is never changed. An entry whose
arrays differ from their digest is decoded again. The cache only saves time: if it cannot be
written, data stay in memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.folders import whole_folder
from fedtailor.core.reading import open_regular, read_object
from fedtailor.data.columns import RawColumn, RawTable
from fedtailor.data.dataset import Dataset, EncoderRecord, Normalization
from fedtailor.data.files import cache_entry, matching_files

_ARRAYS = ("x", "y", "subclasses", "domains", "groups")


def signature_of(patterns: Iterable[str], folder: Path) -> str:
    """Return a SHA-256 that changes when files or their readers change.

    It covers the folder and, for every file that matches, its path in the folder, its size and its
    times of modification and of change. It also covers the source of the readers, so that data
    decoded by another version is not used.

    Args:
        patterns: relative to ``folder``, as in :class:`fedtailor.data.datasets.KnownDataset`.
        folder: the data folder.

    Returns:
        An empty string, with which :func:`cached` keeps nothing, if no file matches.
    """
    files = []
    for path, status in sorted(matching_files(folder, patterns).items()):
        relative_path = path.relative_to(folder).as_posix()
        files.append((relative_path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))

    return digest_of(str(folder.resolve()), files) if files else ""


def digest_of(*facts: Any) -> str:
    """Return a SHA-256 of facts, and of the source of the readers and of this module."""
    content = [_source_digest(), *facts]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def cached(signature: str, build: Callable[[], Dataset], *, name: str) -> Dataset:
    """Return a data set from the cache; otherwise build it, and keep it in place of older ones.

    Args:
        signature: from :func:`signature_of`; empty: the cache is not used.
        build: reads and decodes the data set.
        name: name of the data set; characters other than letters and digits become ``_``.

    Returns:
        The same values either way, with a note if they could not be kept.
    """
    if not signature:
        return build()

    # The whole signature is compared when an entry is read.
    folder = cache_entry("decoded", name, signature)
    dataset = _read(folder, signature)
    if dataset is not None:
        return dataset

    dataset = build()
    try:
        _write(folder, signature, dataset)

        # Older entries are of no use; processes that have mapped them keep them until they end.
        stem = folder.name.rpartition("-")[0]
        for other in folder.parent.glob(f"{stem}-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
    except OSError as reason:
        why = f"decoded data could not be kept in '{folder.parent}' ({reason.strerror or reason})"
        note = f"{why}: every run decodes it again."
        return dataclasses.replace(dataset, notes=(*dataset.notes, note))

    return dataset


def _read(folder: Path, signature: str) -> Dataset | None:
    """Return the data set of an entry; None if there is none that is as it was written."""
    try:
        meta = read_object(folder / "meta.json")
        if meta["signature"] != signature:
            return None

        # JSON has lists only, where a data set has tuples.
        fields: dict[str, Any] = {}
        for name, value in meta["fields"].items():
            fields[name] = tuple(value) if isinstance(value, list) else value

        mean, std, l2 = fields["normalize"]
        fields["normalize"] = Normalization(tuple(mean), tuple(std), l2)
        if fields["encoder"] is not None:
            fields["encoder"] = EncoderRecord(*fields["encoder"])
        if fields["raw"] is not None:
            columns, unused, decimals = fields["raw"]
            named = tuple(RawColumn(name, tuple(texts)) for name, texts in columns)
            fields["raw"] = RawTable(named, tuple(unused), decimals)

        # Copy-on-write: the file stays, and torch shares the memory without a warning.
        for name in meta["arrays"]:
            path = folder / f"{name}.npy"
            # NumPy would wait for a pipe.
            with open_regular(path, within=folder):
                fields[name] = np.load(path, mmap_mode="c", allow_pickle=False)

        dataset = Dataset(**fields)
        return dataset if dataset.digest == meta["digest"] else None
    except Exception:  # a damaged array header raises exceptions of half a dozen kinds
        return None


def _write(folder: Path, signature: str, dataset: Dataset) -> None:
    """Write an entry, in place of one that could not be used."""
    values = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(dataset)}
    arrays = {name: values.pop(name) for name in _ARRAYS}
    present = {name: array for name, array in arrays.items() if array is not None}
    meta = {
        "signature": signature,
        "digest": dataset.digest,  # of the arrays
        "arrays": list(present),
        "fields": values,
    }
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with whole_folder(folder) as unfinished:
            for name, array in present.items():
                np.save(unfinished / f"{name}.npy", array, allow_pickle=False)

            (unfinished / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    except OSError:
        # Another process may have been faster.
        if not (folder / "meta.json").is_file():
            raise


@cache
def _source_digest() -> str:
    """Return the SHA-256 of the modules that read data."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())

    return digest.hexdigest()
